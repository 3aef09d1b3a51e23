"""A script beside a DAG file."""

import os
import sys

print("told:", *sys.argv[1:], os.environ["KIND"])
print("rank", os.environ.get("RANK"), "is local", os.environ.get("LOCAL_RANK"))
print("step: 3, loss: 0.25")
