"""Finds the requirement that a job's environment lacks, and words it as the line to add to its requirements.

Reads the exception and this interpreter only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "keras_hub": "keras-hub",
    "orbax": "orbax-checkpoint",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_text": "tensorflow-text",
    "tunix": "google-tunix",
    "yaml": "pyyaml",
}
_KNOWN = {*DISTRIBUTIONS, "jax", "tensorflow", "torch", "keras", "flax", "optax", "peft", "transformers", "numpy"}


# Packages that define pipelines, which are not sent. A host has no configuration, no connections and no database of
# theirs.
ORCHESTRATORS = {"airflow": "Airflow", "dagster": "Dagster"}


def explain(error: BaseException, beside: Mapping[str, str]) -> None:
    """Add a note to the exception if it comes from a missing module."""
    if text := _of_orchestrator(error):
        _put_note(error, text)
    elif isinstance(error, ModuleNotFoundError):
        _explain_missing(error, beside)


def _of_orchestrator(error: BaseException) -> str:
    """Return the advice for code that uses an orchestrator, which a host has not; "" for any other failure: one of the
    user's own code that the orchestrator only called, or a builtin exception, by which it reports a wrong call.
    """
    top = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    frames, who, missing = error.__traceback__, "", top in ORCHESTRATORS
    if not missing and type(error).__module__ == "builtins" and not isinstance(error, ImportError):
        return ""
    while frames is not None:
        name = str(frames.tb_frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        if package in ORCHESTRATORS and not missing:
            top = package
        elif name and package != "kinetic_orchestration" and not _is_installed(name, frames):
            top, who = top if missing else "", name
        frames = frames.tb_next
    if top not in ORCHESTRATORS:
        return ""
    orchestrator = ORCHESTRATORS[top]
    return (
        f"{who or 'the code of this job'} uses {orchestrator}, of which a host has no configuration, no connections "
        "and no database: import it in the file of the pipeline alone, where a task is declared, and hand the function "
        "what it needs of it as arguments, or by env= and secrets=. If it needs no more than its classes, add the "
        "distribution to its requirements"
    )


def _is_installed(name: str, frames: TracebackType) -> bool:
    """Return True if a module came with this interpreter or was installed for it, and is not the user's own."""
    file = str(getattr(sys.modules.get(name), "__file__", None) or frames.tb_frame.f_code.co_filename)
    return file.startswith(("<frozen", sys.prefix + os.sep, sys.base_prefix + os.sep)) or "site-packages" in file


def _explain_missing(error: ModuleNotFoundError, beside: Mapping[str, str]) -> None:
    """Add a note for a missing module, unless it is part of a package that exists."""
    import importlib.util

    from kinetic_orchestration.host.prepare.environment import MARKER

    top, _, below = (error.name or "").partition(".")
    if top == "kinetic_orchestration" and below:
        text = (
            f"{error.name} is only where jobs are launched from: a host has the part of kinetic-orchestration that "
            "runs a program"
        )
        _put_note(error, text)
        return
    if not top or importlib.util.find_spec(top) is not None:
        return
    line = DISTRIBUTIONS.get(top, top.replace("_", "-"))
    if top in beside:
        folder, name = os.path.split(beside[top])
        text = (
            f"{name} lies beside your code, in {folder}, and did not travel with the job: its function does not import "
            f"it by name, or it is ignored. Import it where that is seen, or have the folder travel (touch "
            f"{folder}/.kineticignore); if it is ignored, with the line !/{name} there"
        )
    elif os.path.isfile(os.path.join(sys.prefix, MARKER)):
        text = f"{top} is not in the environment of this job: add the line {line} to its requirements"
        text += f". Code of your own travels with first_party=[{top!r}]" if top not in _KNOWN else ""
    else:
        text = (
            f"{top} is not installed where this job runs ({sys.prefix}): install {line} there, or give the job an "
            f"environment of its own, with requirements=[…, {line!r}]"
        )
    if _raised_in_keras(error):
        text += ". It is the backend that Keras was told to use; keras_backend= names another one"
    _put_note(error, text)


def _put_note(error: BaseException, text: str) -> None:
    # Not add_note, which a host's Python may be too old for; the exception takes it along all the same.
    error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined,unused-ignore]


def _raised_in_keras(error: BaseException) -> bool:
    frames = error.__traceback__
    while frames is not None:
        if str(frames.tb_frame.f_globals.get("__name__", "")).startswith("keras.src.backend"):
            return True
        frames = frames.tb_next
    return False
