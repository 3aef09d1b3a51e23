"""All exceptions of the project, in one tree.

    KineticError
    ├── UsageError(ValueError)            invalid request; nothing was started
    │   ├── UnknownAccelerator            no slice has this name; the message lists similar names
    │   ├── NotPicklable(TypeError)       a function or an argument cannot be pickled; the message has the path to it
    │   ├── NotAFunction(TypeError)       the decorated object cannot run as a job
    │   ├── DataNotFound(FileNotFoundError)  the path of a Data does not exist
    │   ├── NotAModel                     the folder is no model directory; the message says what was looked for
    │   ├── ConflictingSettings           two settings exclude each other
    │   ├── BudgetExceeded                the month's budget of its pipeline is used up, or cannot be judged
    │   ├── KeyTaken                      the key names a job of another call, and `on_conflict="error"` was given
    │   ├── Unsupported                   the backend does not have this option
    │   ├── NotEmulated                   real hardware was required, and only an emulation is available
    │   └── TooBig                        the slice has more hosts than this machine can emulate
    ├── StoreError                        the store refused, is full, or lacks a guarantee that records need
    │   ├── Denied                        a permission or a policy forbids it; the message says who can change that
    │   ├── Unreachable                   the store did not answer in time; worth another attempt
    │   ├── NewerWire                     the record was written by a newer version of this package
    │   └── Corrupt                       the content is not what was written
    ├── RequirementsError                 the requirements could not be locked or installed
    ├── SetupError                        a project was not set up, or not taken back; the same command goes on later
    ├── CredentialsError                  no credentials for a cloud or a cluster, or they lack a permission
    ├── BackendError                      the hosts could not be created; its cause decides about the next attempt
    ├── HostNotReached                    a running host cannot be reached; the message says what is in the way
    ├── NoPlace                           no place is left in which the hosts could be created
    ├── DataChanged                       data that a job reads where they are, are not those that it was submitted with
    ├── CheckpointError                   a checkpoint could not be written or read
    │   └── CheckpointDiffers(ValueError)  it is of another model or topology; the message lists the differences
    ├── PromotionRefused                  the check of a model said no; nothing was copied or registered
    ├── RegistryError                     a model is promoted, and its registry refused it or did not answer
    ├── ServingError                      a model was not handed over to serving
    │   ├── ManifestRefused               the cluster refuses a manifest, or has no such kind; nothing was changed
    │   ├── DeploymentBusy                another client deploys under this name now
    │   └── DeploymentFailed              what was applied does not serve, and was undone, or it says why not
    ├── EngineNotStarted                  a model's server did not become healthy; the message has the end of its log
    ├── EngineLost                        a model's server died too often, or did not come back
    ├── ScoresTooLow                      an evaluation of a model has not passed; the message has the scores
    ├── JobNotFound(LookupError)          the store has no such job
    ├── SearchFailed                      no trial of a search is complete; the first error of a trial is its cause
    ├── Superseded                        this attempt is over, and another one may be running
    └── JobError                          a job ended without a value
        ├── JobFailed                     its own code failed, and the exception could not be restored as an object
        ├── JobCancelled                  it was cancelled
        ├── JobTimedOut(TimeoutError)     one of its limits passed
        ├── ResultNotTrusted              it succeeded, and only the bucket says where its value comes from
        ├── JobLost                       its hosts or its environment failed (infrastructure, preemption)
        └── ResultNotPicklable            it succeeded, and its value cannot be pickled; the message has its repr

A message says what happened, where the evidence is, and what to do next.
"""

from __future__ import annotations

from kinetic_orchestration.protocol.system import escaping


class KineticError(Exception):
    """Base class of every exception that this project raises itself."""

    def __str__(self) -> str:
        """Return the message with control characters escaped, since it may quote what a job wrote."""
        return escaping.log(super().__str__())


class UsageError(KineticError, ValueError):
    """Invalid request. Nothing was started."""


class UnknownAccelerator(UsageError):
    """No slice has this name. The message lists similar names."""


class NotPicklable(UsageError, TypeError):
    """A function or an argument cannot be pickled. The message has the path to the object that cannot."""


class NotAFunction(UsageError, TypeError):
    """The decorated object cannot run as a job."""


class DataNotFound(UsageError, FileNotFoundError):
    """The path of a `Data` does not exist."""


class NotAModel(UsageError):
    """The folder is no model directory, or one that is not complete. The message says what was looked for."""


class ConflictingSettings(UsageError):
    """Two settings exclude each other."""


class BudgetExceeded(UsageError):
    """The budget of the job's pipeline for this month is used up, or cannot be judged. Nothing was started."""


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
    """A permission or a policy forbids the request. The message says who can change that."""


class Unreachable(StoreError):
    """The store, or a hub, did not answer in time. Worth another attempt."""


class NewerWire(StoreError):
    """The record was written by a newer version of this package."""


class Corrupt(StoreError):
    """The content of an object is not what was written."""


class RequirementsError(KineticError):
    """The requirements could not be locked or installed."""


class SetupError(KineticError):
    """A Google project was not set up as asked, or not taken back. The same command goes on where it stopped."""


class CredentialsError(KineticError):
    """There are no credentials for a cloud or a cluster, or they lack a permission."""


class HostNotReached(KineticError):
    """A running host cannot be reached, or runs no more. The message says what is in the way, and what helps."""


class BackendError(KineticError):
    """The hosts could not be created.

    Attributes:
        cause: One of the causes in `protocol.wire`, which decides whether and where the next attempt is made.
    """

    def __init__(self, message: str, cause: str = "infrastructure") -> None:
        super().__init__(message)
        self.cause = cause


class NoPlace(KineticError):
    """No place is left in which the hosts could be created."""


class DataChanged(KineticError):
    """Data that a job reads where they are, are not those that it was submitted with."""


class CheckpointError(KineticError):
    """A checkpoint could not be written or read. Earlier checkpoints are unchanged."""


class CheckpointDiffers(CheckpointError, ValueError):
    """The checkpoint is of another model or topology. The message lists the differences."""


class PromotionRefused(KineticError):
    """The check of a model said no, or the job that made it did not succeed, and nothing was copied or registered; or
    the alias that it was to get has moved meanwhile, and nothing points to it.

    Attributes:
        reasons: What the check gave as reasons, or how the job has ended.
    """

    def __init__(self, message: str, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons = reasons


class RegistryError(KineticError):
    """A registry of models refused a request, or did not answer. What was promoted stays in its store, and the same
    call registers it later.
    """


class ServingError(KineticError):
    """A model was not handed over to serving."""


class ManifestRefused(ServingError):
    """The cluster refuses a manifest, or does not have its kind of objects. Nothing was changed."""


class DeploymentBusy(ServingError):
    """Another client deploys under this name now, or has taken over from this one."""


class DeploymentFailed(ServingError):
    """A server does not serve although its objects were applied.

    Attributes:
        revision: The revision that failed.
        restored: The revision that is applied again; 0 if there was none before, or if that failed, too.
        clean: True if the cluster is as it was before.
    """

    def __init__(self, message: str, *, revision: int = 0, restored: int = 0, clean: bool = True) -> None:
        super().__init__(message)
        self.revision = revision
        self.restored = restored
        self.clean = clean


class EngineNotStarted(KineticError):
    """A model's server did not become healthy. The message has the end of its log."""


class EngineLost(KineticError):
    """A model's server died too often without an answer between, or did not come back."""


class ScoresTooLow(KineticError):
    """An evaluation of a model has not passed. The message has the scores that are too low or too high."""


class JobNotFound(KineticError, LookupError):
    """The store has no such job."""


class SearchFailed(KineticError):
    """No trial of a search is complete. The first error of a trial is its `__cause__`."""


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
    """The job succeeded, and its value is not unpickled: only the bucket that holds it says where it comes from."""


class ResultNotPicklable(JobError):
    """The job succeeded, and its value cannot be pickled. The message has its repr."""
