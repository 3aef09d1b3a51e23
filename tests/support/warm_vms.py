"""Slices that are kept, on VMs by the startup script alone: the records of a client are written by the real protocol."""

from __future__ import annotations

import time
from typing import Any

from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import FREE, Lease
from tests.support.on_vms import Attempt, Site
from tests.support.waits import wait_until

KEY = "6b" * 32
SHAPE = "ab" * 32


def shell(site: Site, script: str, *, keep: float = 600.0, rival: int = -1, **options: Any) -> Attempt:
    """Return an attempt of a command whose job has `keep`, without its machines. `rival`: in a race of two, the number
    of the place of its machines."""
    task = {"keep": keep, "shape": SHAPE, **options.pop("task", {})}
    attempt = site.admit(argv=("/bin/sh", "-c", script), task=task, **options)
    placement = {"backend": "tpu-vm", "project": "emulated", "zone": "us-central2-b", "name": attempt.name}
    placement |= {"hosts": attempt.hosts, "slices": attempt.slices}
    if rival >= 0:
        places = [{**placement, "rival": number} for number in range(2)]
        places[1 - rival] |= {"name": f"{attempt.name}-of-another", "zone": "us-central2-a"}
        placement = {**places[0], "rivals": places[1:]}
    _intend(attempt, placement)
    return attempt


def boot(attempt: Attempt, **told: Any) -> Attempt:
    """Make the machines of a slice that may be kept."""
    return attempt.start(**{"lease_key": KEY, **told})


def lease_of(attempt: Attempt) -> Lease | None:
    """Return the lease of the slice that was made for an attempt."""
    held = leases.read(attempt.site.records, attempt.name)
    return None if held is None else held.lease


def offered(attempt: Attempt, epoch: int = 0, within: float = 60.0) -> Lease:
    """Wait until a slice is free after the attempt of that epoch."""

    def is_free() -> bool:
        found = lease_of(attempt)
        assert found is None or found.state != "ended", found
        return found is not None and (found.state, found.epoch) == (FREE, epoch)

    wait_until(is_free, lambda: "\n".join(vm.console() for vm in attempt.vms), within=within)
    found = lease_of(attempt)
    assert found is not None
    return found


def ended(attempt: Attempt, within: float = 60.0) -> Lease:
    """Wait until a slice is deleted and its lease has ended; return that."""
    attempt.gone(within)
    found = lease_of(attempt)
    assert found is not None
    assert found.state == "ended"
    return found


def claim(
    slice_: Attempt, attempt: Attempt, *, key: str = KEY, epoch: int = 0, key_of_verdict: str = "", **told: Any
) -> Lease:
    """Claim the slice that was made for another attempt, as a client does. Returns the lease."""
    site, held = slice_.site, leases.read(slice_.site.records, slice_.name)
    assert held is not None
    more = {"deadline": time.time() + 3600.0, **({"key": key_of_verdict} if key_of_verdict else {}), **told}
    orders = attempt.told(resource=slice_.resource, boot="fedcba9876543210", **more)
    lease = held.lease.claimed(
        attempt.job, attempt.number, deadline=orders["deadline"], origin={}, writer="client", now=site.records.now()
    )
    if epoch:
        lease = lease._replace(epoch=epoch)
    _intend(attempt, {**held.lease.placement, "lease": {"slice": slice_.name, "epoch": lease.epoch}})
    lease = lease.with_orders(orders, key)
    assert leases.write(site.records, lease, held)
    attempt.vms = slice_.vms
    return lease


def _intend(attempt: Attempt, placement: dict[str, Any]) -> None:
    fields = {"attempt": attempt.number, "boot": "0123456789abcdef", "placement": placement, "allowed": 3600.0}
    attempt.site.records.create(names.intent(attempt.job, attempt.number), wire.encode(fields))
