"""`python -m tests.project.gate.again CODE PYTHON CACHE [FILE]`: what failed runs once more, alone, when nothing else runs.

CODE is how pytest ended, and CACHE its folder, where it remembers what failed. What passes now was the machine's doing:
it is named (`flaky: …`), in FILE too. Whatever still fails fails this, and so does what is not repeated: more failures
than a busy machine explains, a crash, a bad option and a failed collection, which have other codes, and what failed of
things that tests share, which a test alone would not make anew: `tests/conftest.py` leaves the names of those.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 8
FAILED = 1  # what pytest says of failed tests, and of nothing else
SHARED = "kinetic/shared"  # where pytest's cache remembers tests after or before which something shared has failed


def main(code: int, python: str, cache: Path, file: Path | None = None) -> int:
    names = failed(cache)
    if code != FAILED or not 0 < len(names) <= MOST:
        return code
    if shared := _remembered(cache, SHARED):
        print("".join(f"not repeated, for it is of what tests share: {name}\n" for name in shared), end="", flush=True)
        return code
    print(f"\nonce more and alone: {len(names)} of what failed", flush=True)
    command = [python, "-m", "pytest", "-n", "0", "-o", f"cache_dir={cache}", "-m", "", *names]
    code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if code in (0, FAILED):
        still = failed(cache)
        told = "".join(f"flaky: {name}\n" for name in names if name not in still)
        print(told, end="", flush=True)
        if file is not None:
            with file.open("a", encoding="utf-8") as kept:
                kept.write(told)
    return code


def failed(cache: Path) -> list[str]:
    """The failed tests in pytest's cache."""
    return _remembered(cache, "cache/lastfailed")


def _remembered(cache: Path, key: str) -> list[str]:
    file = cache / "v" / key
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:5])))
