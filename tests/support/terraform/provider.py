"""A provider for Terraform that stands in for one of Google's or HashiCorp's: it knows their schemas, and no cloud.

Terraform starts it, where a CLI configuration names its folder (`dev_overrides`; `command_line.py` writes both), speaks
version 6 of its plugin protocol with it, and ends it. `validate` is complete; of `plan`, what is to be created: what a
cloud would add to a resource is unknown, or what `schemas.py` says. It cannot apply.

Facts: hashicorp/go-plugin:docs/internals.md (handshake), hashicorp/terraform:docs/plugin-protocol/tfplugin6.8.proto.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.terraform import schemas
from tests.support.terraform.wire import UNKNOWN, fields, message, packed, unpacked

COOKIE: Final = "TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
LONGEST: Final = 120.0  # seconds: a Terraform that was killed does not tell its providers
NESTING: Final = {"single": 1, "list": 2, "set": 3, "map": 4}
ERROR: Final = 1  # the severity of a diagnostic


def block(schema: schemas.Schema) -> bytes:
    """Return a schema as a `Schema.Block`."""
    attributes = (
        (2, message(
            (1, name), (2, json.dumps(each["type"])), (4, "required" in each), (5, "optional" in each),
            (6, "computed" in each),
        ))
        for name, each in schema.get("attributes", {}).items()
    )  # fmt: skip
    nested = (
        (3, message(
            (1, name), (2, block(each["block"])), (3, NESTING[each["nesting_mode"]]), (4, each.get("min_items", 0)),
            (5, each.get("max_items", 0)),
        ))
        for name, each in schema.get("block_types", {}).items()
    )  # fmt: skip
    return message(*attributes, *nested)


class Provider:
    """The methods of one provider, each from a request's bytes to its answer's."""

    def __init__(self, name: str) -> None:
        self._schemas = schemas.PROVIDERS[name]

    def get_provider_schema(self, _: bytes) -> bytes:
        configuration = message((2, block(self._schemas["provider"])))
        kinds = ((2, "resource_schemas"), (3, "data_source_schemas"))
        entries = (
            (number, message((1, name), (2, message((2, block(each))))))
            for number, kind in kinds
            for name, each in self._schemas[kind].items()
        )
        return message((1, configuration), *entries)

    def plan_resource_change(self, request: bytes) -> bytes:
        """A resource that is to be created: as it was proposed, with what a cloud would add."""
        asked = fields(request)
        kind = asked[1].decode()
        if unpacked(fields(asked[2])[1]) is not None:
            return message((4, _refusal(f"{kind}: this provider plans only what is to be created")))
        planned: dict[str, Any] = unpacked(fields(asked[3])[1])
        for name, attribute in self._schemas["resource_schemas"][kind]["attributes"].items():
            if planned[name] is None and "computed" in attribute:
                planned[name] = schemas.added(kind, name, planned, UNKNOWN)
        return message((1, message((1, packed(planned)))))

    def apply_resource_change(self, _: bytes) -> bytes:
        return message((3, _refusal("this provider knows no cloud: it cannot apply")))

    def read_data_source(self, request: bytes) -> bytes:
        asked = fields(request)
        kind, read = asked[1].decode(), unpacked(fields(asked[2])[1])
        for name in self._schemas["data_source_schemas"][kind]["attributes"]:
            if read[name] is None:
                read[name] = schemas.added(kind, name, read, None)
        return message((1, message((1, packed(read)))))


def _refusal(text: str) -> bytes:
    return message((1, ERROR), (2, text))


def _nothing_to_say(_: bytes) -> bytes:
    return b""


def methods(provider: Provider) -> dict[str, Callable[[bytes], bytes]]:
    """Return what is served, by the names of `tfplugin6.Provider`."""
    silent = ("GetFunctions", "ConfigureProvider", "ValidateProviderConfig", "StopProvider")
    silent += ("ValidateResourceConfig", "ValidateDataResourceConfig")
    return dict.fromkeys(silent, _nothing_to_say) | {
        "GetProviderSchema": provider.get_provider_schema,
        "PlanResourceChange": provider.plan_resource_change,
        "ApplyResourceChange": provider.apply_resource_change,
        "ReadDataSource": provider.read_data_source,
    }


def serve(name: str) -> None:
    """Serve the provider until Terraform ends it, or is gone."""
    import grpc

    def handlers(table: dict[str, Callable[[bytes], bytes]]) -> dict[str, grpc.RpcMethodHandler]:
        return {
            method: grpc.unary_unary_rpc_method_handler(lambda request, _, answer=answer: answer(request))
            for method, answer in table.items()
        }

    ended = threading.Event()

    def shut_down(_: bytes) -> bytes:
        ended.set()
        return b""

    server = grpc.server(ThreadPoolExecutor(4))
    served = {"tfplugin6.Provider": methods(Provider(name)), "plugin.GRPCController": {"Shutdown": shut_down}}
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(service, handlers(table)) for service, table in served.items())
    )
    key, certificate = _identity()
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    shown = base64.b64encode(_der(certificate)).decode().rstrip("=")
    print(f"1|6|tcp|127.0.0.1:{port}|grpc|{shown}", flush=True)
    parent, waited = os.getppid(), 0.0
    while not ended.wait(1.0) and os.getppid() == parent and waited < LONGEST:
        waited += 1.0
    server.stop(1.0).wait()


def _identity() -> tuple[bytes, bytes]:
    """A key and a certificate of its own, which Terraform is told by the handshake and expects for localhost."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def _der(certificate: bytes) -> bytes:
    return base64.b64decode(b"".join(certificate.splitlines()[1:-1]))


if __name__ == "__main__":
    if os.environ.get(COOKIE[0]) != COOKIE[1]:
        sys.exit("This is a provider: Terraform starts it.")
    serve(sys.argv[1])
