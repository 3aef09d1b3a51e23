"""`init --kubernetes` and `deinit --kubernetes`: a namespace of a cluster is set up for jobs, and taken back."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import NamedTuple

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, show_json, show_table
from kinetic_orchestration.errors import BackendError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.platforms.kubernetes import gke, rights, setup
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.setup import CHANGED, MADE, THERE, Removal, Step, Wish
from kinetic_orchestration.protocol import wire

_BECOMES = {MADE: "made", CHANGED: "given what it lacks", THERE: "there"}


_JOBS = f'Jobs name the account of their pods: cloud=kinetic.Kubernetes(service_account="{setup.HOSTS}").'


class _Where(NamedTuple):
    settings: Settings
    cluster: str
    namespace: str

    @property
    def context(self) -> str:
        """The context of the kubeconfig; "" where the cluster is found in another way."""
        return self.cluster if self.settings.backend != "gke" and self.cluster != "in-cluster" else ""


def init(arguments: Namespace) -> int:
    """Show what is to be made, ask, and make it; a second run only reads."""
    where = _where(arguments)
    wish = setup.checked(_wish(arguments, where.namespace))
    if arguments.dry_run:
        return _print(wish, where, as_json=arguments.json)
    with _opened(where) as api:
        steps = setup.planned(api, wish)
        if not arguments.json:
            _show(steps, where)
        todo = [step for step in steps if step.state != THERE]
        if todo:
            _require(api, todo, where)
            if not (arguments.yes or _agreed("init makes objects in a cluster", "Make this?")):
                note("nothing was made")
                return codes.OK
        done = [setup.carry_out(api, step, wish) if step in todo else step for step in steps]
    if arguments.json:
        show_json({**_place(where), "objects": [_row(step) for step in done], "next": _next(wish, where)})
    else:
        print("\nall of it is there. Next:\n" if todo else "\nnothing was left to do. Next:\n")
        print("".join(f"  {line}\n" for line in _next(wish, where)) + f"\n{_JOBS}")
        sys.stdout.flush()
    return codes.OK


def deinit(arguments: Namespace) -> int:
    """Show what was made, ask, and remove it; say what stays, and why."""
    where = _where(arguments)
    with _opened(where) as api:
        removals = setup.removals(api, where.namespace)
        going = [each for each in removals if not each.stays]
        if not arguments.json:
            _show_removals(removals, where)
        if going and not arguments.dry_run:
            if not (arguments.yes or _agreed("deinit removes objects from a cluster", "Remove this?")):
                note("nothing was removed")
                return codes.OK
            for each in going:
                setup.remove(api, each)
    if arguments.json:
        rows = [{"object": each.name, "stays": each.stays} for each in removals]
        show_json({**_place(where), "objects": rows, "removed": not arguments.dry_run})
    elif going and not arguments.dry_run:
        print("\nit is removed; what stays is named above" if len(going) < len(removals) else "\nall of it is removed")
        sys.stdout.flush()
    return codes.OK


def _where(arguments: Namespace) -> _Where:
    from kinetic_orchestration.platforms.registry import open_clusters

    settings = load(cluster=arguments.cluster or None, namespace=arguments.namespace or None)
    cluster, _, namespace = open_clusters(settings).place(settings.cluster, settings.namespace).rpartition("/")
    return _Where(settings, cluster, namespace)


def _wish(arguments: Namespace, namespace: str) -> Wish:
    granted = rights.of(secrets=arguments.secrets, queue=bool(arguments.queue))
    submitters = tuple(arguments.submitter) or (setup.SUBMITTER,)
    return Wish(namespace, submitters, tuple(granted), arguments.google_account)


def _opened(where: _Where) -> Api:
    from kinetic_orchestration.platforms.kubernetes.preflight import HURRY
    from kinetic_orchestration.platforms.registry import open_clusters

    return Api(open_clusters(where.settings).access(where.cluster), timeout=HURRY * 2)


def _place(where: _Where) -> dict[str, str]:
    return {"cluster": where.cluster, "namespace": where.namespace}


def _print(wish: Wish, where: _Where, *, as_json: bool) -> int:
    """Print what would be made, and the lines of kubectl that make it. Nothing is sent."""
    lines = setup.commands(wish, where.context)
    if as_json:
        objects = [dict(each) for each in setup.objects(wish)]
        show_json({**_place(where), "objects": objects, "commands": [*lines, *_identity(wish, where)]})
    else:
        print(setup.yaml(wish, [*lines, *_identity(wish, where)]), end="")
        sys.stdout.flush()
    return codes.OK


def _row(step: Step) -> dict[str, str]:
    return {"object": step.name, "state": step.state}


def _show(steps: Sequence[Step], where: _Where) -> None:
    show_table(("what", "is"), [(step.name, _BECOMES[step.state]) for step in steps])
    print(f"\nIn the namespace {where.namespace} of the cluster {where.cluster}.")
    sys.stdout.flush()


def _show_removals(removals: Sequence[Removal], where: _Where) -> None:
    if removals:
        show_table(("what", "is"), [(each.name, f"stays: {each.stays}" if each.stays else "goes") for each in removals])
        print(f"\nIn the cluster {where.cluster}.")
    else:
        print(f"the cluster {where.cluster} has no namespace {where.namespace}: there is nothing to remove")
    sys.stdout.flush()


def _require(api: Api, steps: Sequence[Step], where: _Where) -> None:
    lacking = setup.lacks(api, steps)
    if lacking:
        raise BackendError(
            f"nothing was made: in {where.cluster}, you may not {', '.join(lacking)}. Have an administrator of the "
            "cluster run this, or apply what it prints: kinor init --kubernetes --dry-run",
            wire.CONFIGURATION,
        )


def _agreed(what: str, question: str) -> bool:
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(f"{what}, and there is no terminal to ask on: add --yes, or --dry-run to see what it would do")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _next(wish: Wish, where: _Where) -> list[str]:
    """The commands that follow: settings, and what Google has to grant."""
    backend = "gke" if where.settings.backend == "gke" else "kubernetes"
    return [
        f"export KINETIC_BACKEND={backend} KINETIC_NAMESPACE={wish.namespace}",
        *_identity(wish, where),
        "kinor doctor",
    ]


def _identity(wish: Wish, where: _Where) -> list[str]:
    """The lines of gcloud that let pods act as who they are to Google, and use the bucket, where both are known."""
    known = gke.cluster_of(where.cluster)
    project = known.project if known is not None else where.settings.project if where.settings.backend == "gke" else ""
    if not project:
        return []
    identity = gke.Identity(f"{project}.svc.id.goog", wish.namespace, setup.HOSTS, wish.google)
    store = where.settings.store
    bucket = "/".join(store.split("/")[:3]) if store.startswith("gs://") else ""
    return [*([identity.let_act()] if wish.google else []), *([identity.let_use(bucket)] if bucket else [])]
