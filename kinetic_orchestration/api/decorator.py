"""`@run` makes a function a job; `command` runs a command as one."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.backend_choice import check_backend
from kinetic_orchestration.plan.declare.checks.functions import check_arguments, check_function, name_of
from kinetic_orchestration.plan.declare.checks.options import check_declared, check_options
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, options_from
from kinetic_orchestration.plan.messages import warn, warn_once
from kinetic_orchestration.program import client_only

if TYPE_CHECKING:
    from typing import Unpack  # which Python 3.10 on a host has not

    from kinetic_orchestration.api.batch import BatchHandle
    from kinetic_orchestration.api.handle import JobHandle
    from kinetic_orchestration.api.keywords import OfCommand
    from kinetic_orchestration.program.trainers.parsers import Parser

P = ParamSpec("P")
R = TypeVar("R")
Record = TypeVar("Record")


class Decorate(Protocol):
    """The decorator that `run(...)` returns. A coroutine function runs to completion on the host, and its job has the
    plain value.
    """

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteCallable[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> RemoteCallable[P, R]: ...


def taking(make: Callable[P, Record]) -> Callable[[Callable[[Record], R]], Callable[P, R]]:
    """Give a function of one record the parameters of that record.

    make: makes the record, such as a dataclass.
    """

    def decorate(function: Callable[[Record], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                record = make(*args, **kwargs)
            except TypeError:
                check_arguments(call, args, kwargs)  # names the function, and no class that nobody called
                raise
            return function(record)

        returns = function.__annotations__["return"]
        vars(call)["__signature__"] = inspect.signature(make).replace(return_annotation=returns)
        return call

    return decorate


@taking(Options)
def run(options: Options) -> Decorate:
    """Run the decorated function as a job on the named accelerator.

    The function runs once on every host of the slice, and host 0's value is returned. Without a project and a bucket
    the slice is emulated by processes of this machine. The first thirteen parameters are those of Keras Kinetic.

    Args:
        accelerator: Slice by generation and number of chips or topology (`"v5e-16"`, `"v5p-4x4x4"`), or `"cpu"`,
            `"cpu:8"`, `"gpu:2"`, `"l4"`, `"h100x8"`. A list of them, or of `Choice`, lets each attempt take one.
        container_image: Image in which the program runs. None installs packages on the hosts instead; nothing is built.
        base_image_repo: Without effect, with a warning.
        zone: Zone of Google Cloud.
        project: Project of Google Cloud.
        capture_env_vars: Variables of this process that the job gets, such as `["NAME", "PREFIX_*"]`.
        cluster: Cluster of the backends `"kubernetes"` (a context of the kubeconfig) and `"gke"`; by default the
            setting.
        backend: `"local"`, `"tpu-vm"`, `"compute"`, `"kubernetes"`, `"gke"` or `"slurm"`; by default the setting, else
            what suits the hardware. `"pathways"` is a word of Keras Kinetic's for a cluster, which slices of several
            hosts do not need.
        namespace: Namespace in the cluster; by default the setting.
        volumes: Data by the absolute path at which hosts have them.
        spot: Request spot capacity.
        output_dir: Folder for outputs; by default one of the job's own in the store.
        debug: Wait for a debugger before the function is called.
        cloud: Options that only Cloud TPU has (`TpuVm`), only Compute Engine (`Compute`), only Kubernetes or
            only `Slurm`.
        limits: Limits of time and of money.
        retry: Failures of each kind that the job survives.
        requirements: Requirements file, list of requirements, or lock file for an environment of the job's own. None:
            the local environment, or on other machines what the code imports, at the versions installed here.
        python: Version of Python, for an environment of the job's own.
        first_party: Packages that are sent as source although they are installed.
        secrets: Names in Secret Manager by variable.
        key: Name of the job. A call with the same key finds this job instead of submitting another one; after a failure
            it begins anew.
        on_conflict: What a call does whose key names a job of another call: `"return"` reports the differences and
            returns that job's value, `"error"` raises KeyTaken.
        store: Folder or `gs://` address of the store; by default the setting.
        deployment: Prefix in the store; by default the setting.
        distributed: False leaves the joining of hosts to the function.
        keras_backend: `"jax"`, `"tensorflow"` or `"torch"`.
        processes: `"gpu"` runs one process for each GPU of this machine, or of each VM of Compute Engine.
        profile: Steps (`20`) or time (`"30s"`) to trace for XProf, or a `Profile`.
        partition_key: Value of `current().partition_key` on the hosts.
        labels: Text that is stored with the job.
        regions: Regions of Google Cloud, in the order in which they are tried; by default those near the bucket.
        capacity: Ways of buying the hardware, in the order in which they are tried: `"spot"`, `"on-demand"`,
            `"flex-start"`, `"reservation"` (the one that `cloud=` names).
        by: Order of the choices: `"order"` (as written), `"price"` or `"start"` (where hosts come soonest).
        reshard: An attempt may continue from a checkpoint that another number of hosts or devices wrote.
        global_batch: Samples of one step on all hosts together, which stay the same on every slice.
        race: Places that are asked at once (2 or 3); the first that has its hosts is kept, and each is paid for until
            it is released.
        keep: Time for which the slice stays after the job, clean, for the next job with `keep` and the same hardware;
            `"0s"` takes a warm slice and leaves none. By default the job does neither.
        priority: Whole number; where chips are shared, jobs of a higher one have their turn first. By default the
            setting.

    Returns:
        A decorator.

    Raises:
        UsageError: An option is invalid, two exclude each other, or the shares of `KINETIC_CHIPS` can never hold the
            job.
    """
    options = replace(check_declared(check_backend(check_options(options))), labels=options.labels or None)
    if options.debug and options.spot:
        warn("debug=True on a spot slice: a preemption would end the session")

    def decorate(function: Callable[..., Any], /) -> RemoteCallable[..., Any]:
        return RemoteCallable(check_function(function), options)

    return cast(Decorate, decorate)


class RemoteCallable(Generic[P, R]):
    """A decorated function. Calling it runs it as a job and waits; `run_async` does not wait."""

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        functools.update_wrapper(self, function)  # first: it copies the function's own attributes, whatever their names
        self.__kinetic_function__ = function
        self.options = options
        self.__name__ = getattr(function, "__name__", name_of(function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a job, print every host's lines as they arrive, and return its value. Ctrl-C cancels the
        job.

        Raises:
            KineticError: The job could not be submitted, or ended without a value. An exception of the function itself
                is raised as itself.
        """
        if not client_only.can_submit():  # on a host
            return self.__kinetic_function__(*args, **kwargs)
        from kinetic_orchestration.api.handle import check_terminal, launched, run_to_end
        from kinetic_orchestration.api.printer import say
        from kinetic_orchestration.jobs.launch import cancel_if_interrupted
        from kinetic_orchestration.jobs.request import draft

        asked = draft(self._spec(args, kwargs))
        if self.options.debug:
            check_terminal(asked.settings)
        request = asked.open()
        with cancel_if_interrupted(request, say):
            job = launched(request)
        return cast(R, run_to_end(job, request.settings))

    def run_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit the job and return. It does not need this process any more.

        Returns:
            A handle of the job.

        Raises:
            KineticError: The job could not be submitted.
        """
        client_only.require("run_async")
        return cast("JobHandle[R]", _submitted(self._spec(args, kwargs)))

    def run_async_map(
        self,
        inputs: Iterable[Any],
        *,
        input_mode: str = "auto",
        max_concurrent: int | None = 64,
        retries: int = 0,
        fail_fast: bool = False,
        cancel_running_on_fail: bool = False,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        project: str | None = None,
        cluster: str | None = None,
    ) -> BatchHandle[R]:
        """Submit one job for each input.

        Args:
            inputs: Arguments of the calls. They are checked before the first job is submitted.
            input_mode: `"auto"` passes a dict as keyword arguments, a list or tuple as positional ones, and anything
                else as the only argument; `"kwargs"` and `"args"` accept only the first two; `"single"` passes each
                input as it is.
            max_concurrent: Jobs that run at the same time; None for all.
            retries: Further attempts that each job may make after a failure of its own code.
            fail_fast: Submit no more after the first failure.
            cancel_running_on_fail: With `fail_fast`, also cancel the jobs that are running.
            name: Name of the batch.
            tags: JSON that is stored with the batch.
            project: Without effect, with a warning.
            cluster: Without effect, with a warning.

        Returns:
            A handle of the batch. If not all jobs may run at once, a thread of this process submits the others.

        Raises:
            UsageError: An option or an input is invalid. No job was submitted.
        """
        client_only.require("run_async_map")
        from kinetic_orchestration.api.batch import submit_all

        if project or cluster:
            warn_once("project= and cluster= of run_async_map have no meaning here: the jobs go where run() says")
        return submit_all(
            self._spec, inputs, input_mode=input_mode, max_concurrent=max_concurrent, retries=retries,
            fail_fast=fail_fast, cancel_running_on_fail=cancel_running_on_fail, name=name, tags=tags,
        )  # fmt: skip

    def _spec(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
        check_arguments(self.__kinetic_function__, args, kwargs)
        return JobSpec(name_of(self.__kinetic_function__), self.options, self.__kinetic_function__, args, kwargs)

    def __reduce__(self) -> Any:
        """Pickle the plain function: called on a host, it runs there."""
        from kinetic_orchestration.protocol.content.payload import itself

        return itself, (self.__kinetic_function__,)

    @overload
    def __get__(self, instance: None, owner: Any) -> RemoteCallable[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> RemoteCallable[..., R]: ...

    def __get__(self, instance: object | None, owner: Any) -> RemoteCallable[..., R]:
        if instance is None:
            return self
        function: Callable[..., R] = self.__kinetic_function__
        bound = functools.update_wrapper(functools.partial(function, instance), function)
        del bound.__wrapped__  # the signature is the partial's, without self
        return RemoteCallable(bound, self.options)


def command(
    argv: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    metrics: str | Parser | type | None = None,
    metrics_file: str | os.PathLike[str] | None = None,
    **options: Unpack[OfCommand],
) -> JobHandle[None]:
    """Run a command with the project around it as a job. Nothing is pickled, and the host's Python may be another one.

    Args:
        argv: Words of the command. `"python"` is the interpreter of the job's environment.
        cwd: Folder in which it runs; by default the current one.
        metrics: How host 0's numbers are read from its output, as the job's metrics and progress: `"maxtext"`,
            `"torchrun"`, `"transformers"`, `"lightning"`, or a function of the project that takes a line and returns
            numbers by name, such as `{"step": 3, "loss": 0.5}`, or None. A class is made with `argv` first.
        metrics_file: File whose lines are read instead, once there are numbers in it; of a pattern the newest.
        **options: Options of `run`, except `debug`.

    Returns:
        A handle of the job, whose value is None.

    Raises:
        KineticError: The job could not be submitted.
    """
    client_only.require("command")
    from kinetic_orchestration.program.trainers.chosen import variables

    if isinstance(argv, str) or not argv or not all(isinstance(part, str) for part in argv):
        raise UsageError(f"a command is a list of strings, such as ['python', 'train.py'], not {argv!r}")
    checked = check_options(options_from(options))
    if checked.debug:
        raise UsageError(
            "debug=True waits in front of a function; for a command put the debugger into it: "
            "['python', '-m', 'debugpy', '--listen', '127.0.0.1:5678', '--wait-for-client', 'train.py'], "
            "where every user of the machine can then attach"
        )
    folder = os.path.abspath(os.fspath(cwd) if cwd is not None else os.getcwd())
    if not os.path.isdir(folder):
        raise UsageError(f"the command's folder {folder} does not exist")
    env = variables(metrics, metrics_file, folder)
    return _submitted(JobSpec(os.path.basename(argv[0]), checked, argv=tuple(argv), cwd=folder, env=env))


def _submitted(spec: JobSpec) -> JobHandle[Any]:
    from kinetic_orchestration.api.handle import announced, launched
    from kinetic_orchestration.jobs.request import draft

    request = draft(spec).open()
    return announced(launched(request), request.settings)
