"""Certificates of a control plane: one authority signs its servers and the people who speak to it. All are of its folder."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ADMINISTRATORS = "system:masters"  # the group that may do anything
_LIFE = timedelta(days=7)


class Authority:
    """Signs for its folder: `NAME.crt` and `NAME.key` beside its own, `ca.crt`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._key = self._new_key("ca")
        self._name = _name("tests")
        self._sign("ca", self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))

    def server(self, name: str, *services: str) -> None:
        """Make the certificate of a server on this machine, which may stand for services, too."""
        names = (x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, ("localhost", *services)))
        self._sign(name, _name("localhost"), self._new_key(name), x509.SubjectAlternativeName(names))

    def client(self, name: str, user: str, *groups: str) -> None:
        """Make the certificate by which a user of these groups is known."""
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        self._sign(name, _name(user, *groups), self._new_key(name), usage)

    def signing_key(self, name: str) -> None:
        """Make a key, and beside it the public one, `NAME.pub`."""
        public = self._new_key(name).public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        (self._folder / f"{name}.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, form))

    def _new_key(self, name: str) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        path = self._folder / f"{name}.key"
        path.touch(0o600)
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        return key

    def _sign(self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, what: x509.ExtensionType) -> None:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + _LIFE)
            .add_extension(what, critical=isinstance(what, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(user: str, *groups: str) -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, group) for group in groups] + [(NameOID.COMMON_NAME, user)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])
