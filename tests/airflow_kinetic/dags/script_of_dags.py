"""A script beside a DAG file."""

import os
import sys

print("told:", *sys.argv[1:], os.environ["KIND"])
