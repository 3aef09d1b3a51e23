"""One google-cloud-storage client per process and credentials, and the store's clock from its answers.

It owns connections, which a forked process must not share. It does not know the requests.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

from kinetic_orchestration.platforms.google import call_hook
from kinetic_orchestration.protocol.records.bucket_metadata import Clock

CONNECTIONS: Final = 32
_CLIENTS_LIMIT: Final = 8
CLOCK_AGE: Final = 60.0  # seconds after which the server's time is requested again

_clients: dict[tuple[int, int, str], Client] = {}


class Client:
    """Google's own client, which records the headers of answers: for the clock, and for the caller of the thread."""

    def __init__(self, credentials: Any, endpoint: str) -> None:
        import google.auth.transport.requests
        import google.cloud.storage
        from requests.adapters import HTTPAdapter

        self.credentials = credentials  # a reference, as the table of clients uses its identity
        self.clock = Clock()
        self._endpoint = endpoint
        self._last = threading.local()
        session: Any = google.auth.transport.requests.AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS))
        session.hooks["response"].append(self._receive)
        options = {"api_endpoint": endpoint} if endpoint else None
        # No verb here needs a project, and a client without one searches for one on disk and network.
        self.storage: Any = google.cloud.storage.Client(
            project="none", credentials=credentials, _http=session, client_options=options
        )
        # Some versions fetch the bucket for traces, on a thread, at first and after every 404: a
        # request that costs, and needs a permission that a store does not.
        self.storage._bucket_metadata_cache = None

    def headers(self) -> dict[str, str]:
        """The headers of the last answer to this thread."""
        return getattr(self._last, "headers", {})

    def _receive(self, response: Any, **_: Any) -> None:
        self._last.headers = response.headers
        call_hook.report_http("storage", response, self._endpoint)
        self.clock.observe(response.headers.get("Date", ""), time.monotonic() - response.elapsed.total_seconds())


def client(credentials: Any, endpoint: str) -> Client:
    """The client of this process for these credentials; a forked process makes its own."""
    key = os.getpid(), id(credentials), endpoint
    found = _clients.get(key)
    if found is None:
        found = _clients.setdefault(key, Client(credentials, endpoint))
        while len(_clients) > _CLIENTS_LIMIT:
            _clients.pop(next(iter(_clients)), None)
    return found
