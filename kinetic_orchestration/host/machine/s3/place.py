"""The place of a bucket: its server, and the form of addresses there. Pure, by the standard variables and profile."""

from __future__ import annotations

import re
from collections import namedtuple
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kinetic_orchestration.host.machine.s3 import credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESS = re.compile(r"(\w+://)?[a-z\d-]+(\.[a-z\d-]+)*(:\d+|\.[a-z]+)/?")

FIRST = "us-east-1"  # the region of servers that know no regions, and the one that tells where any bucket of AWS is


class Place(namedtuple("Place", "bucket endpoint region certificates")):
    """A bucket, and what the settings say of it. `endpoint` is "" for AWS, `region` is "" if nothing was said."""

    __slots__ = ()
    bucket: str
    endpoint: str
    region: str
    certificates: str

    def base(self, region: str) -> str:
        """Return the server's address for requests about the bucket in that region. The bucket is in the host's name on
        AWS, unless a certificate could not cover it, and in the path elsewhere.
        """
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        url = urlsplit(self.endpoint or f"https://s3.{region}.{domain}")
        of_aws = (url.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        if of_aws and "." not in self.bucket:
            return f"{url.scheme}://{self.bucket}.{url.netloc}{url.path.rstrip('/')}"
        return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}/{self.bucket}"

    @property
    def server(self) -> str:
        """The server for users."""
        return self.endpoint or "AWS"


def place_of(bucket: str, environ: Mapping[str, str]) -> Place:
    """Return where the settings say that a bucket is. Raises ValueError for an endpoint that is no address."""
    said = credentials.profile(environ)
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or said.get("endpoint_url", "")
    if "@" in endpoint:
        raise ValueError(
            "AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL) has a name or a password in it: give the server's address, and "
            "those as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    url = urlsplit(endpoint)
    if endpoint and (url.scheme not in ("http", "https") or not url.netloc or url.query or url.fragment):
        told = f"is {endpoint!r}" if _ADDRESS.fullmatch(endpoint) else "is no address"  # it may be a key instead
        raise ValueError(
            f"AWS_ENDPOINT_URL_S3 (or AWS_ENDPOINT_URL) {told}: give the server's address, such as "
            "https://minio.example.com:9000"
        )
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or said.get("region", "")
    return Place(bucket, endpoint.rstrip("/"), region, environ.get("AWS_CA_BUNDLE") or said.get("ca_bundle", ""))
