"""Google's VMs, whichever of its APIs creates them: contents and print of a create call, zones, and ownership. Pure."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.records import reserved_zone
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.ownership import Owned
from kinetic_orchestration.protocol import names, wire

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
METADATA_LIMIT = 256 << 10  # bytes of one metadata value
SHORTEST_WAIT = 1.0  # seconds; the API of queued resources rejects less

_END_OF_PROGRAM = "END_OF_KINETIC_BOOT"


def request_id(intent: Intent, name: str = "") -> str:
    """The same for every call that the same intent leads to, so that the API makes one of them.

    Args:
        intent: The attempt.
        name: What the call creates; by default, what the placement names.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{intent.boot}/{name or intent.placement['name']}"))


def valid_for(plan: Plan, intent: Intent) -> float:
    """The seconds for which the request may wait in its zone's queue; 0: unlimited.

    No longer than the job may still wait for hardware, and with other zones left, no longer than the limit of one zone.
    """
    left = [float(plan.zone_patience)] if plan.zone_patience and _elsewhere(plan, intent.placement) else []
    if plan.limits.provision:
        left.append(float(plan.limits.provision) - (intent.created + intent.wait - intent.since))
    return max(SHORTEST_WAIT, min(left)) if left else 0.0


def _elsewhere(plan: Plan, placement: Mapping[str, Any]) -> bool:
    if plan.choices:  # whoever chose it knew whether another candidate is left
        return bool(placement.get("patience", True))
    return not plan.cloud.get("reservation") and len(plan.zones) > 1 + len(placement.get("dropped", ()))


def zones_of(plan: Plan) -> Sequence[str]:
    """Return the zones to try: that of a reservation which is given by its whole path, else the plan's."""
    reserved = reserved_zone(plan)
    return (reserved,) if reserved else plan.zones


def name_of(settings: Settings, owned: Owned) -> str:
    """Return the name that this deployment gives to the placement of the job and attempt in a resource's labels."""
    return names.slice_of(settings.store, settings.deployment, owned.job, owned.attempt, max(0, owned.rival))


def is_ours(settings: Settings, name: str, labels: Mapping[str, str]) -> bool:
    """Return True if this deployment gives that name to the job and attempt in the labels."""
    owned = ownership.owned(labels)
    return owned is not None and name == name_of(settings, owned)


def adopt(resource: str, labels: Mapping[str, str], asked: Submission, look: str) -> None:
    """Accept an existing resource as the requested one, if its labels match.

    Args:
        resource: Its path.
        labels: Its labels.
        asked: The attempt that requested it.
        look: The command that shows it.

    Raises:
        BackendError: It belongs to somebody else.
    """
    owned, wanted = ownership.owned(labels), (asked.job_id, asked.intent.attempt, asked.spec_digest[:20])
    if owned is not None and (owned.job, owned.attempt, owned.spec) == wanted:
        return
    whose = f"job {owned.job}, attempt {owned.attempt}" if owned is not None else "somebody else, without our labels"
    raise BackendError(
        f"{resource} exists already and belongs to {whose}: look at it with {look}, and delete it if nobody needs it",
        wire.CONFIGURATION,
    )


def network_of(cloud: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, str]:
    """The paths of the network and the subnetwork that a job's options name."""
    found: dict[str, str] = {}
    project = placement["project"]
    if network := cloud.get("network"):
        found["network"] = whole(network if "/" in network else f"global/networks/{network}", project)
    if subnetwork := cloud.get("subnetwork"):
        named = f"regions/{region_of(placement['zone'])}/subnetworks/{subnetwork}"
        found["subnetwork"] = whole(subnetwork if "/" in subnetwork else named, project)
    return found


def whole(path: str, project: str) -> str:
    """Return a path as Google's calls have it, of one that may be a URL, or have no project."""
    _, found, rest = path.partition("projects/")
    return found + rest if found else f"projects/{project}/{path}"


def startup_script() -> str:
    """The script that each host runs as root at every boot: a program of its own, which arms the deadline before all
    else."""
    program = (Path(__file__).parents[2] / "host" / "machine" / "bootstrap.py").read_text(encoding="utf-8")
    assert _END_OF_PROGRAM not in program
    script = f"""\
#!/bin/sh
# Starts the agent of a kinetic-orchestration job. Runs at every boot, and again at any time without harm.
# Where the disk is full it lies in memory: it has a slice to delete.
for at in "${{KINETIC_ROOT:-}}/var/lib/kinetic" "${{KINETIC_ROOT:-}}/dev/shm/kinetic"; do
mkdir -p "$at"
cat > "$at/boot.py.new" <<'{_END_OF_PROGRAM}' && mv "$at/boot.py.new" "$at/boot.py" && exec python3 -I "$at/boot.py"
{program.rstrip()}
{_END_OF_PROGRAM}
done
exit 1
"""
    assert len(script.encode()) < METADATA_LIMIT
    return script


def would_submit(plan: Plan, placement: Mapping[str, Any]) -> Submission:
    """The first attempt of a job that does not exist yet, for a dry run."""
    limit = sum(float(value or 0.0) for value in (plan.limits.provision, plan.limits.run))
    intent = Intent(1, "0" * 16, dict(placement), limit, 0.0)
    staged = Staged(None, "", "", (), (), (), (), None, "")
    return Submission(plan, staged, "job-000000000000", "0" * 64, intent, {})


def shown_metadata(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Metadata for users: complete, except that the program is replaced by its size."""
    script = metadata["startup-script"].encode()
    said = f"({len(script)} bytes, sha256 {hashlib.sha256(script).hexdigest()[:12]})"
    return {**metadata, "startup-script": said, "kinetic": json.loads(metadata["kinetic"])}


def shown(request: Mapping[str, Any]) -> str:
    """A request for users, a line for each of its values."""
    return "\n".join(_lines(request, ""))


def _lines(value: Any, indent: str) -> Iterable[str]:
    items = value.items() if isinstance(value, Mapping) else [("-", entry) for entry in value]
    for key, entry in items:
        head = f"{indent}{key}" if key == "-" else f"{indent}{key}:"
        if isinstance(entry, dict | list) and entry:
            yield head
            yield from _lines(entry, indent + "  ")
        else:
            yield f"{head} {json.dumps(entry, ensure_ascii=False)}"
