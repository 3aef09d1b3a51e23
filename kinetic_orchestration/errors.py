"""Every exception of the project, in one tree.

    KineticError
    ├── UsageError(ValueError)            invalid request; nothing was started
    │   ├── UnknownAccelerator            no such slice; the message lists similar ones
    │   ├── NotPicklable(TypeError)       a function or an argument that cannot be pickled, with the path to the culprit
    │   ├── NotAFunction(TypeError)       the decorated object cannot run as a job
    │   ├── DataNotFound(FileNotFoundError)  a Data path that is not there
    │   ├── ConflictingSettings           two settings that exclude each other
    │   ├── KeyTaken                      a key names a job of another call, and `on_conflict="error"` was asked for
    │   ├── Unsupported                   an option that this backend does not support
    │   ├── NotEmulated                   hardware is wanted, and only an emulation is available
    │   └── TooBig                        more hosts than this machine can hold
    ├── StoreError                        the store refused, is full, or lacks a guarantee
    │   ├── Denied                        a permission or a policy forbids it; the message names who can change that
    │   ├── Unreachable                   it did not answer within the time limit; worth another try
    │   ├── NewerWire                     written by a newer version of this package
    │   └── Corrupt                       the bytes are not those that were sent
    ├── RequirementsError                 the requirements could not be locked or installed
    ├── CredentialsError                  no usable credentials for Google Cloud, or no project
    ├── BackendError                      the hosts could not be created; its cause tells whether to try again
    ├── NoPlace                           no place is left where the hosts could be created
    ├── CheckpointError                   a checkpoint could not be written, and the user asked for the error
    │   └── CheckpointDiffers(ValueError)  it is of another model or topology; the message names the difference
    ├── JobNotFound(LookupError)          no such job in this store
    ├── Superseded                        this attempt is over, and another one may be running
    └── JobError                          a job ended without a value
        ├── JobFailed                     its own code failed, and the exception could not come back as itself
        ├── JobCancelled                  it was cancelled
        ├── JobTimedOut(TimeoutError)     one of its limits passed
        ├── ResultNotTrusted              it succeeded, but only the bucket that holds its value authenticates it
        ├── JobLost                       its hosts or its environment failed (infrastructure, preemption)
        └── ResultNotPicklable            it succeeded, but its value cannot be pickled; the message has its repr

A message states what happened, where the evidence is, and what to do next.
"""

from __future__ import annotations

from kinetic_orchestration.protocol.system import visible


class KineticError(Exception):
    """The root: `except KineticError` catches every exception that this project raises itself."""

    def __str__(self) -> str:
        """It may quote what a job wrote, and ends up on terminals."""
        return visible.log(super().__str__())


class UsageError(KineticError, ValueError):
    """Invalid request. Nothing was started."""


class UnknownAccelerator(UsageError):
    """No such slice; the message lists what is near."""


class NotPicklable(UsageError, TypeError):
    """A function or an argument that cannot be pickled, with the path to the culprit."""


class NotAFunction(UsageError, TypeError):
    """The decorated object cannot run as a job."""


class DataNotFound(UsageError, FileNotFoundError):
    """A Data path that is not there."""


class ConflictingSettings(UsageError):
    """Two settings that exclude each other."""


class KeyTaken(UsageError):
    """A key that names a job of another call, or a step that has one. Nothing has run."""


class Unsupported(UsageError):
    """A wish that this backend refuses by name."""


class NotEmulated(UsageError):
    """Hardware is meant, and only an emulation of it is there: nothing was run."""


class TooBig(UsageError):
    """More hosts than this machine can hold."""


class StoreError(KineticError):
    """The store refused, is full, or cannot keep its promises."""


class Denied(StoreError):
    """A permission or a policy forbids it; the message names who can change that."""


class Unreachable(StoreError):
    """The store gave no answer for as long as was waited. Worth another try."""


class NewerWire(StoreError):
    """Written by a newer version of this package."""


class Corrupt(StoreError):
    """The bytes are not those that were sent."""


class RequirementsError(KineticError):
    """The requirements could not be locked or installed."""


class CredentialsError(KineticError):
    """There are no usable credentials for Google Cloud, or no project is named."""


class BackendError(KineticError):
    """The hosts could not be created. The cause, a failure on the wire, tells whether to try again."""

    def __init__(self, message: str, cause: str = "infrastructure") -> None:
        super().__init__(message)
        self.cause = cause


class NoPlace(KineticError):
    """Nowhere is left where the hosts could be made."""


class CheckpointError(KineticError):
    """A checkpoint could not be written. Those before it are untouched."""


class CheckpointDiffers(CheckpointError, ValueError):
    """A checkpoint of another model or topology; the message names the difference."""


class JobNotFound(KineticError, LookupError):
    """No such job in this store."""


class Superseded(KineticError):
    """This attempt of the job is over, and another one may be running. Nothing outside is to be written by it."""


class JobError(KineticError):
    """A job ended without a value."""

    def __init__(self, message: str, *, job_id: str = "", host: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.host = host
        self.cause = cause


class JobFailed(JobError):
    """The job's own code failed, and the exception could not come back as itself."""


class JobCancelled(JobError):
    """The job was cancelled."""


class JobTimedOut(JobError, TimeoutError):
    """One of the job's limits passed."""


class JobLost(JobError):
    """The job's hosts or its environment failed it."""


class ResultNotTrusted(JobError):
    """The job succeeded, but only the bucket that holds its value authenticates it: it is not unpickled."""


class ResultNotPicklable(JobError):
    """The job succeeded, but its value cannot be pickled."""
