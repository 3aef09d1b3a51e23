"""A value for each option of how hardware is chosen, bought and held, for the tables of all places that take them."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.plan.declare.choices import OF_CAPACITY

ACCELERATORS = ["v6e-8", "v5e-8"]
VALUES: dict[str, Any] = {
    "capacity": ["spot", "on-demand"],
    "regions": ["us-east5", "us-central1"],
    "by": "price",
    "race": 2,
    "keep": "10m",
    "priority": 5,
    "reshard": True,
    "global_batch": 64,
}
assert VALUES.keys() == set(OF_CAPACITY), "a value for each of them, and for nothing else"
