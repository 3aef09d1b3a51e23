"""Every exception of the project, in one tree.

    KineticError
    ├── UsageError(ValueError)            what was asked for cannot be; nothing has run
    │   ├── UnknownAccelerator            no such slice; the message lists what is near
    │   ├── NotPicklable(TypeError)       a function or an argument that cannot travel, with the path to the culprit
    │   ├── NotAFunction(TypeError)       what was decorated cannot be a job
    │   ├── DataNotFound(FileNotFoundError)  a Data path that is not there
    │   ├── ConflictingSettings           two settings that exclude each other
    │   ├── Unsupported                   a wish that this backend refuses by name
    │   └── TooBig                        more hosts than this machine can hold
    ├── StoreError                        the store refused, is full, or cannot keep its promises
    │   ├── NewerWire                     written by a newer version of this package
    │   └── Corrupt                       the bytes are not those that were sent
    ├── RequirementsError                 the requirements could not be locked or installed
    ├── BackendError                      the hosts could not be made; worth another try
    ├── JobNotFound(LookupError)          no such job in this store
    └── JobError                          a job ended without a value
        ├── JobFailed                     its own code failed, and the exception could not come back as itself
        ├── JobCancelled                  somebody cancelled it
        ├── JobTimedOut(TimeoutError)     one of its limits passed
        ├── JobLost                       its hosts or its environment failed it (infrastructure, preemption)
        └── ResultNotPicklable            it ran to the end, but its value cannot travel; the message has its repr

A message says what happened, where the evidence is, and what to do next.
"""

from __future__ import annotations


class KineticError(Exception):
    """The root: `except KineticError` catches whatever this project raises itself."""


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


class Unsupported(UsageError):
    """A wish that this backend refuses by name."""


class TooBig(UsageError):
    """More hosts than this machine can hold."""


class StoreError(KineticError):
    """The store refused, is full, or cannot keep its promises."""


class NewerWire(StoreError):
    """Written by a newer version of this package."""


class Corrupt(StoreError):
    """The bytes are not those that were sent."""


class RequirementsError(KineticError):
    """The requirements could not be locked or installed."""


class BackendError(KineticError):
    """The hosts could not be made; worth another try."""


class JobNotFound(KineticError, LookupError):
    """No such job in this store."""


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


class ResultNotPicklable(JobError):
    """The job ran to the end, but its value cannot travel."""
