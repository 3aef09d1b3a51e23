"""`doctor`: the settings of this machine, its checks, and with `--verify` every blob of the store and the home."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli import doctor as checks
from kinetic_orchestration.cli.output import note, show_checks, show_json, show_table, working
from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.cloud import Kubernetes, queues_of
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.cleanup import damaged_blobs
    from kinetic_orchestration.jobs.cleanup.damaged_blobs import Damage


def doctor(arguments: Namespace) -> int:
    spec = _spec(arguments)
    if arguments.role:
        return _print_role(arguments, spec)
    report = checks.examine(copies.environ(), spec, store=arguments.store, deployment=arguments.deployment)
    read = None
    if arguments.verify and report.settings:
        report, read = _verify(arguments, report)
    if arguments.json:
        blobs = (
            {} if read is None else {"blobs": {**read._asdict(), "damaged": [each._asdict() for each in read.damaged]}}
        )
        show_json(asdict(report) | blobs | {"ok": report.ok})
        return codes.OK if report.ok else codes.ENVIRONMENT
    if report.settings:
        settings = checks.concerning(report.settings)
        show_table(("setting", "value", "from"), [(entry.name, entry.value or "-", entry.source) for entry in settings])
        print()
    show_checks(report.checks)
    if read is not None and read.damaged:
        print()
        show_table(
            ("damaged", "where", "found", "jobs"),
            [(each.what, each.place, each.why, _jobs(each)) for each in read.damaged],
        )
        for what, fix in {each.what: each.fix for each in read.damaged}.items():
            print(f"\n{what}: {fix}")
    sys.stdout.flush()
    failed = sum(check.state == checks.FAILED for check in report.checks)
    note("all is well" if report.ok else f"{failed} of {len(report.checks)} checks failed")
    return codes.OK if report.ok else codes.ENVIRONMENT


def _spec(arguments: Namespace) -> JobSpec | None:
    """Return the job for which the platform is checked; None if none is described."""
    if arguments.target:
        from kinetic_orchestration.cli.commands.planning import spec_of

        spec = spec_of(arguments)
        return replace(spec, options=replace(spec.options, spot=True)) if arguments.spot else spec
    if arguments.spot and not arguments.accelerator:
        raise UsageError("--spot asks how an accelerator comes: name it, too, with --accelerator or FILE:FUNCTION")
    if not (arguments.accelerator or arguments.queue):
        return None
    cloud = Kubernetes(queue=arguments.queue) if arguments.queue else None
    return JobSpec("a job", Options(accelerator=arguments.accelerator or "cpu", spot=arguments.spot, cloud=cloud))


def _print_role(arguments: Namespace, spec: JobSpec | None) -> int:
    """Print the rights of a submitter of such jobs: an administrator grants them, who has no store and no key."""
    from kinetic_orchestration.plan.planner import backend_of, with_queue
    from kinetic_orchestration.platforms.kubernetes import manifest, rights
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
    from kinetic_orchestration.platforms.registry import open_backend

    options = Options() if spec is None else spec.options
    settings = load(cluster=options.cluster, namespace=options.namespace)
    name = backend_of(options, settings)
    backend = open_backend(name if name == "gke" else "kubernetes", settings)
    assert isinstance(backend, KubernetesBackend)
    secrets = bool(options.capture_env_vars) and name != "gke"  # which has Secret Manager
    cloud = options.cloud if isinstance(options.cloud, Kubernetes) else Kubernetes()
    queue = bool(queues_of(with_queue(cloud, settings).queue))
    named = tuple(cloud.namespaces) or (backend.usual_place().rpartition("/")[2],)
    namespaces = dict.fromkeys((*named, *settings.namespaces))  # the reaper looks into all of them
    granted = rights.of(secrets=secrets, queue=queue)
    printed = [each for namespace in namespaces for each in rights.role(granted, namespace, arguments.role)]
    if arguments.json:
        show_json({"apiVersion": "v1", "kind": "List", "items": printed})
    else:
        print("\n---\n".join("\n".join(manifest.lines_of(each)) for each in printed))
    return codes.OK


def _verify(arguments: Namespace, report: checks.Report) -> tuple[checks.Report, damaged_blobs.Report | None]:
    """Doctor's report with a check that every blob still has its digest, and the result of that check."""
    from kinetic_orchestration.jobs.cleanup import damaged_blobs

    settings = load(store=arguments.store, deployment=arguments.deployment)
    try:
        with working("reading every blob") as progress:
            read = damaged_blobs.examine(settings, progress)
    except KineticError as error:
        check = checks.Check("blobs", checks.FAILED, "they could not be read", str(error))
        return replace(report, checks=(*report.checks, check)), None
    state = checks.FAILED if read.damaged else checks.OK
    fix = "see the table of what is damaged, and what stands below it" if read.damaged else ""
    return replace(report, checks=(*report.checks, checks.Check("blobs", state, read.summary, fix))), read


def _jobs(damage: Damage) -> str:
    more = f", and {damage.many - len(damage.jobs)} more" if damage.many > len(damage.jobs) else ""
    return ", ".join(damage.jobs) + more or "-"
