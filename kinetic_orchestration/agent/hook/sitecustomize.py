"""Lets a command's own Python join its slice and show its stacks: first on its PYTHONPATH, and followed by the one it
hides.
"""

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


def _show_stacks():
    # type: () -> None
    """Whoever has a file there can be asked for its stacks."""
    if sys.version_info >= (3, 10) and "KINETIC_STACKS" in os.environ:
        try:
            import faulthandler
            import signal

            path = os.path.join(os.environ["KINETIC_STACKS"], str(os.getpid()))
            stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # what is left of it when Python has taken itself apart
            faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
        except (ImportError, OSError, ValueError):  # a subinterpreter; the job is over; or this is another user
            pass


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
_show_stacks()
_go_on()
