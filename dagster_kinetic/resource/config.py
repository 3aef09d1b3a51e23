"""The core's groups of options as Dagster's Config, so that YAML, the launchpad and EnvVar can set them; and the
options of a job that one launch may change, by run config or by a tag.

Knows their names and types. The core defines their meaning and checks them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dagster as dg
from pydantic import Field, ValidationError, field_validator, model_validator

from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.checks.options import check_part
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, accelerators_of, form_of, non_default
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm, refuse_gone
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile

TAG = "dagster-kinetic/config"  # of an op, or of a run: a KineticRunConfig as JSON


class _Group(dg.Config):
    @model_validator(mode="before")
    @classmethod
    def _from_the_core(cls, given: Any) -> Any:
        """Convert a value of Python code: the core's own value, or a number of seconds where a text may have a unit."""
        if dataclasses.is_dataclass(given) and not isinstance(given, type):
            given = non_default(given)
        if not isinstance(given, Mapping):
            return given
        refuse_unknown(cls.__name__, cls.model_fields, given)
        return {name: _as_config(cls, name, value) for name, value in given.items()}


def refuse_unknown(whose: str, names: Iterable[str], given: Any) -> None:
    """Dagster drops what it does not know, and a misspelt bound would bound nothing."""
    if not isinstance(given, Mapping):
        return
    known = list(names)
    refuse_gone(whose, given)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"
            raise UsageError(f"{whose} has no {name!r}: {hint}")


def _as_config(kind: type[dg.Config], name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    field = kind.model_fields.get(name)
    is_text = field is not None and "str" in str(field.annotation)
    return str(value) if is_text and isinstance(value, int | float) and not isinstance(value, bool) else value


def with_text(given: Any, name: str) -> Any:
    """Return the settings with a number of seconds as text, where a text may have a unit."""
    value = given.get(name) if isinstance(given, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {**given, name: str(value)} if is_number else given


class LimitsConfig(_Group):
    """Bounds of a job. A duration is a number of seconds, or has a unit: 90s, 15m, 2h, 1d."""

    provision: str | None = Field(default=None, description="Waiting for hardware.")
    run: str | None = Field(default=None, description="One attempt.")
    total: str | None = Field(default=None, description="All attempts together.")
    stall: str | None = Field(default=None, description="Without progress.")
    cost: float | None = Field(default=None, description="Dollars, over all attempts.")

    @field_validator("cost", mode="before")
    @classmethod
    def _dollars(cls, cost: Any) -> Any:
        """Refuse an amount in a text, such as one of another currency, with what to write."""
        if isinstance(cost, str):
            try:
                return float(cost)
            except ValueError:
                from kinetic_orchestration.plan.hardware.cost import check_usd

                check_usd(cost)
        return cost

    def to_core(self) -> Limits:
        return Limits(**_given(self))


class RetryConfig(_Group):
    """Number of failures of each kind that a job survives, on new hosts and with the same checkpoints."""

    user: int = Field(default=0, description="Of its own code.")
    preemption: int = Field(default=100, description="Spot capacity that was taken back.")
    infra: int = Field(default=3, description="Of hosts and of what they run on.")

    def to_core(self) -> Retry:
        return Retry(**_given(self))


class TpuVmConfig(_Group):
    """Cloud TPU options shared by a deployment's jobs."""

    reservation: str = Field(default="", description="A reservation to use.")
    network: str = Field(default="", description="The network of the hosts; the project's default one if not given.")
    subnetwork: str = Field(default="", description="Of a shared VPC: projects/HOST/regions/REGION/subnetworks/NAME.")
    external_ips: bool = Field(default=True, description="Whether hosts have public addresses.")
    secure_boot: bool = Field(default=False, description="Whether hosts boot with Secure Boot.")
    runtime_version: str = Field(
        default="", description="The VM image; the one that suits the generation if not given."
    )
    service_account: str = Field(default="", description="Whose rights the hosts have.")
    tags: list[str] = Field(default=[], description="Network tags of the hosts.")
    labels: dict[str, str] = Field(default={}, description="Labels of the cloud's resources.")
    quota_project: str = Field(default="", description="The project that API requests are counted against.")

    def to_core(self) -> TpuVm:
        return TpuVm(**_given(self))


class ComputeConfig(_Group):
    """Options of VMs of Compute Engine shared by a deployment's jobs."""

    hosts: int = Field(default=1, description="How many VMs have the accelerator's GPUs each, joined over TCP.")
    reservation: str = Field(default="", description="A reservation to take the VMs from.")
    reservation_bound: bool = Field(default=False, description="Whether the VMs end with their reservation.")
    flex_start: bool = Field(default=False, description="Whether Google gives VMs when it has some, for 7 days.")
    network: str = Field(default="", description="The network of the VMs; the project's default one if not given.")
    subnetwork: str = Field(default="", description="Of a shared VPC: projects/HOST/regions/REGION/subnetworks/NAME.")
    external_ips: bool = Field(default=True, description="Whether VMs have public addresses.")
    secure_boot: bool = Field(default=False, description="Whether VMs boot with Secure Boot.")
    image: str = Field(default="", description="Image of the boot disk; the one for the hardware if not given.")
    disk_gib: int = Field(default=0, description="Size of the boot disk in GiB; 0 for what suits the hardware.")
    disk_type: str = Field(default="", description="Type of the boot disk; the one for the hardware if not given.")
    service_account: str = Field(default="", description="Whose rights the VMs have.")
    tags: list[str] = Field(default=[], description="Network tags of the VMs.")
    labels: dict[str, str] = Field(default={}, description="Labels of the cloud's resources.")
    quota_project: str = Field(default="", description="The project that API requests are counted against.")

    def to_core(self) -> Compute:
        return Compute(**_given(self))


class KubernetesConfig(_Group):
    """Options of the kubernetes and gke backends shared by a deployment's jobs."""

    clusters: list[str] = Field(default=[], description="Contexts of the kubeconfig, the first choice first.")
    namespaces: list[str] = Field(default=[], description="Namespaces to try in each of them, in order.")
    hosts: int = Field(
        default=1,
        description="How many nodes have the accelerator's GPUs each, joined over TCP; or 2 for v5e-8 and v6e-8.",
    )
    queue: str = Field(default="", description="Kueue's local queue that admits the pods; several: a,b.")
    priority_class: str = Field(default="", description="Kueue's priority class in that queue.")
    reservation: str = Field(default="", description="A reservation of GKE to take machines from.")
    flex_start: bool = Field(default=False, description="Whether GKE gives machines when it has some, for 7 days.")
    queued_provisioning: bool = Field(default=False, description="Whether the queue asks for all of these at once.")
    service_account: str = Field(default="", description="The Kubernetes service account of the pods.")
    node_selector: dict[str, str] | None = Field(default=None, description="Labels that nodes must have.")
    tolerations: list[str] = Field(default=[], description="Further taints: key, key=value or key=value:NoSchedule.")
    env_from: list[str] = Field(default=[], description="Secrets whose entries become variables of the pods.")
    image_pull_secrets: list[str] = Field(default=[], description="Secrets with which a private image is pulled.")
    run_as_user: int = Field(default=0, description="Number of the user as whom pods run; 0 for the image's own.")
    labels: dict[str, str] = Field(default={}, description="Labels of the cluster's objects.")

    @field_validator("queue", mode="before")
    @classmethod
    def _joined(cls, queue: Any) -> Any:
        return ",".join(queue) if isinstance(queue, list | tuple) else queue

    def to_core(self) -> Kubernetes:
        return Kubernetes(**_given(self))


class ProfileConfig(_Group):
    """Steps or time of a training that hosts trace for XProf."""

    steps: int | None = Field(default=None, description="So many steps of kinetic.Training or KineticCallback.")
    seconds: str | None = Field(default=None, description="Instead of steps, so much time: 30s.")
    after: str | None = Field(default=None, description="How many steps come before it (5), or how much time (2m).")
    hosts: str = Field(default="0", description="0 is host 0, all are all.")

    @model_validator(mode="before")
    @classmethod
    def _from_a_number(cls, given: Any) -> Any:
        """Or a text, as the core takes them."""
        return profile.asked(given) or {} if isinstance(given, int | str) else given

    def to_core(self) -> Profile | None:
        """None if nothing is asked for."""
        given: dict[str, Any] = _given(self)
        for name in given.keys() & {"after", "hosts"}:
            given[name] = int(given[name]) if given[name].strip().isdigit() else given[name]
        return Profile(**given) if given else None


def _given(config: dg.Config) -> dict[str, Any]:
    """The settings that differ from their defaults: only these override the job's own values."""
    return {
        name: getattr(config, name)
        for name, field in type(config).model_fields.items()
        if getattr(config, name) != field.default
    }


class KineticRunConfig(dg.Config):
    """Overrides for one launch of where its jobs run; they take precedence over the code and the resource."""

    accelerator: Any = Field(
        default=None,
        description="Another slice, such as v5e-16, or a list of them, of which any will do; with ways, regions or "
        "limits of its own, one is {accelerator: v5e-16, capacity: [spot]}.",
    )
    spot: bool | None = Field(default=None, description="Whether to ask for spot capacity.")
    capacity: list[str] = Field(default=[], description="Ways of buying, the first choice first: spot, on-demand, ….")
    regions: list[str] = Field(default=[], description="Regions to look for capacity in, the first choice first.")
    zones: list[str] = Field(default=[], description="Where to look for capacity, the first choice first.")
    by: str | None = Field(default=None, description="What decides among several: order, price or start.")
    race: int | None = Field(default=None, description="How many places are asked at once.")
    keep: str | None = Field(default=None, description="How long the slice stays warm for the next job, such as 10m.")
    priority: int | None = Field(default=None, description="Jobs of a higher one have their turn first.")
    reshard: bool | None = Field(default=None, description="Whether it goes on from checkpoints of other sizes.")
    global_batch: int | None = Field(default=None, description="Samples of one step on all hosts together.")
    cluster: str | None = Field(default=None, description="Another cluster: a context of the kubeconfig, or of GKE.")
    namespace: str | None = Field(default=None, description="Another namespace of the cluster.")
    limits: LimitsConfig = Field(default=LimitsConfig(), description="Other bounds; those not named stay.")
    profile: ProfileConfig = Field(default=ProfileConfig(), description="A trace of this run for XProf.")

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, given: Any, make: Callable[[Any], KineticRunConfig]) -> KineticRunConfig:
        refuse_unknown(cls.__name__, cls.model_fields, given)
        if isinstance(given, Mapping) and "accelerator" in given:
            given = {**given, "accelerator": _accelerator(given["accelerator"])}
        made = make(with_text(given, "keep"))
        if not is_open(given):
            asked = made.to_options()
            check_part({name: asked[name] for name in asked if name != "cloud"})
        return made

    def to_options(self) -> dict[str, Any]:
        """The given settings as options of the core."""
        limits = _given(self.limits)
        asked = {
            "accelerator": accelerators_of(self.accelerator),
            "spot": self.spot,
            **{name: value for name in OF_CAPACITY if (value := getattr(self, name)) != []},
            "cloud": TpuVm(zones=tuple(self.zones)) if self.zones else None,
            "cluster": self.cluster,
            "namespace": self.namespace,
            "limits": Limits(**limits) if limits else None,
            "profile": self.profile.to_core(),
        }
        return {name: value for name, value in asked.items() if value is not None}

    def to_tags(self) -> dict[str, str]:
        """The settings as a tag of a run, of a schedule's RunRequest or of a job; it applies to each of the
        run's jobs."""
        if is_open(self):
            raise UsageError(
                "a tag is text that is written now, and an EnvVar has its value in the run only: give to_tags() the "
                "value itself, such as os.environ['NAME']"
            )
        groups = {name: _given(group) for name in ("limits", "profile") if _given(group := getattr(self, name))}
        asked = {**_given(self), **groups}
        return {TAG: json.dumps(asked)}


def _accelerator(given: Any) -> Any:
    """Return the accelerators of a launch as JSON. Dagster replaces {env: NAME} by its value in fields of one type."""
    if isinstance(given, list | tuple):
        return [_accelerator(one) for one in given]
    if not (isinstance(given, Mapping) and set(given) == {"env"}):
        return given if is_open(given) else form_of(given)
    if given["env"] not in os.environ:
        raise UsageError(f"accelerator is the variable {given['env']!r}, which is not set where the step runs")
    return os.environ[given["env"]]


def from_tag(tag: Any, whose: str) -> KineticRunConfig:
    """Parse the value of a tag; the error names its owner, `whose`."""
    try:
        given = json.loads(tag) if isinstance(tag, str) else tag
    except ValueError:
        given = None
    if not isinstance(given, Mapping):
        raise UsageError(
            f"the tag {TAG} of {whose} is {str(tag)[:200]!r}, and should be an object in JSON with some of "
            f"{', '.join(KineticRunConfig.model_fields)}, such as {json.dumps({'spot': False})}"
        )
    try:
        return KineticRunConfig(**given)
    except (KineticError, ValidationError) as error:
        said = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error)}
        where = ".".join(str(part) for part in said.get("loc", ()))
        raise UsageError(f"the tag {TAG} of {whose} cannot be: {f'{where}: ' if where else ''}{said['msg']}") from error


def is_open(value: Any) -> bool:
    """Return True if it contains an EnvVar, whose value is not known until the run."""
    if isinstance(value, dg.Config):
        return any(is_open(getattr(value, name)) for name in type(value).model_fields)
    if isinstance(value, Mapping):
        return any(map(is_open, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_open, value))
    return isinstance(value, dg.EnvVar) or type(value).__name__ == "IntEnvVar"
