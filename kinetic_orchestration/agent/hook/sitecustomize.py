"""Lets a command's own Python join its slice: first on its PYTHONPATH, and followed by the one it hides."""

import importlib.machinery
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _here]
)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(sys.modules["sitecustomize"])
sys.path.append(os.environ["KINETIC_SITE"])
from kinetic_orchestration.agent import distributed  # noqa: E402

distributed.install()
