"""An emulated Google Cloud with TPUs to run pipelines against: no account, no network, nothing to pay.

    from kinetic_orchestration.testing import Emulator

    with Emulator() as cloud:
        os.environ.update(cloud.environ())
        ...
        cloud.ledger.assert_nothing_left()

The public names, loaded when they are first used. docs/emulator.md lists what is imitated, and what is not.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs more than all the rest of this import
if TYPE_CHECKING:
    from typing import Any

    from kinetic_orchestration.testing.emulator import Emulator
    from kinetic_orchestration.testing.instance import Machine
    from kinetic_orchestration.testing.ledger import Ledger
    from kinetic_orchestration.testing.lives import Timing
    from kinetic_orchestration.testing.model import Cloud
    from kinetic_orchestration.testing.requests import refusals as refusals
    from kinetic_orchestration.testing.requests.refusals import Refusal
    from kinetic_orchestration.testing.seeded_faults import random_faults

_HOMES = {
    "Cloud": "model",
    "Emulator": "emulator",
    "Ledger": "ledger",
    "Machine": "instance",
    "Refusal": "requests.refusals",
    "Timing": "lives",
    "random_faults": "seeded_faults",
}

_REFUSALS = "refusals"  # a module of rows that `fail(refusal=)` takes, by the name that docs/emulator.md gives it

__all__ = ["Cloud", "Emulator", "Ledger", "Machine", "Refusal", "Timing", "random_faults"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name == _REFUSALS:
        from kinetic_orchestration.testing.requests import refusals

        return refusals
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals().copy(), *__all__})
