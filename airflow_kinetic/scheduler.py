"""When Airflow's scheduler was last seen at work: what the API server's health page tells everybody.

Asked by triggers, whose process has no database. Where the page cannot be reached, nothing is known.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
from datetime import datetime

from airflow.sdk.configuration import conf

ANSWER_SECONDS = 3.0
SHARED = 0.4  # seconds for which an answer is the one of all triggers that ask
INTERVAL = 5.0  # between two heartbeats of a scheduler, unless it is told otherwise
SLOW = 2.0  # that much longer it is: at rest, it goes round once a second

_lock = threading.Lock()
_answers: list[tuple[float, float | None]] = []  # the newest: when it came, and what it was


def is_alone(seconds: float) -> bool:
    """Whether there may be one scheduler alone, by the time from one heartbeat to the next: of several the newest is
    told, and these follow upon each other sooner than those of one.
    """
    return seconds >= 0.9 * _interval()


def was_slow(seconds: float) -> bool:
    """Whether it took longer for that than an idle one."""
    return seconds > _interval() + SLOW


def shared_beat() -> float | None:
    """The same as `last_beat`, asked for once for all who ask at a time."""
    with _lock:
        if not _answers or time.monotonic() - _answers[0][0] > SHARED:
            beat = last_beat()
            _answers[:] = [(time.monotonic(), beat)]
        return _answers[0][1]


def last_beat() -> float | None:
    """Return the time of the newest heartbeat of any scheduler, by its own clock; None if nobody tells."""
    for page in _pages():
        try:
            with urllib.request.urlopen(page, timeout=ANSWER_SECONDS) as answer:
                beat = json.load(answer)["scheduler"]["latest_scheduler_heartbeat"]
            return datetime.fromisoformat(beat).timestamp()
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):  # another page, or none
            continue
    return None


def _interval() -> float:
    return float(conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=INTERVAL))


def _pages() -> list[str]:
    """Where users reach the server, and where tasks do: both are the same one, unless somebody has parted them."""
    roots = (
        conf.get("api", "base_url", fallback=""),
        conf.get("core", "execution_api_server_url", fallback="").rstrip("/").removesuffix("/execution"),
    )
    known = dict.fromkeys(root.rstrip("/") for root in roots if root.startswith(("http://", "https://")))
    return [f"{root}/api/v2/monitor/health" for root in known]
