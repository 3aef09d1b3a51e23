"""Terraform's command line, with the stand-ins for its providers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

PROVIDERS: Final = {"google": "hashicorp/google", "time": "hashicorp/time"}
PROVIDER: Final = Path(__file__).with_name("provider.py")
SECONDS: Final = 120
NONE: Final = "this machine has no terraform"


class Said(NamedTuple):
    code: int
    text: str


class Terraform:
    """The program, with a configuration and a folder of its own, from which it finds the stand-ins and no registry."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("terraform")
        if program is None:
            pytest.skip(NONE)
        self._program = program
        plugins = folder / "plugins"
        plugins.mkdir(parents=True)
        overrides = []
        for name, source in PROVIDERS.items():
            script = plugins / f"terraform-provider-{name}"
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROVIDER}" {name}\n', encoding="utf-8")
            script.chmod(0o755)
            overrides.append(f'    "{source}" = "{plugins}"')
        configuration = folder / "terraform.rc"
        lines = "\n".join(overrides)
        configuration.write_text(
            f"disable_checkpoint = true\nprovider_installation {{\n  dev_overrides {{\n{lines}\n  }}\n}}\n",
            encoding="utf-8",
        )
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TF_CLI_CONFIG_FILE": str(configuration),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }

    def __call__(self, where: Path, *words: str) -> Said:
        """Run a command in a folder; what it said, on both streams."""
        done = subprocess.run(
            (self._program, f"-chdir={where}", *words),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            encoding="utf-8",
        )
        return Said(done.returncode, done.stdout)

    def planned(self, where: Path, variables: dict[str, Any]) -> dict[str, Any]:
        """Return what would be created from nothing, as `terraform show -json` has it."""
        given = where / "given.tfvars.json"
        given.write_text(json.dumps(variables), encoding="utf-8")
        file = where / "planned.tfplan"
        said = self(where, "plan", "-input=false", "-no-color", f"-var-file={given}", f"-out={file}")
        assert said.code == 0, said.text
        shown = self(where, "show", "-json", str(file))
        assert shown.code == 0, shown.text
        plan: dict[str, Any] = json.loads(shown.text[shown.text.index("{") :])
        return plan
