"""The gate names what was skipped, and fails where a reason is unknown or untrue."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.project.gate import skips
from tests.project.gate.skips import Skip
from tests.support import interpreters
from tests.support.airflow_releases.environment import RELEASES

ROOT = Path(__file__).parents[3]
TRUE = "root may write anywhere" if os.geteuid() == 0 else "only root may be another user"  # of this machine


def test_a_reason_is_known_and_true_of_this_machine() -> None:
    assert "nobody knows this reason" in skips.trouble(Skip("a", "I felt like it"))
    assert "is not so" in skips.trouble(
        Skip("a", "measured in /proc" if Path("/proc/self/status").exists() else "ptrace")
    )
    assert skips.trouble(Skip("a", TRUE)) == ""


def test_no_reason_is_believed_without_a_look() -> None:
    """A reason that only an attempt can show is attempted again: if it succeeds, the reason is wrong."""
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr(skips, "_permits", lambda *_, **__: True)
        elsewhere.setattr(skips, "interpreter", lambda _: sys.executable)
        asked = (
            "no such file system",
            "nobody may trace",
            "the newest Dagster",
            "torch",
            "no mount",
            "no small",
            "Airflow",
        )
        found = [known for known in skips.KNOWN if known.reason.startswith(asked)]
        assert len(found) == len(asked) - 1 + len(RELEASES)
        assert not any(known.is_so() for known in found)
        elsewhere.setattr(skips, "_permits", lambda *_, **__: False)
        assert all(known.is_so() for known in found)


def test_the_python_that_hosts_have_is_never_done_without() -> None:
    assert f"pyenv install {interpreters.OLDEST}" in skips.trouble(
        Skip("a", f"this machine has no Python {interpreters.OLDEST}")
    )


def test_what_no_index_has_is_not_found_there() -> None:
    assert skips._no_index_has("dagster==0.0.0.dev1")()


@pytest.mark.parametrize(("reason", "code"), [(TRUE, 0), ("no time", 1)])
def test_what_pytest_skips_is_written_down_by_all_workers_and_judged_in_the_end(
    tmp_path: Path, reason: str, code: int
) -> None:
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\ndef test_this():\n    pytest.skip({reason!r})\n\n"
        f"@pytest.mark.skipif(True, reason={reason!r})\ndef test_that(): pass\n"
    )
    (tmp_path / "test_whole.py").write_text(f"import pytest\npytest.skip({reason!r}, allow_module_level=True)\n")
    file = tmp_path / "skipped"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.conftest",
        str(tmp_path),
    ]
    environ = {**os.environ, skips.FILE: str(file)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    judge = [sys.executable, "-m", "tests.project.gate.skips", str(file)]
    judged = subprocess.run(judge, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert judged.returncode == code, judged.stdout + judged.stderr
    lines = [line for line in judged.stdout.splitlines() if line.startswith("skipped: ")]
    assert len(lines) == 3
    assert all(line.endswith(f": {reason}") for line in lines)


def test_other_pythons_are_found_wherever_home_is(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path)}
    environ.pop("PYENV_ROOT", None)
    for asked in (interpreters.OLDEST, "pyenv"):
        told = [
            subprocess.run(
                [sys.executable, interpreters.__file__, asked], env=env, capture_output=True, text=True, timeout=60
            )
            for env in ({**environ, "HOME": os.environ["HOME"]}, environ)
        ]
        assert told[0].stdout == told[1].stdout


def test_what_runs_first_is_there() -> None:
    assert [name for name in conftest.FIRST if not (ROOT / "tests" / name).exists()] == []
