"""Plain JAX on emulated slices of TPUs, which see each other as real ones do: by `slice_index` of their devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BOUNDED
from tests.support.pages import programs


def looks(program: str) -> dict[str, Any]:
    """Run the page's function, and look at what it saw."""
    scope: dict[str, Any] = {"__name__": "slices"}
    exec(program, scope)
    total = scope["train"]()
    import jax
    from jax.experimental import mesh_utils

    made = mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1))
    try:
        jax.make_mesh((jax.device_count(),), ("data",))
        refused = ""
    except ValueError as error:
        refused = str(error)
    return {
        "total": total,
        "slices": [[device.slice_index for device in row] for row in made],
        "processes": [[device.process_index for device in row] for row in made],
        "refused": refused,
    }


def test_jax_on_two_emulated_slices_makes_the_mesh_of_two_networks_and_computes_on_it(home: Path) -> None:
    """As on real ones, `jax.make_mesh` refuses them: a program that ends so there ends so here."""
    program = programs("docs/training/frameworks.md")["slices.py"]
    options: dict[str, Any] = {"cloud": kinetic.TpuVm(num_slices=2), "backend": "local", "limits": BOUNDED}
    found = kinetic.run(accelerator="v5e-4", **options)(looks).run_async(program).result()
    assert found["slices"] == found["processes"] == [[0] * 4, [1] * 4]
    assert found["total"] == 4 * (1 + 2) and f"# {found['total']}" in program
    assert "does not support multi-slice topologies" in found["refused"]
