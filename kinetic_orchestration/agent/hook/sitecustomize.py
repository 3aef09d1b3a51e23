"""Lets a command's own Python join its slice: first on its PYTHONPATH, and followed by the one it hides."""

import importlib.machinery
import os
import sys


def _join():
    # type: () -> None
    # Older than the agent is able to run: the command runs all the same, it only does not join.
    if sys.version_info >= (3, 10) and "KINETIC_SITE" in os.environ:
        sys.path.append(os.environ["KINETIC_SITE"])
        from kinetic_orchestration.agent import distributed

        distributed.install()


def _go_on():
    # type: () -> None
    """Become the environment's own sitecustomize, as if this one had never been there."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"]
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        spec.loader.exec_module(module)


_join()
_go_on()
