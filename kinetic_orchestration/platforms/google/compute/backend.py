"""VMs of Compute Engine, one for each host of an attempt: the verbs, each bounded and idempotent.

The create calls are made by `request`, and by `slices` for TPUs that are linked; errors are interpreted by `causes`
and states by `states`, and `client` makes the calls. This module only joins them: `verbs.make`, `verbs.look` and
`verbs.free` do what it is asked for, for VMs that are created one by one and for those of groups alike. VMs are found
by the names that follow from their attempt; what is remembered here (`verbs.memory`) only saves calls, and says more of
VMs that were seen before they were gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.google import api_errors, vms
from kinetic_orchestration.platforms.google.compute import causes, preflight, request, slices
from kinetic_orchestration.platforms.google.compute.client import Instances, Refused
from kinetic_orchestration.platforms.google.compute.verbs.free import ZONE, Free
from kinetic_orchestration.platforms.google.compute.verbs.look import Look, path_of
from kinetic_orchestration.platforms.google.compute.verbs.make import Make
from kinetic_orchestration.platforms.google.compute.verbs.memory import Memory
from kinetic_orchestration.platforms.google.rest.kept_secrets import KeptSecrets
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.platforms.shared.findings import Finding
from kinetic_orchestration.platforms.shared.orders import orders_of
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.platforms.shared.rate_limit import pace_of
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system.parallel import REQUESTS

NO_ZONE = "no zone is known for this accelerator: name some with cloud=Compute(zones=[…]) or KINETIC_ZONES"
MOST_LOGS = 3  # serial logs that a reason contains the end of: what keeps many VMs from booting is often the same
LAST_LINES = 25  # of each
MOST_LETTERS = 3000  # of all of them


class ComputeBackend:
    kind = "compute"
    charges = shared = True
    parallel = REQUESTS

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api = Instances(settings)
        self._secrets = KeptSecrets(settings)
        self._memory = Memory((settings.emulator, f"compute/{settings.project}"))
        self._look = Look(settings, self._api, self._memory)
        self._make = Make(settings, self._api, self._memory, self._look)
        self._free = Free(settings, self._api, self._memory)

    # ---- before the create call

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def check(self, plan: Plan) -> None:
        request.check(plan)
        places.first(vms.zones_of(plan), NO_ZONE)

    def require(self, plan: Plan) -> None:
        preflight.require(self._settings, self._api, plan)

    def examine(self, plan: Plan) -> Iterator[Finding]:
        """Check all that a job with this plan needs, for a diagnosis."""
        return preflight.examine(self._settings, self._api, plan)

    def prepare(self) -> None:
        self._api.prepare()

    def emulates(self, slice_: Slice) -> bool:
        return bool(self._settings.emulator)

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        asked, seed = vms.zones_of(plan), f"{job_id}-{attempt}"
        choice = places.first(asked, NO_ZONE)
        if previous is not None:
            stay, refusal = bool(plan.cloud.get("reservation")), self.refusal(plan, previous)
            ordered = causes.hinted(asked, previous.reason, str(previous.placement["zone"]))
            choice = places.following(ordered, previous, seed, refusal, patience=plan.zone_patience, stay=stay)
        placement = {
            "backend": self.kind,
            "project": plan.project,
            "zone": choice.place,
            "name": names.slice_of(plan.store, plan.deployment, job_id, attempt),
            "hosts": plan.machines,
            "slices": plan.slices,
            "model": request.model_of(plan),
            **({"grouped": True} if request.needs_groups(plan) else {}),
            **places.history(choice, previous),
        }
        self._memory.chosen(placement)
        return placement

    def refusal(self, plan: Plan, past: Past) -> Refusal:
        return api_errors.refusal_of(vms.zones_of(plan), past, causes.recall)

    def dry_run(self, plan: Plan) -> str:
        """The create calls that the first attempt would make, as text for users."""
        placement = self.place(plan, "job-000000000000", 1)
        shown = slices.dry_run if request.is_grouped(placement) else request.dry_run
        return shown(plan, placement)

    # ---- the create call

    def submit(self, asked: Submission) -> str:
        """Make what does not exist. What one of it is refused for ends the attempt, and so frees the others."""
        if self._memory.is_throttled:
            return f"waiting: {causes.RATE}"
        try:
            self._secrets.keep(asked)
        except BackendError as trouble:
            if trouble.cause in places.WITHOUT_HOSTS:  # an error of Secret Manager, which no other zone helps against
                return f"waiting: {trouble}"
            raise
        self._memory.asked_for(asked.intent.placement)
        return self._make.make(asked)

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        self._secrets.keep(asked)
        placement = asked.intent.placement
        grouped = request.is_grouped(placement)
        resource = (slices.group_path if grouped else path_of)(placement, placement["name"])
        return {**orders_of(asked), "resource": resource}

    # ---- observing

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        return self._look.observe(placements)

    def last_words(self, placement: Mapping[str, Any], machines: Sequence[int]) -> str:
        """The ends of the serial logs of the first of these VMs: the only logs of boots that never came to an end."""
        asked = [name for number, name in enumerate(request.members_of(placement)) if number in machines][:MOST_LOGS]
        found: list[str] = []
        for name in asked:
            try:
                log = self._api.serial_end(path_of(placement, name))
            except (Refused, CredentialsError):
                break  # nor is another one told
            if lines := [line.rstrip() for line in log.splitlines() if line.strip()]:
                shown = "\n".join(lines[-LAST_LINES:])[-(MOST_LETTERS // len(asked)) :]
                found.append(f"the serial log of {name} ends so:\n{shown}")
        return "\n".join(found)

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        """One for all zones of a project, as one list shows them all."""
        return pace_of({"project": f"compute/{placement['project']}", "zone": ""})

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        """Return True for a zone of the settings' project: no list says in which zones there are GPUs."""
        return placement["project"] == self._settings.project and bool(ZONE.fullmatch(placement["zone"]))

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Hosts see the cancel record by themselves; what waits for capacity is released once the attempt is closed."""

    # ---- release

    def release(self, placement: Mapping[str, Any]) -> Freed:
        return self._free.release(placement)

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """All placements of this deployment, in all zones of the project, of which anything is there."""
        return self._free.leftovers()

    def secrets(self) -> Iterator[tuple[str, str]]:
        return self._secrets.secrets()

    def forget(self, secret: str, job_id: str) -> bool:
        return self._secrets.forget(secret, job_id)
