"""Signatures are those of the examples in AWS's own documentation."""

from __future__ import annotations

import calendar
import hashlib

import pytest

from kinetic_orchestration.host.machine.s3 import signature
from kinetic_orchestration.host.machine.s3.credentials import Credentials

pytestmark = pytest.mark.fast

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
OF_EXAMPLES = Credentials("AKIAIOSFODNN7" + "EXAMPLE", "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY", "", 0.0, "")
MOMENT = float(calendar.timegm((2013, 5, 24, 0, 0, 0)))
HOST = {"Host": "examplebucket.s3.amazonaws.com"}


def proof(method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest()
    sent = signature.signed(method, path, query, {**HOST, **headers}, digest, OF_EXAMPLES, "us-east-1", MOMENT)
    return sent["Authorization"].rpartition("=")[2]


def test_an_object_is_read_in_part() -> None:
    assert proof("GET", "/test.txt", "", {"Range": "bytes=0-9"}, b"") == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_an_object_is_written() -> None:
    headers = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
    path = signature.encoded("/test$file.text", path=True)
    assert proof("PUT", path, "", headers, b"Welcome to Amazon S3.") == (
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )


def test_a_bucket_is_listed() -> None:
    query = signature.query_of([("prefix", "J"), ("max-keys", "2")])
    assert proof("GET", "/", query, {}, b"") == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"


def test_a_query_without_a_value_is_signed_with_an_empty_one() -> None:
    assert proof("GET", "/", signature.query_of([("lifecycle", "")]), {}, b"") == (
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )
