"""The result of one check of a platform, as `doctor` shows it and a submitter obeys it. It knows no platform."""

from __future__ import annotations

from typing import NamedTuple

OK = "ok"
WARNING = "warning"
FAILED = "failed"


class Finding(NamedTuple):
    """The result of one check. `fix` is the next step, if there is one."""

    name: str
    state: str
    found: str
    fix: str = ""
