"""The credentials for S3, by the standard chain: variables, a role for a web identity, a profile of `~/.aws`, the
container's endpoint (EKS Pod Identity, ECS), the metadata of an EC2 machine.

They are asked for again before they expire. This module does not know what they are used for, nor whether the server
knows them.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import namedtuple
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.s3 import refusals
from kinetic_orchestration.protocol.records.base import Misconfigured, RecordsError
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EARLY = 300.0  # seconds before they expire, new ones are asked for
AGAIN = 30.0  # seconds until they are asked for once more, while the old ones are valid
PATIENCE = 10.0
MACHINE = "http://169.254.169.254"
CONTAINER = "http://169.254.170.2"
PLAIN_HOSTS = ("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost", "127.0.0.1", "::1")
_PASSING = refusals.PASSING | {"IDPCommunicationError"}  # STS says them with the status 400
_BY_TOOLS = ("sso_session", "sso_start_url", "source_profile", "role_arn")
ELSEWHERE = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile of ~/.aws, or run it with a role "
    "(AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, EKS Pod Identity, an instance profile)"
)


class Credentials(namedtuple("Credentials", "key secret token expires source")):
    """`expires`: by this machine's clock, 0 for never. `source`: where they came from, for users."""

    __slots__ = ()
    key: str
    secret: str
    token: str
    expires: float
    source: str


class Unavailable(RecordsError):
    """There are no credentials; the message says where they were looked for."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.EACCES, sentence)


class Unusable(Unavailable):
    """There are some in the settings, and no request could have them."""

    cause = Misconfigured.cause


class Chain:
    """The credentials of one account, in any thread: the same until they are about to expire."""

    def __init__(self) -> None:
        self._found: Credentials | None = None
        self._again = 0.0  # by the monotonic clock: until then, none are asked for in place of valid ones
        self._lock = threading.Lock()

    def get(self, *, stale: Credentials | None = None) -> Credentials:
        """Return credentials, others than `stale` if there are any. Raises Unavailable.

        While the old ones are valid, one thread alone asks for new ones; the others go on with the old.
        """
        now, found = time.time(), self._found
        valid = found is not None and found is not stale and not (found.expires and now > found.expires)
        if found is not None and valid:
            early = found.expires and now > found.expires - EARLY and time.monotonic() > self._again
            if not early or not self._lock.acquire(blocking=False):
                return found
        else:
            self._lock.acquire()
        try:
            if self._found is found or self._found is None:  # else another thread has just found others
                if valid:
                    self._again = time.monotonic() + AGAIN
                self._found = find(copies.environ())
        except Unavailable:
            if not valid:
                raise
        finally:
            self._lock.release()
        assert self._found is not None
        return self._found


def find(environ: Mapping[str, str]) -> Credentials:
    """Return the first credentials of the chain. Raises Unavailable."""
    for source in (_variables, _web_identity, _profile, _container, _machine):
        if (found := source(environ)) is not None:
            return _checked(found)
    raise Unavailable(
        "There are no credentials for S3: none in the variables, in the profile "
        f"{profile_of(environ)!r} of ~/.aws, nor from this machine. {ELSEWHERE}."
    )


def _checked(found: Credentials) -> Credentials:
    """Return credentials that a header can hold. Raises Unavailable, without a letter of them."""
    for what, value in (("key", found.key), ("secret key", found.secret), ("session token", found.token)):
        if not (value.isascii() and value.isprintable()):
            raise (Unavailable if found.expires else Unusable)(
                f"The credentials ({found.source}) have a character in their {what} that none has, such as the end of "
                "a line. Set them anew, each in one line."
            )
    return found


def profile_of(environ: Mapping[str, str]) -> str:
    """Return the name of the profile that counts."""
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"


def profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the files of `~/.aws` say of the profile; of the two, the shared credentials count more."""
    name = profile_of(environ)
    home = environ.get("HOME") or os.path.expanduser("~")
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = os.path.expanduser(environ.get(variable) or os.path.join(home, ".aws", file))
        if not os.path.exists(path):
            continue
        import configparser

        reader = configparser.RawConfigParser(strict=False)
        try:
            reader.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            lines = [getattr(error, "lineno", 0), *(number for number, _ in getattr(error, "errors", ()))]
            where = next((f" (line {line})" for line in lines if line), "")  # whose text may be a key
            raise Unavailable(
                f"{path} cannot be read as a configuration of AWS: {type(error).__name__}{where}. Mend it, or have "
                "'aws configure' write it."
            ) from None
        if reader.has_section(section):
            found.update(reader.items(section))
    return found


def _variables(environ: Mapping[str, str]) -> Credentials | None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    key, secret, token = (
        environ.get(name, "").strip() for name in names
    )  # of a file, a Secret has the end of its line
    if not key or not secret:
        return None
    return Credentials(key, secret, token, 0.0, "AWS_ACCESS_KEY_ID")


def _web_identity(environ: Mapping[str, str]) -> Credentials | None:
    role, file = environ.get("AWS_ROLE_ARN", ""), environ.get("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    if not role or not file:
        return None
    return _role_for_token(environ, role, file, environ.get("AWS_ROLE_SESSION_NAME", ""))


def _role_for_token(environ: Mapping[str, str], role: str, file: str, session: str) -> Credentials:
    import xml.etree.ElementTree as Tree

    try:
        with open(file, encoding="utf-8") as opened:
            token = opened.read().strip()
    except OSError as error:
        raise Unavailable(f"The web identity's token {file} cannot be read: {error.strerror}. {ELSEWHERE}.") from None
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    known = environ.get("AWS_ENDPOINT_URL_STS") or environ.get("AWS_ENDPOINT_URL")
    url = known or (f"https://sts.{region}.amazonaws.com" if region else "https://sts.amazonaws.com")
    asked = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": session or f"kinetic-{os.getpid()}",
        "WebIdentityToken": token,
    }
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = _patiently(lambda: bootstrap.exchange("POST", url + "/", urlencode(asked).encode(), kind))
    try:
        if reply.status != 200:
            raise ValueError
        given = {_local(part.tag): part.text or "" for part in Tree.fromstring(reply.data).iter()}
        return Credentials(
            given["AccessKeyId"],
            given["SecretAccessKey"],
            given["SessionToken"],
            _moment(given["Expiration"]),
            f"the role {role}",
        )
    except (ValueError, KeyError, Tree.ParseError):
        raise Unavailable(
            f"{url} gave no credentials for the role {role} and the token in {file}: {_words(reply)}. Let "
            "the role trust this identity's issuer, audience and subject."
        ) from None


def _profile(environ: Mapping[str, str]) -> Credentials | None:
    found, name = profile(environ), profile_of(environ)
    key, secret = found.get("aws_access_key_id", ""), found.get("aws_secret_access_key", "")
    if key and secret:
        return Credentials(key, secret, found.get("aws_session_token", ""), 0.0, f"the profile {name} of ~/.aws")
    if found.get("role_arn") and found.get("web_identity_token_file"):
        session = found.get("role_session_name", "")
        return _role_for_token(environ, found["role_arn"], found["web_identity_token_file"], session)
    if command := found.get("credential_process"):
        return _of_process(command, name)
    if kind := next((field for field in _BY_TOOLS if field in found), ""):
        raise Unavailable(
            f"The profile {name} of ~/.aws gets its credentials by {kind}, which only AWS's own tools do. Give them "
            f'by variables: eval "$(aws configure export-credentials --profile {name} --format env)"; or, so that they '
            f"are renewed, by a profile with credential_process = aws configure export-credentials --profile {name}."
        )
    if not found and name != "default":
        raise Unavailable(
            f"Neither ~/.aws/config nor ~/.aws/credentials has the profile {name!r}, which AWS_PROFILE names. "
            f"`aws configure list-profiles` lists those that there are. {ELSEWHERE}."
        )
    return None


def _of_process(command: str, name: str) -> Credentials:
    import shlex
    import subprocess

    where = f"the credential_process of the profile {name} of ~/.aws"
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, timeout=60, check=True)
        return _of_json(done.stdout, where)
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode("utf-8", "replace").strip()[-500:] or f"it ended with {error.returncode}"
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
    raise Unavailable(f"{where[0].upper()}{where[1:]} gave no credentials: {why}. Run it by hand: {command}")


def _container(environ: Mapping[str, str]) -> Credentials | None:
    relative, full = (environ.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI", "") for kind in ("RELATIVE", "FULL"))
    url = CONTAINER + relative if relative else full
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in PLAIN_HOSTS:
        raise Unavailable(f"AWS_CONTAINER_CREDENTIALS_FULL_URI is {url}: it has to be https, or this machine's own.")
    token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    if file := environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", ""):
        try:
            with open(file, encoding="utf-8") as opened:
                token = opened.read().strip()
        except OSError as error:
            raise Unavailable(f"The container's token {file} cannot be read: {error.strerror}.") from None
    headers = {"Authorization": token} if token else {}
    reply = _patiently(lambda: bootstrap.exchange("GET", url, headers=headers, timeout=5.0))
    try:
        if reply.status != 200:
            raise ValueError
        return _of_json(reply.data, f"the container's endpoint {url}")
    except (ValueError, KeyError, TypeError):
        raise Unavailable(
            f"The container's endpoint {url} gave no credentials: {_words(reply)}. {ELSEWHERE}."
        ) from None


def _machine(environ: Mapping[str, str]) -> Credentials | None:
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    base = (environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or MACHINE).rstrip("/")
    lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
    first = bootstrap.exchange("PUT", f"{base}/latest/api/token", headers=lasts, timeout=1.0)
    if first.status != 200:
        return None
    told = {"X-aws-ec2-metadata-token": first.data.decode("ascii", "replace")}
    roles = f"{base}/latest/meta-data/iam/security-credentials/"
    role = _patiently(lambda: bootstrap.exchange("GET", roles, headers=told, timeout=5.0))
    name = role.data.decode("utf-8", "replace").strip().split("\n")[0]
    if role.status != 200 or not name:
        return None
    reply = _patiently(lambda: bootstrap.exchange("GET", roles + name, headers=told, timeout=5.0))
    try:
        return _of_json(reply.data, f"the instance profile's role {name}")
    except (ValueError, KeyError, TypeError):
        return None


def _of_json(data: bytes, source: str) -> Credentials:
    given = json.loads(data)
    token = given.get("SessionToken") or given.get("Token") or ""
    expires = _moment(given["Expiration"]) if given.get("Expiration") else 0.0
    return Credentials(str(given["AccessKeyId"]), str(given["SecretAccessKey"]), str(token), expires, source)


def _words(reply: bootstrap.Reply) -> str:
    """Return the words of an answer without credentials; a good one that is incomplete may have a part of some."""
    if reply.status == 200:
        return "its answer is incomplete, or none that can be read"
    return reply.data[:500].decode("utf-8", "replace").strip() or f"status {reply.status}"


def _patiently(ask: Callable[[], bootstrap.Reply]) -> bootstrap.Reply:
    reply = bootstrap.Reply(0, {}, b"")
    for _ in bootstrap.tries(PATIENCE):
        reply = ask()
        if reply.status not in bootstrap.PASSING and refusals.read(reply).code not in _PASSING:
            break
    return reply


def _moment(text: str) -> float:
    """Return a time in UTC, of which Python 3.10 does not read every form: only its seconds are read."""
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
