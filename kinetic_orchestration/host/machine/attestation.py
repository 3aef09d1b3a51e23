"""Signs this machine's content in the store, and decides whether another machine's is trusted: Google signs both.

The metadata server of a VM gives a token that names the VM's account and project and any text of the VM's choice. So a
machine can state "I wrote the content with this digest", and a process that can merely write to the bucket cannot.
Trusted are machines of the same account in the same project as this one: they may run anything on each other's machines
anyway.

A token is a statement about the past, so its expiry is not checked. Google publishes its keys for some weeks; a
statement signed with an older one is no longer trusted, and has to be made again.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import os
from typing import Any
from urllib.parse import quote

from kinetic_orchestration.host.machine import bootstrap

KEYS = "https://www.googleapis.com/oauth2/v3/certs"
ISSUERS = ("https://accounts.google.com", "accounts.google.com")
_found: dict[str, tuple[int, int]] = {}  # the keys, once they are known
# DER of "the digest of what follows is SHA-256" (RFC 8017, section 9.2, note 1).
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")


def attest(text: str) -> str:
    """Return this machine's signature of the text; "" where no metadata server gives one."""
    return identity(f"kinetic/{text}")


def identity(audience: str) -> str:
    """Return the identity token of this VM, signed by Google; "" where none is given."""
    return bootstrap.metadata(f"{bootstrap.SCOPE}/identity?audience={quote(audience, safe='')}&format=full") or ""


def is_attested(token: str, text: str) -> bool:
    """Return True if the token proves that a machine with this machine's identity signed exactly this text."""
    claims = _claims(token)
    own = _self()
    return (
        bool(own)
        and claims.get("aud") == f"kinetic/{text}"
        and claims.get("iss") in ISSUERS
        and _who(claims) == own
        and _signed(token)
    )


@functools.cache
def _self() -> tuple[str, ...]:
    """Return this machine's identity, as its metadata server states it."""
    return _who(_claims(attest("self")))


def _who(claims: dict[str, Any]) -> tuple[str, ...]:
    google = claims.get("google")
    engine = google.get("compute_engine") if isinstance(google, dict) else None
    if not (isinstance(engine, dict) and claims.get("email") and claims.get("email_verified")):
        return ()
    if not engine.get("project_number"):
        return ()
    return str(claims["email"]), str(engine["project_number"])


def _claims(token: str) -> dict[str, Any]:
    try:
        claims = json.loads(_bytes(token.split(".")[1]))
    except (ValueError, IndexError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _signed(token: str) -> bool:
    try:
        head, body, signature = token.split(".")
        told = json.loads(_bytes(head))
        sealed = _bytes(signature)
    except (ValueError, RecursionError):
        return False
    if not isinstance(told, dict) or told.get("alg") != "RS256":
        return False
    key = _keys().get(str(told.get("kid")))
    if key is None:
        return False
    modulus, exponent = key
    size = (modulus.bit_length() + 7) // 8
    expected = _SHA256 + hashlib.sha256(f"{head}.{body}".encode()).digest()
    expected = b"\0\1" + b"\xff" * (size - len(expected) - 3) + b"\0" + expected
    found = pow(int.from_bytes(sealed, "big"), exponent, modulus).to_bytes(size, "big")
    return len(sealed) == size and hmac.compare_digest(found, expected)


def _keys() -> dict[str, tuple[int, int]]:
    """Return Google's public keys; none while they cannot be fetched, and then no signature is trusted."""
    if _found:
        return _found
    imitated = os.environ.get("KINETIC_EMULATOR", "").rstrip("/")
    reply = bootstrap.exchange("GET", f"{imitated}/certs/keys" if imitated else KEYS, timeout=10.0)
    if reply.status != 200:
        return {}
    try:
        keys = {
            str(key["kid"]): (int.from_bytes(_bytes(key["n"]), "big"), int.from_bytes(_bytes(key["e"]), "big"))
            for key in reply.json().get("keys", ())
            if key.get("kty") == "RSA"
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # nonsense
        return {}
    _found.update(keys)
    return _found


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
