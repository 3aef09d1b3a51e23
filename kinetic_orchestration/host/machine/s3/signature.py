"""The signature of a request to S3: AWS Signature Version 4, as every server that speaks this API checks it. Pure.

The digest of the body is a part of it, so a server also refuses what does not arrive as it was sent. It does not know
where credentials come from.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetic_orchestration.host.machine.s3.credentials import Credentials

EMPTY = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
_PLAIN = "-_.~"


def encoded(text: str, *, path: bool = False) -> str:
    """Return a text as it stands in a URL, and in what is signed."""
    return quote(text, safe=_PLAIN + "/" if path else _PLAIN)


def query_of(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a query as it is signed, which is also one that can be sent."""
    return "&".join(sorted(f"{encoded(name)}={encoded(value)}" for name, value in pairs))


def signed(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    digest: str,
    credentials: Credentials,
    region: str,
    moment: float,
    service: str = "s3",
) -> dict[str, str]:
    """Return the headers with a signature.

    Args:
        method: Of the request.
        path: The encoded path.
        query: The encoded query, as `query_of` returns it.
        headers: Those to be signed, `Host` among them.
        digest: The body's SHA-256, in hexadecimal.
        credentials: Of the account that asks.
        region: The region of the bucket.
        moment: The time by the server's clock.
        service: The service that is asked.
    """
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    sent = {**headers, "x-amz-date": at, "x-amz-content-sha256": digest}
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    lower = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    names = ";".join(sorted(lower))
    lines = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower))
    request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = f"{_ALGORITHM}\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    proof = hmac.new(_key(credentials.secret, at[:8], region, service), text.encode(), hashlib.sha256).hexdigest()
    return {
        **sent,
        "Authorization": f"{_ALGORITHM} Credential={credentials.key}/{scope}, SignedHeaders={names}, Signature={proof}",
    }


@functools.lru_cache(maxsize=8)
def _key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
