"""Every exception of the project, in one tree.

    KineticError
    ├── UsageError(ValueError)            what was asked for cannot be; nothing has run
    │   ├── UnknownAccelerator            no such slice; the message lists what is near
    │   ├── NotPicklable(TypeError)       a function or an argument that cannot travel, with the path to the culprit
    │   ├── NotAFunction(TypeError)       what was decorated cannot be a job
    │   ├── DataNotFound(FileNotFoundError)  a Data path that is not there
    │   ├── ConflictingSettings           two settings that exclude each other
    │   ├── KeyTaken                      a key names a job of another call, and `on_conflict="error"` was asked for
    │   ├── Unsupported                   a wish that this backend refuses by name
    │   ├── NotEmulated                   hardware is meant, and only an emulation of it is there
    │   └── TooBig                        more hosts than this machine can hold
    ├── StoreError                        the store refused, is full, or cannot keep its promises
    │   ├── Denied                        a permission or a policy forbids it; the message says who may change that
    │   ├── Unreachable                   it gave no answer for as long as was waited; worth another try
    │   ├── NewerWire                     written by a newer version of this package
    │   └── Corrupt                       the bytes are not those that were sent
    ├── RequirementsError                 the requirements could not be locked or installed
    ├── CredentialsError                  nobody to be for Google Cloud, or somebody who may not
    ├── BackendError                      the hosts could not be made; its cause says what is worth another try
    ├── NoPlace                           nowhere is left where the hosts could be made
    ├── CheckpointError                   a checkpoint could not be written, and the user wants to hear of it
    │   └── CheckpointDiffers(ValueError)  it is of another model or topology; the message says what differs
    ├── JobNotFound(LookupError)          no such job in this store
    ├── Superseded                        this attempt is over, and another one may be running
    └── JobError                          a job ended without a value
        ├── JobFailed                     its own code failed, and the exception could not come back as itself
        ├── JobCancelled                  somebody cancelled it
        ├── JobTimedOut(TimeoutError)     one of its limits passed
        ├── ResultNotTrusted              it ran to the end, and nothing vouches for its value but the bucket it lies in
        ├── JobLost                       its hosts or its environment failed it (infrastructure, preemption)
        └── ResultNotPicklable            it ran to the end, but its value cannot travel; the message has its repr

A message says what happened, where the evidence is, and what to do next.
"""

from __future__ import annotations

from kinetic_orchestration.protocol.system import visible


class KineticError(Exception):
    """The root: `except KineticError` catches whatever this project raises itself."""

    def __str__(self) -> str:
        """It may quote what a job wrote, and ends up on terminals."""
        return visible.log(super().__str__())


class UsageError(KineticError, ValueError):
    """What was asked for cannot be. Nothing has run."""


class UnknownAccelerator(UsageError):
    """No such slice; the message lists what is near."""


class NotPicklable(UsageError, TypeError):
    """A function or an argument that cannot travel, with the path to the culprit."""


class NotAFunction(UsageError, TypeError):
    """What was decorated cannot be a job."""


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
    """A permission or a policy forbids it; the message says who may change that."""


class Unreachable(StoreError):
    """The store gave no answer for as long as was waited. Worth another try."""


class NewerWire(StoreError):
    """Written by a newer version of this package."""


class Corrupt(StoreError):
    """The bytes are not those that were sent."""


class RequirementsError(KineticError):
    """The requirements could not be locked or installed."""


class CredentialsError(KineticError):
    """Nobody to be for Google Cloud, or somebody who may not."""


class BackendError(KineticError):
    """The hosts could not be made. The cause, one of the wire's, says what is worth another try."""

    def __init__(self, message: str, cause: str = "infrastructure") -> None:
        super().__init__(message)
        self.cause = cause


class NoPlace(KineticError):
    """Nowhere is left where the hosts could be made."""


class CheckpointError(KineticError):
    """A checkpoint could not be written. Those before it are untouched."""


class CheckpointDiffers(CheckpointError, ValueError):
    """A checkpoint of another model or topology; the message says what differs."""


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
    """Somebody cancelled the job."""


class JobTimedOut(JobError, TimeoutError):
    """One of the job's limits passed."""


class JobLost(JobError):
    """The job's hosts or its environment failed it."""


class ResultNotTrusted(JobError):
    """The job ran to the end, and nothing but the bucket that holds its value vouches for it: it is not unpickled."""


class ResultNotPicklable(JobError):
    """The job ran to the end, but its value cannot travel."""
