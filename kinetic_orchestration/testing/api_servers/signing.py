"""The key by which the emulated cloud signs identity tokens of VMs, and the certificates that prove them.

Made when it is first needed: a key costs a tenth of a second. It does not know who may have a token.
"""

from __future__ import annotations

import base64
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

ISSUER = "https://accounts.google.com"
_KEY_ID = "emulated"


class Signer:
    """RS256, as google-auth's `id_token.verify_token(token, request, audience, certs_url=…/certs)` expects it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: RSAPrivateKey | None = None

    def sign(self, claims: dict[str, Any]) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

        head = _part(json.dumps({"alg": "RS256", "kid": _KEY_ID, "typ": "JWT"}).encode())
        signed = f"{head}.{_part(json.dumps(claims).encode())}"
        return f"{signed}.{_part(self._key().sign(signed.encode(), PKCS1v15(), hashes.SHA256()))}"

    def certificates(self) -> dict[str, str]:
        """Key id → certificate, as Google shows them at /oauth2/v1/certs."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import NameOID

        key, now = self._key(), datetime.now(UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "emulated.invalid")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=365))
            .sign(key, hashes.SHA256())
        )
        return {_KEY_ID: certificate.public_bytes(serialization.Encoding.PEM).decode()}

    def keys(self) -> dict[str, Any]:
        """The same as a JSON Web Key Set, as at /oauth2/v3/certs."""
        numbers = self._key().public_key().public_numbers()
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": _KEY_ID}
        return {"keys": [key | {"n": _number(numbers.n), "e": _number(numbers.e)}]}

    def _key(self) -> RSAPrivateKey:
        from cryptography.hazmat.primitives.asymmetric import rsa

        with self._lock:
            if self._made is None:
                self._made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            return self._made


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _part(value.to_bytes((value.bit_length() + 7) // 8, "big"))
