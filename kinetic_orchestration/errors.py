"""All exceptions of the project, in one tree.

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
        """Return the message with control characters escaped, since it may quote what a job wrote."""
        return visible.log(super().__str__())


class UsageError(KineticError, ValueError):
    """Invalid request. Nothing was started."""


class UnknownAccelerator(UsageError):
    """No slice has this name. The message lists similar names."""


class NotPicklable(UsageError, TypeError):
    """A function or an argument that cannot be pickled, with the path to the culprit."""


class NotAFunction(UsageError, TypeError):
    """The decorated object cannot run as a job."""


class DataNotFound(UsageError, FileNotFoundError):
    """The path of a `Data` does not exist."""


class ConflictingSettings(UsageError):
    """Two settings exclude each other."""


class KeyTaken(UsageError):
    """The key names a job of another call, and `on_conflict="error"` was given, or a step that has a job already.
    Nothing was started.
    """


class Unsupported(UsageError):
    """The backend does not have this option."""


class NotEmulated(UsageError):
    """Real hardware was required, and only an emulation of it is available. Nothing was started."""


class TooBig(UsageError):
    """The slice has more hosts than this machine can emulate."""


class StoreError(KineticError):
    """The store refused a request, is full, or lacks a guarantee that records need."""


class Denied(StoreError):
    """A permission or a policy forbids it; the message names who can change that."""


class Unreachable(StoreError):
    """The store did not answer in time. Worth another attempt."""


class NewerWire(StoreError):
    """The record was written by a newer version of this package."""


class Corrupt(StoreError):
    """The content of an object is not what was written."""


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
    """No place is left in which the hosts could be created."""


class CheckpointError(KineticError):
    """A checkpoint could not be written or read. Earlier checkpoints are unchanged."""


class CheckpointDiffers(CheckpointError, ValueError):
    """A checkpoint of another model or topology; the message names the difference."""


class JobNotFound(KineticError, LookupError):
    """The store has no such job."""


class Superseded(KineticError):
    """This attempt of the job is over, and another one may be running. It must not write anything outside the job."""


class JobError(KineticError):
    """A job ended without a value.

    Attributes:
        job_id: The job.
        host: The host that decided the end, if one did.
        cause: The cause in the job's verdict.
    """

    def __init__(self, message: str, *, job_id: str = "", host: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.host = host
        self.cause = cause


class JobFailed(JobError):
    """The job's own code failed, and its exception could not be restored as an object."""


class JobCancelled(JobError):
    """The job was cancelled."""


class JobTimedOut(JobError, TimeoutError):
    """A limit of the job passed."""


class JobLost(JobError):
    """The job's hosts or its environment failed."""


class ResultNotTrusted(JobError):
    """The job succeeded, but only the bucket that holds its value authenticates it: it is not unpickled."""


class ResultNotPicklable(JobError):
    """The job succeeded, but its value cannot be pickled."""
