"""Refusals by a server that speaks S3's API, and the sentences for users. Pure: it does not know which request is sent
again, nor how often.
"""

from __future__ import annotations

import errno
import re
from collections import namedtuple
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap

if TYPE_CHECKING:
    from kinetic_orchestration.host.machine.s3.place import Place

PASSING = frozenset(
    {
        "ConditionalRequestConflict",  # two conditional writes met: whether this one's condition holds is not known yet
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeTooSkewed",  # its answer tells the server's time, with which the next one is signed
        "SlowDown",
        "InternalError",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
NOT_CARRIED_OUT = PASSING - {"InternalError", "OperationAborted", "ServiceUnavailable"}
NO_OBJECT = frozenset({"NoSuchKey", "NoSuchVersion", "NotFound"})

_OF_KEY = "InvalidAccessKeyId|InvalidClientTokenId|UnrecognizedClientException|SignatureDoesNotMatch"
_OF_RIGHT = "AccessDenied|AllAccessDisabled|AccountProblem|InvalidPayer"
_ROWS = [
    (
        rf"{_OF_KEY}|ExpiredToken|InvalidToken|TokenRefreshRequired",
        errno.EACCES,
        (
            "The credentials ({source}) are not valid at {server}. Give others, by AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or AWS_PROFILE. If the server is not AWS, set "
            "AWS_ENDPOINT_URL_S3"
        ),
    ),
    (
        "RequestTimeTooSkewed",
        errno.EACCES,
        "Something between here and {server} changes the time of requests or of answers: set the clocks of both",
    ),
    (
        "NoSuchBucket",
        errno.ENOENT,
        (
            "There is no bucket {bucket} at {server}. Make it, with aws s3 mb s3://{bucket}; name another with "
            "KINETIC_STORE; or, if the server is not AWS, set AWS_ENDPOINT_URL_S3"
        ),
    ),
    (
        "PermanentRedirect|TemporaryRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraintException",
        errno.EIO,
        "The bucket {bucket} is in another region than {region}: set AWS_REGION to its own",
    ),
    (
        rf"{_OF_RIGHT}|Forbidden|^403",
        errno.EACCES,
        (
            "The credentials ({source}) lack a permission. A store needs s3:GetObject, s3:PutObject, s3:DeleteObject "
            "and s3:AbortMultipartUpload on arn:aws:s3:::{bucket}/*, and s3:ListBucket and "
            "s3:ListBucketMultipartUploads on arn:aws:s3:::{bucket}. If the bucket is encrypted with a KMS key, also "
            "kms:GenerateDataKey and kms:Decrypt on it"
        ),
    ),
    ("KMS", errno.EACCES, "Let the credentials ({source}) use the key of the bucket's encryption"),
    (
        "InvalidRetentionPeriod|ObjectLocked|InvalidBucketState|WORM",
        errno.EACCES,
        "A store replaces and deletes its objects, so its bucket can have no object lock: name another (KINETIC_STORE)",
    ),
    (
        "NotImplemented|^501",
        errno.EIO,
        "{server} lacks an operation of S3 that a store needs: name a bucket elsewhere with KINETIC_STORE",
    ),
    ("QuotaExceeded|StorageFull|InsufficientStorage|^507", errno.ENOSPC, "Free some space there, or raise the quota"),
]


class Refusal(namedtuple("Refusal", "status code message region")):
    """An answer that is no success, in the server's words. Status 0: there was none."""

    __slots__ = ()
    status: int
    code: str
    message: str
    region: str

    @property
    def passes(self) -> bool:
        """True if the same request may succeed later. A 404 without a code is no word of S3: a proxy says it whose
        server is not there.
        """
        return self.status in bootstrap.PASSING or self.code in PASSING or (self.status == 404 and not self.code)

    @property
    def unsure(self) -> bool:
        """True if the request may have been carried out all the same."""
        return self.passes and self.code not in NOT_CARRIED_OUT

    @property
    def is_of_key(self) -> bool:
        """True if the server does not know the key, or knows another secret of it."""
        return re.fullmatch(_OF_KEY, self.code) is not None

    @property
    def is_of_right(self) -> bool:
        """True if the server knows who asks, and does not let it."""
        return re.fullmatch(_OF_RIGHT, self.code) is not None

    @property
    def is_of_bucket(self) -> bool:
        """True if the server has no such bucket."""
        return self.code == "NoSuchBucket"

    @property
    def absent(self) -> bool:
        """True if there is no such object; a missing bucket is another matter."""
        return self.status == 404 and self.code in NO_OBJECT


def read(reply: bootstrap.Reply) -> Refusal:
    """Return what an answer says; nothing of a good one."""
    if 200 <= reply.status < 300:
        return Refusal(reply.status, "", "", "")
    text = reply.data[:4000].decode("utf-8", "replace")
    parts = {name: _part(text, name) for name in ("Code", "Message", "Region")}
    region = reply.headers.get("x-amz-bucket-region") or parts["Region"]
    words = parts["Message"] or ("" if parts["Code"] else text[:500].strip())
    return Refusal(reply.status, parts["Code"], words or f"status {reply.status}", region)


def explain(refusal: Refusal, place: Place, source: str, region: str) -> tuple[int, str]:
    """Return the system's number of the kind of refusal, and the server's words with the advice."""
    words = refusal.message.strip().rstrip(".")
    if refusal.code and refusal.code not in words:
        words = f"{words} ({refusal.code})"
    if refusal.passes and refusal.code != "RequestTimeTooSkewed":
        return errno.EAGAIN, words
    for pattern, number, advice in _ROWS:
        if re.search(pattern, f"{refusal.status} {refusal.code}"):
            filled = advice.format(source=source, server=place.server, bucket=place.bucket, region=region)
            return number, f"{words}. {filled}"
    return errno.EIO, words


def _part(text: str, name: str) -> str:
    import html

    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return "" if found is None else html.unescape(found[1])
