"""Emulation is never a fallback: the parts of a launch that mean Google Cloud, and the refusals in place of emulation.

Pure. Keras Kinetic's own options (`project`, `zone`, `cluster`, `spot`) mean nothing by themselves in a program of its
kind, which runs on the local backend unchanged. In an orchestrator's task they mean Google Cloud or a cluster, and so
does every setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kinetic_orchestration.errors import NotEmulated, Unsupported, UsageError
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.backend_choice import asked_backend, by_rule, chosen, fitting, refusal_of
from kinetic_orchestration.plan.declare.choices import naming, told, ways
from kinetic_orchestration.plan.declare.cloud import Compute, TpuVm
from kinetic_orchestration.plan.declare.spec import (
    LOCAL,
    TPU_VM,
    JobSpec,
    Options,
)
from kinetic_orchestration.plan.values import TRAITS, Plan, traits_of

# Settings that nothing but Google Cloud understands. GOOGLE_CLOUD_PROJECT alone is none of them: it is set on many
# machines for other programs' sake.
OF_THE_CLOUD = (
    *("project", "zone", "zones", "service_account", "impersonate", "quota_project", "network", "subnetwork"),
    *("emulator", "emulator_grpc"),
)
_ELSEWHERE = ("default", "argument", "GOOGLE_CLOUD_PROJECT")
UNSET = "unset KINETIC_EMULATOR, KINETIC_EMULATOR_GRPC and STORAGE_EMULATOR_HOST"
HERE = "KINETIC_BACKEND=local (or backend='local')"
_OF_A_CHOICE = ("regions", "capacity")  # options that no other library has, so they mean what they say
_KINETICS = ("project", "zone", "cluster", "spot")
_OF_A_CHOICE = ("capacity", "regions")


def check_slice(spec: JobSpec, settings: Settings) -> None:
    """Refuse a slice that Google Cloud cannot run, for a job that would run there. Makes no request."""
    found = ways(spec.options)
    for one in found:
        with naming(told(one), found):
            if reason := refusal_of(chosen(one, settings).backend, one):
                helps = ""
                if len(found) > 1 and one.backend is None and not refusal_of(by_rule(one, settings).backend, one):
                    helps = f". Or leave {settings.sources['backend']} out: each choice then gets a backend that has it"
                raise Unsupported(reason + helps)


def check(spec: JobSpec, settings: Settings) -> None:
    """Refuse a job that means Google Cloud and would run on this machine, because the setting of its location is
    missing; and one that Google Cloud cannot run.
    """
    check_slice(spec, settings)
    named, on = asked_backend(spec.options, settings), chosen(spec.options, settings).backend
    _check_class(fitting(spec.options, on), on if traits_of(on) else settings.backend, settings)
    elsewhere = settings.backend != LOCAL or (named not in (None, TPU_VM) and traits_of(named) is not None)
    if elsewhere or is_asked_for(spec.options, settings):
        return
    if cluster := next((text for text in spec.meant if text.startswith("cluster=")), ""):
        raise NotEmulated(
            f"{spec.name} was not run: {cluster} means a cluster, and no backend that has any is named, so it would "
            "run on this machine instead. Name one: backend='kubernetes' or 'gke' (or KINETIC_BACKEND). To have it "
            f"emulated here: {HERE}"
        )
    bucket = store_address.bucket_path(settings.store) is not None
    found = list(dict.fromkeys((*spec.meant, *_of_options(spec.options), *_of_settings(settings))))
    if bucket:
        found.append(f"the store {settings.store}")
    if not found:
        return
    means = f"{spec.name} was not run: {', '.join(found)} {'mean' if len(found) > 1 else 'means'} Google Cloud"
    if reason := refusal_of(TPU_VM if named == TPU_VM else by_rule(spec.options, settings).backend, spec.options):
        raise Unsupported(f"{means}, and {reason}")
    missing = [
        *(() if settings.project else ("KINETIC_PROJECT=my-project (or project=)",)),
        *(() if bucket else ("KINETIC_STORE=gs://my-bucket/kinetic (or store=)",)),
    ]
    lacks = "no project" if bucket else f"{settings.store} is a folder of this machine, which its hosts cannot reach"
    raise NotEmulated(
        f"{means}, and {lacks}{' is named' if bucket else ''}, so it would run on this machine instead. Add what is "
        f"missing: {' and '.join(missing)}. To have it emulated here: {HERE}"
    )


def _check_class(options: Options, backend: str, settings: Settings) -> None:
    """Refuse options of another kind of cloud than the backend's. A local backend that was named ignores them."""
    traits = traits_of(backend)
    if options.cloud is None or traits is None or isinstance(options.cloud, traits.options or ()):
        return
    given = type(options.cloud)
    if is_asked_for(options, settings) or (given in (TpuVm, Compute) and backend == LOCAL):  # see `check`
        return
    wanted = [name for name, known in TRAITS.items() if known.options is given]
    named = " or ".join(f"backend={name!r}" for name in wanted) or "theirs with backend="
    raise UsageError(
        f"cloud={given.__name__}(…) has options of {' and '.join(wanted) or 'another backend'}, and this job runs on "
        f"{backend}: name {named} (or KINETIC_BACKEND), or leave them out"
    )


def is_asked_for(options: Options, settings: Settings) -> bool:
    """Return True for a local backend that was named, in the call or in a setting, and is not only the default."""
    named = settings.sources.get("backend", "default") != "default"
    return options.backend == LOCAL or (settings.backend == LOCAL and named)


def kinetics_own(options: Options) -> tuple[str, ...]:
    """The options of Keras Kinetic, and of how and where hardware is bought, that mean Google Cloud or a cluster,
    except in a program, which also runs unchanged without any."""
    names = (*_KINETICS, *_OF_A_CHOICE)
    return tuple(_written(name, getattr(options, name)) for name in names if getattr(options, name))


def check_hardware(plan: Plan, settings: Settings) -> None:
    """Refuse every emulation if the user excluded it. `plan` knows whether it is one."""
    if not (settings.require_hardware and plan.stands_in):
        return
    source = settings.sources.get("require_hardware", "")
    rule, allow = "KINETIC_REQUIRE_HARDWARE", "KINETIC_REQUIRE_HARDWARE=false"
    if source == "argument":
        rule, allow = "require_hardware=True", "require_hardware=False"
    elif source.startswith("["):
        rule = f"require_hardware of {source}"
    if not plan.traits.share_machine:
        way = UNSET
    else:
        way = "name a project and a store (KINETIC_PROJECT, KINETIC_STORE=gs://…), or an accelerator that is here"
    raise NotEmulated(
        f"{plan.name} was not run: hardware is required ({rule}), and {plan.slice.name} would be {plan.where}. To have "
        f"the hardware, {way}; to allow emulation, {allow}"
    )


def remark(plan: Plan, settings: Settings) -> str:
    """A remark for the first line of a job that a user might expect to run elsewhere; "" if none would."""
    if plan.project or settings.sources.get("project") != "GOOGLE_CLOUD_PROJECT":
        return ""
    return f" (GOOGLE_CLOUD_PROJECT={settings.project} alone means no cloud: that takes KINETIC_STORE=gs://… as well)"


def named_cloud_options(options: Options) -> tuple[str, ...]:
    """Return the fields of `cloud=` that were set."""
    if options.cloud is None:
        return ()
    cloud, silent = options.cloud, type(options.cloud)()
    return tuple(entry.name for entry in fields(cloud) if getattr(cloud, entry.name) != getattr(silent, entry.name))


def _of_options(options: Options) -> list[str]:
    if options.cloud == Compute():  # whose name alone says it
        return ["cloud=Compute()"]
    found = [_written(name, _plain(getattr(options.cloud, name))) for name in named_cloud_options(options)]
    return found + [_written(name, _plain(given)) for name in _OF_A_CHOICE if (given := getattr(options, name))]


def _of_settings(settings: Settings) -> list[str]:
    found = []
    for name in OF_THE_CLOUD:
        source = settings.sources.get(name, "default")
        if getattr(settings, name) and source not in _ELSEWHERE:
            found.append(source if not source.startswith("[") else f"{name} of {source}")
    return list(dict.fromkeys(found))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, list | tuple) else value


def _written(name: str, value: Any) -> str:
    return f"{name}={value!r}"
