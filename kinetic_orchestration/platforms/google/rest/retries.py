"""When a request to a Google API is sent again, and after which pause: all constants of it.

A transient error, such as a 429, is retried by the client that meets it: `rest/client`, `storage/requests` and
`tpu/client`. A create call whose rate is limited is made again later, by `tpu/backend`. What a job does about an error
that stays is decided by `api_errors`.
"""

from __future__ import annotations

import time
from typing import Any, Final

TRANSIENT: Final = frozenset({0, 408, 429, 500, 502, 503, 504})  # HTTP; 0: there was no answer
REFUSED: Final = 429  # the one of them after which it is certain that the request was not carried out

# The small JSON APIs.
PAUSES = (0.2, 0.6, 1.8)  # before the second try and those after it

# Buckets: the first pause is doubled by each further try.
PATIENCE: Final = 60.0
FIRST_PAUSE = 0.25
LONGEST_PAUSE: Final = 8.0

# Cloud TPU.
CLIENT_SECONDS = 8.0  # of retries within a call; then the caller decides
THROTTLE = 5.0  # seconds to the next create call once their rate is limited; doubled by each further refusal,
LONGEST_THROTTLE = 60.0  # up to this
# Shared by all backends of this process, as the rate is the project's: (emulator, project) → (until, pause).
_throttled: dict[tuple[str, str], tuple[float, float]] = {}


def client_retry(*, reading: bool) -> Any:
    """Return the policy by which Google's own client repeats a call: a write only if the API says that it was
    not accepted."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type
    from google.protobuf.json_format import ParseError
    from requests.exceptions import ConnectionError as Unconnected

    passing: tuple[type[Exception], ...] = (exceptions.ServiceUnavailable, Unconnected)
    if reading:
        passing += (ParseError, exceptions.InternalServerError, exceptions.BadGateway, exceptions.TooManyRequests)
    return Retry(
        predicate=if_exception_type(*passing), initial=0.1, maximum=2.0, multiplier=2.0, timeout=CLIENT_SECONDS
    )


def throttle(project: tuple[str, str], pause: float = 0.0) -> None:
    """Make no call of that kind in this project for a while: longer with each refusal in a row, unless it is named."""
    pause = pause or min(2 * _throttled.get(project, (0.0, THROTTLE / 2))[1], LONGEST_THROTTLE)
    _throttled[project] = (time.monotonic() + pause, pause)


def is_throttled(project: tuple[str, str]) -> bool:
    return time.monotonic() < _throttled.get(project, (0.0, 0.0))[0]


def end_throttle(project: tuple[str, str]) -> None:
    _throttled.pop(project, None)
