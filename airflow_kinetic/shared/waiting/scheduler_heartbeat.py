"""The last heartbeat of Airflow's scheduler, from the health page of the API server.

Triggers use it, because their process has no database. If the page cannot be reached, nothing is known.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from datetime import datetime

from airflow.sdk.configuration import conf

ANSWER_SECONDS = 3.0


def last_beat() -> float | None:
    """Return the time of the newest heartbeat of any scheduler, by its own clock; None if it cannot be read."""
    for page in _pages():
        try:
            with urllib.request.urlopen(page, timeout=ANSWER_SECONDS) as answer:
                beat = json.load(answer)["scheduler"]["latest_scheduler_heartbeat"]
            return datetime.fromisoformat(beat).timestamp()
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):  # another page, or none
            continue
    return None


def _pages() -> list[str]:
    """The health pages at the URL for users and at the URL for tasks, which are usually the same server."""
    roots = (
        conf.get("api", "base_url", fallback=""),
        conf.get("core", "execution_api_server_url", fallback="").rstrip("/").removesuffix("/execution"),
    )
    known = dict.fromkeys(root.rstrip("/") for root in roots if root.startswith(("http://", "https://")))
    return [f"{root}/api/v2/monitor/health" for root in known]
