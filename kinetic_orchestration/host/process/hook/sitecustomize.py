"""Lets a command's own Python join its slice and show its stacks: it is first on its PYTHONPATH, and runs the
sitecustomize that it hides, even if a step fails.
"""

import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable  # noqa: F401  (in a comment)

PACKAGE = "kinetic_orchestration"


def _join():
    # type: () -> None
    site = os.environ["KINETIC_SITE"]
    sys.path.append(site)
    try:
        from kinetic_orchestration.host.process.frameworks import join
    except Exception:  # another version is installed, or there is a folder of that name
        if str(getattr(sys.modules.get(PACKAGE), "__file__", "")).startswith(site):
            raise
        _prefer(site)
        from kinetic_orchestration.host.process.frameworks import join

    join.install()


def _prefer(site):
    # type: (str) -> None
    """Import the agent's own package in place of the one that was found, and nothing else of what lies beside it."""
    for name in sys.modules.copy():
        if name.partition(".")[0] == PACKAGE:
            del sys.modules[name]
    sys.path.insert(0, site)
    try:
        importlib.import_module(PACKAGE)
    finally:
        sys.path.remove(site)


def _show_stacks():
    # type: () -> None
    """Let the agent ask this process for its stacks, which go to a file of its own."""
    try:
        import faulthandler
        import signal

        path = os.path.join(os.environ["KINETIC_STACKS"], str(os.getpid()))
        stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the handler after Python's finalization
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    except (ImportError, OSError, ValueError):  # a subinterpreter; the job is over; or this is another user
        pass


def _attempt(step, variable, otherwise):
    # type: (Callable[[], None], str, str) -> None
    """Take a step that the agent asks for by a variable. One that fails costs no more than itself, and a line."""
    # Older than the agent is able to run: the command runs all the same, it only does not join.
    if sys.version_info >= (3, 10) and variable in os.environ:
        try:
            step()
        except Exception as error:
            if sys.stderr is not None:
                why = type(error).__name__ + ": " + str(error)
                sys.stderr.write("kinetic: this Python " + otherwise + ": " + why + "\n")


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


_attempt(_join, "KINETIC_SITE", "does not join its slice")
_attempt(_show_stacks, "KINETIC_STACKS", "shows no stacks")
_go_on()
