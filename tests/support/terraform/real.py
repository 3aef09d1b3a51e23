"""Holds the stand-ins against the real providers: `python -m tests.support.terraform.real`, where a registry is reached.

It writes the module, has Terraform fetch the providers, validates module and examples with them, and compares the
schemas: whatever a configuration may say to a stand-in, it may say to the real one, in the same way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kinetic_orchestration.platforms.google.setup.rendered import terraform
from tests.support.terraform import schemas

PLACES = (".", "examples/minimal", "examples/full")
REGISTRY = "registry.terraform.io/hashicorp/"
SECONDS = 600  # the provider has a hundred megabytes


def departures(ours: Mapping[str, Any], real: Mapping[str, Any]) -> list[str]:
    """Return how the schemas of a stand-in are no part of the real ones, as `terraform providers schema -json` has
    those of one provider."""
    found = list(_block("provider", ours["provider"], real["provider"]["block"]))
    for kind in ("resource_schemas", "data_source_schemas"):
        for name, block in ours[kind].items():
            told = real.get(kind, {}).get(name)
            found += [f"{name}: there is none"] if told is None else _block(name, block, told["block"])
    return found


def _block(at: str, ours: Mapping[str, Any], real: Mapping[str, Any]) -> Iterator[str]:
    """An optional attribute may be computed, too, which changes nothing for who writes it."""
    told = real.get("attributes", {})
    for name, attribute in ours.get("attributes", {}).items():
        if name not in told:
            yield f"{at}.{name}: there is none"
            continue
        for part in ("type", "required", "optional"):
            if attribute.get(part, False) != told[name].get(part, False):
                yield f"{at}.{name}: {part} is {told[name].get(part, False)}, not {attribute.get(part, False)}"
    blocks = real.get("block_types", {})
    for name, nested in ours.get("block_types", {}).items():
        if name not in blocks:
            yield f"{at}.{name}: there is no such block"
            continue
        for part in ("nesting_mode", "min_items", "max_items"):
            if nested.get(part, 0) != blocks[name].get(part, 0):
                yield f"{at}.{name}: {part} is {blocks[name].get(part, 0)}, not {nested.get(part, 0)}"
        yield from _block(f"{at}.{name}", nested["block"], blocks[name]["block"])
    here = {name for name, one in told.items() if one.get("required")}
    here |= {name for name, one in blocks.items() if one.get("min_items")}
    yield from (
        f"{at}.{name}: it is required, and the stand-in has none"
        for name in sorted(here - ours.get("attributes", {}).keys() - ours.get("block_types", {}).keys())
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, text in terraform.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for place in PLACES:
            _run(folder / place, "init", "-backend=false", "-input=false", "-no-color")
            _run(folder / place, "validate", "-no-color")
            print(f"{place}: valid")
        _run(folder, "fmt", "-check", "-recursive", "-diff")
        told = json.loads(_run(folder, "providers", "schema", "-json"))["provider_schemas"]
    found = [
        f"{name}: {each}"
        for name, ours in schemas.PROVIDERS.items()
        for each in departures(ours, told[REGISTRY + name])
    ]
    print("\n".join(found) or "the stand-ins are a part of the real providers")
    return 1 if found else 0


def _run(folder: Path, *words: str) -> str:
    command = ("terraform", f"-chdir={folder}", *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=SECONDS, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
