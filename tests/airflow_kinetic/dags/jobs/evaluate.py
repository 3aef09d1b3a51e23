"""The script that the page of the docs names."""

import sys

print("evaluated:", *sys.argv[1:])
