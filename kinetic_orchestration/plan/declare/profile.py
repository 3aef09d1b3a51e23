"""`profile=`: the part of a training that its hosts trace for XProf.

Pure: turns the option into instructions for hosts. `host/process/frameworks/profiler.py` follows them.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, Literal

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.settings import duration, seconds

AFTER = 5  # steps, in which what is computed is compiled
LONGEST = 600.0  # a longer trace is too large to open
EVERY_HOST: Literal["all"] = "all"

_STEPS = r"(\d+) ?steps?"
_FORMS = "a number of steps (20), a time ('30s'), or kinetic.Profile(steps=20, after=100, hosts='all')"


@dataclass(frozen=True, slots=True)
class Profile:
    """A trace of some steps of a training, or of some time of any program, captured once in each attempt.

    Attributes:
        steps: Number of steps.
        seconds: Time, in place of steps.
        after: Number of steps before the trace, or time since the framework was imported ("2m").
        hosts: 0 for host 0, or "all".
    """

    steps: int | None = None
    seconds: float | str | None = None
    after: int | str = AFTER
    hosts: Literal[0, "all"] = 0


def asked(value: Any) -> Profile | None:
    """Return the value of `profile=` as a Profile, or None. A template that renders nothing gives "" or "None".

    Args:
        value: A Profile, a number of steps, or a text with a unit.

    Raises:
        UsageError: The value cannot be used.
    """
    if value is None or value in ("", "None"):
        return None
    if isinstance(value, Profile):
        return _checked(value)
    if isinstance(value, str):
        text = value.strip()
        if found := re.fullmatch(_STEPS, text):
            return _checked(Profile(steps=int(found[1])))
        if text.isdigit():
            raise UsageError(f"profile is {value!r}: give {text} or '{text} steps' for steps, or '{text}s' for seconds")
        return _checked(Profile(seconds=text))
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"profile is {value!r}: give {_FORMS}")
    return _checked(Profile(steps=operator.index(value)))


def _checked(profile: Profile) -> Profile:
    if (profile.steps is None) == (profile.seconds is None):
        given = "both steps and seconds" if profile.steps is not None else "neither steps nor seconds"
        raise UsageError(f"profile has {given}: name one of them, as kinetic.Profile(steps=20) or (seconds='30s')")
    if profile.steps is not None and not _is_whole(profile.steps, 1):
        raise UsageError(f"profile has steps={profile.steps!r}: give a number of steps, 1 or more")
    if profile.seconds is not None:
        found = _seconds("profile.seconds", profile.seconds)
        if not 0 < found <= LONGEST:
            raise UsageError(
                f"profile has seconds={profile.seconds!r}: give a time of more than 0 s and at most "
                f"{duration(LONGEST)}, since nobody can open a longer trace"
            )
    if isinstance(profile.after, str):
        if profile.after.strip().isdigit():
            number = profile.after.strip()
            raise UsageError(
                f"profile has after={profile.after!r}: give {number} for steps, or '{number}s' for seconds"
            )
        _seconds("profile.after", profile.after)
    elif not _is_whole(profile.after, 0):
        raise UsageError(
            f"profile has after={profile.after!r}: give how many steps come before it, or a time such as '2m'"
        )
    if profile.hosts not in (0, EVERY_HOST) or isinstance(profile.hosts, bool):
        raise UsageError(f"profile has hosts={profile.hosts!r}: give 0 for host 0 alone, or 'all'")
    return profile


def instructions(value: Any) -> dict[str, Any]:
    """Return the instructions for hosts, or an empty dictionary."""
    profile = asked(value)
    if profile is None:
        return {}
    timed = isinstance(profile.after, str)
    return {
        "steps": operator.index(profile.steps or 0),
        "seconds": 0.0 if profile.seconds is None else _seconds("profile.seconds", profile.seconds),
        "after": 0 if timed else operator.index(profile.after),  # type: ignore[arg-type]
        "wait": _seconds("profile.after", profile.after) if timed else None,
        "hosts": profile.hosts,
    }


def describe(asked_for: dict[str, Any]) -> str:
    """Return the instructions for hosts as text."""
    if not asked_for:
        return ""
    what = f"{asked_for['steps']} steps" if asked_for["steps"] else duration(asked_for["seconds"])
    wait = asked_for["wait"]
    after = f"{asked_for['after']} steps" if wait is None else duration(wait)
    return f"{what} after {after}, on {'all hosts' if asked_for['hosts'] == EVERY_HOST else 'host 0'}"


def _seconds(name: str, value: float | str) -> float:
    if isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}: give a time such as '30s'")
    found = seconds(name, value)
    assert found is not None
    return found


def _is_whole(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__index__") and operator.index(value) >= least
