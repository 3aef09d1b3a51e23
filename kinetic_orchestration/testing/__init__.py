"""An emulated Google Cloud with TPUs to run pipelines against: no account, no network, nothing to pay.

    from kinetic_orchestration.testing import Emulator

    with Emulator() as cloud:
        os.environ.update(cloud.environ())
        ...
        cloud.ledger.assert_nothing_left()

Beside it, the contracts of stores and backends, which their authors inherit in tests: docs/develop/add-a-platform.md.
The public names, loaded when they are first used. docs/pipelines/emulator.md lists what is imitated, and what is not.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs more than all the rest of this import
if TYPE_CHECKING:
    from typing import Any

    from kinetic_orchestration.testing.api_rules import refusals as refusals
    from kinetic_orchestration.testing.api_rules.refusals import Refusal
    from kinetic_orchestration.testing.contracts.backend import BackendContract
    from kinetic_orchestration.testing.contracts.store import StoreContract
    from kinetic_orchestration.testing.emulator import Emulator
    from kinetic_orchestration.testing.kubernetes.cluster import Cluster
    from kinetic_orchestration.testing.kubernetes.controllers.scaling import NodePool
    from kinetic_orchestration.testing.model.cloud import Cloud
    from kinetic_orchestration.testing.model.faults import random_faults
    from kinetic_orchestration.testing.model.lifecycle import Timing
    from kinetic_orchestration.testing.model.state.ledger import Ledger
    from kinetic_orchestration.testing.model.state.machine import Machine

_HOMES = {
    "BackendContract": "contracts.backend",
    "Cloud": "model.cloud",
    "Cluster": "kubernetes.cluster",
    "Emulator": "emulator",
    "Ledger": "model.state.ledger",
    "Machine": "model.state.machine",
    "NodePool": "kubernetes.controllers.scaling",
    "Refusal": "api_rules.refusals",
    "StoreContract": "contracts.store",
    "Timing": "model.lifecycle",
    "random_faults": "model.faults",
    "refusals": "api_rules",  # the module of rows that `fail(refusal=)` takes
}

__all__ = [
    "BackendContract", "Cloud", "Cluster", "Emulator", "Ledger", "Machine", "NodePool", "Refusal", "StoreContract",
    "Timing", "random_faults",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from kinetic_orchestration.protocol.system.lazy import load  # not above: every pytest of a user loads this package

    return load(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals().copy(), *_HOMES})
