"""Decides which content of a bucket is trusted. Write access to a bucket must never be enough to have code run.

A folder of this machine is trusted: no other user may write there. From a bucket, a process starts attempts of a job,
and unpickles their results, only if it knows the digest of the job's spec from another source: it wrote the spec, its
home remembers it, the job's handle or cursor carries it, or the spec is signed with a key that is not in the bucket.
The spec authenticates by digest all that hosts read. A value goes the other way: the hosts' machine has its digest
signed by Google, as the account that the spec names. Everything else of a job (records, logs, values that are plain
JSON) is read without any trust, because nothing in it is ever run.

**A job that was seen to end has ended.** The end that a process saw is stored in its home with the verdict's digest,
and handles and cursors carry it: another verdict, or none, is a change by another party, and no reason to run the job
again. An end that was proven, by a seal or by a machine's signature of its value, outweighs one that was only read:
otherwise a process that can write to the bucket could show a false one once, and have the true one refused for good.
The same holds for the time for which its hosts were held, of which a limit of cost counts the most that was seen.

**With a signing key** nothing need have been seen: the spec says that the job is signed, and no verdict counts without
the seal of a holder of the key. Keys are derived from it, one for each role, store, deployment, job and attempt, so a
seal for one thing is valid for nothing else; hosts are given the key of their attempt alone, and never the signing key
itself.

This module knows which evidence is required, and its sources. It does not know what follows when evidence is missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Corrupt, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.records import SIGNATURE
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Verdict

CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"
ISSUERS = ("https://accounts.google.com", "accounts.google.com")
SHORTEST_KEY = 16
FOLDER = "trust"
OFFERED = "offered"  # a spec that was about to be written here
SPEC = "spec"  # the one that the job has, as it was written here
ENDED = "ended"  # what it was seen to come to
HELD = "held"  # for how long the hosts of an attempt were seen to be there

# Whose word it is: the roles of the keys that are derived from the signing key.
SUBMITTER = "spec"
HOSTS = "verdict"
CLIENT = "closed"
GROUP = "group"
SLICE = "slice"  # orders for a kept slice; without a signing key, what this home remembers of one

_MOST_SEEN = 4096  # jobs of which a process remembers that without its home
_READ: dict[Path, tuple[tuple[int, ...], dict[str, list[str]]]] = {}  # as the file was then
_LONGEST: dict[tuple[Path, str, str, int], float] = {}  # that was remembered by this process
_SEEN: dict[tuple[Path, str, str], dict[str, None]] = {}  # the lines of each, the newest job last
_FOR_EVER = 100 * 365 * 86400  # a token states who computed a value, which does not expire
_CERTIFICATE_SECONDS = 3600.0
_TIMEOUT = 20.0


def _read(path: Path) -> dict[str, list[str]]:
    """Return what a file of the home remembers, by kind; read only when it has changed."""
    try:
        about = path.stat()
        state = about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
        known = _READ.get(path)
        if known is not None and known[0] == state:
            return known[1]
        lines = dict.fromkeys(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        _READ.pop(path, None)
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        kind, _, digest = line.partition(" ")
        found.setdefault(kind, []).append(digest)
    _READ[path] = state, found
    _shorten(_READ)
    return found


def _shorten(table: dict[Any, Any]) -> None:
    """Drop the oldest entries beyond the limit."""
    while len(table) > _MOST_SEEN:
        with contextlib.suppress(RuntimeError, StopIteration, KeyError):  # of another thread that does the same
            del table[next(iter(table))]


@dataclass(frozen=True, slots=True)
class Trust:
    """The evidence that this process accepts, and its sources. By default only what it is handed."""

    home: Path | None = None
    signing_key: str = field(default="", repr=False)
    everything: bool = False
    certificates: str = CERTIFICATES
    keep: float = math.inf  # seconds after its end in which a job's records do not go by themselves
    checks: bool = True  # False for a store that needs no evidence: see `at`

    def at(self, store: Store) -> Trust:
        """Return what this process may believe of one store: of a trusted one all, without proof or memory."""
        return _unchecked(self) if store.trusted else replace(self, checks=True) if not self.checks else self

    # ---- what is remembered here ---------------------------------------------------------------------------

    def remember(self, store: Store, job_id: str, kind: str, digest: str) -> None:
        """Add a line to the job's memory file. If the home cannot be written, only other processes lack the memory."""
        if self.home is None or not self.checks or digest in self.remembered(store, job_id, kind):
            return
        if kind in (ENDED, HELD):
            _SEEN.setdefault((self.home, store.url, job_id), {})[f"{kind} {digest}"] = None
            _shorten(_SEEN)
        path = self.memory_of(store, job_id)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            memory = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(memory, f"{kind} {digest}\n".encode())
            finally:
                os.close(memory)

    def remembered(self, store: Store, job_id: str, kind: str) -> list[str]:
        """Return the digests of one kind that were remembered of the job, in their order."""
        if self.home is None:
            return []
        found = _read(self.memory_of(store, job_id)).get(kind, [])
        seen = _SEEN.get((self.home, store.url, job_id))
        if not seen:
            return list(found)
        here = [digest for told, _, digest in (line.partition(" ") for line in dict(seen)) if told == kind]
        return list(dict.fromkeys([*found, *here]))

    def memory_of(self, store: Store, job_id: str) -> Path:
        """Return the file in which this home remembers what it knows of the job."""
        assert self.home is not None
        return self.home / FOLDER / hashlib.sha256(store.url.encode()).hexdigest()[:16] / job_id

    # ---- what was seen -------------------------------------------------------------------------------------

    def ended(self, store: Store, job_id: str) -> Ended | None:
        """Return the end of the job that this process, or one with its home, saw: of several lives, the last."""
        lines = reversed(self.remembered(store, job_id, ENDED)) if self.checks else ()
        return next(filter(None, map(Ended.of, lines)), None)

    def may_be_forgotten(self, store: Store, ended: Ended) -> bool:
        """Tell whether the records of a job that ended then may have gone by themselves."""
        return store.now() - ended.at > self.keep

    def refuse_anew(self, store: Store, job_id: str) -> None:
        """Raise Corrupt where a job is about to be run again that was seen to succeed, and can not be forgotten yet."""
        ended = self.ended(store, job_id)
        if ended is None or ended.status != "SUCCEEDED" or self.may_be_forgotten(store, ended):
            return
        raise Corrupt(
            f"job {job_id} in {store.url} has succeeded, as this process or another one with its home saw, and its "
            "records do not say so any more: somebody has changed them. It is not run again. Find out who can write to "
            "the bucket; to have it run anew, give another key, or start another run. If you removed them yourself, "
            f"delete also {self.memory_of(store, job_id)}"
        )

    def saw_held(self, store: Store, job_id: str, attempt: int, seconds: float, step: float = 0.0) -> None:
        """Remember for how long an attempt's hosts were held, if that is more than `step` beyond the known time."""
        if self.home is None:
            return
        key = self.home, store.url, job_id, attempt
        if step and seconds <= _LONGEST.get(key, -step) + step:  # called in each step, so nothing is read for it
            return
        if seconds > self.held(store, job_id).get(attempt, 0.0) + step:
            _LONGEST[key] = seconds
            _shorten(_LONGEST)
            self.remember(store, job_id, HELD, f"{attempt}/{seconds:.1f}")

    def held(self, store: Store, job_id: str) -> dict[int, float]:
        """Return the longest time that was seen of each attempt, by its number."""
        found: dict[int, float] = {}
        for line in self.remembered(store, job_id, HELD) if self.checks else ():
            with contextlib.suppress(ValueError):
                number, seconds = line.split("/")
                found[int(number)] = max(found.get(int(number), 0.0), float(seconds))
        return found

    # ---- keys ----------------------------------------------------------------------------------------------

    @property
    def key_id(self) -> str:
        """Return the name of the signing key, which a signed spec has; "" without a key."""
        if not self.signing_key or self.everything or not self.checks:
            return ""
        return self._hmac("the name of the key")[:16]

    def key(self, role: str, store: Store, job_id: str, attempt: int = 0) -> str:
        """Derive the key for this purpose alone. The store's address ends with the deployment."""
        return self._hmac(json.dumps([role, store.url, job_id, attempt]))

    def _hmac(self, text: str) -> str:
        secret = self.signing_key.encode("utf-8", "surrogateescape")
        return hmac.new(secret, b"kinetic 1\n" + text.encode(), hashlib.sha256).hexdigest()

    def slice_key(self, store: Store, job_id: str, attempt: int) -> str:
        """Return the key of the orders for the slice that was made for an attempt; "" if nobody here knows it."""
        if self.signing_key:
            return self.key(SLICE, store, job_id, attempt)
        for line in self.remembered(store, job_id, SLICE):
            number, _, key = line.partition("/")
            if number == str(attempt):
                return key
        return ""

    def new_slice_key(self, store: Store, job_id: str, attempt: int) -> str:
        """Return that key, after it was made and remembered if nobody here knew it; "" if it cannot be remembered: a
        key that nobody has is worth nothing."""
        known = self.slice_key(store, job_id, attempt)
        if not known:
            self.remember(store, job_id, SLICE, f"{attempt}/{secrets.token_hex(32)}")
        return known or self.slice_key(store, job_id, attempt)

    def seal(self, store: Store, job_id: str, attempt: int, verdict: Verdict) -> Verdict:
        """Return a client's verdict with its seal."""
        return verdict._replace(seal=_word(self.key(CLIENT, store, job_id, attempt), gist(verdict.encode())))

    def has_sealed(self, store: Store, job_id: str, attempt: int, verdict: Verdict) -> bool:
        """Return True if a verdict as it was read has the seal of a permitted writer: hosts, or a client."""
        if not verdict.raw:  # it cannot be read
            return False
        role = CLIENT if verdict.kind == wire.CLOSED else HOSTS
        word = _word(self.key(role, store, job_id, attempt), gist(verdict.raw))
        return hmac.compare_digest(verdict.seal.encode(), word.encode())

    def has_sealed_win(self, store: Store, job_id: str, attempt: int, won: bytes) -> bool:
        """Return True if the record of who has won a race has the seal of the attempt's hosts."""
        try:
            seal = str(wire.fields_of(won, wire.WON).get("seal", ""))
        except (wire.Unreadable, wire.Newer):
            return False
        word = _word(self.key(HOSTS, store, job_id, attempt), gist(won))
        return hmac.compare_digest(seal.encode(), word.encode())

    # ---- specs ---------------------------------------------------------------------------------------------

    def sign(self, store: Store, job_id: str, digest: str) -> None:
        """Sign a spec that is about to be written, for processes that have the same key."""
        if self.signing_key and self.checks:
            store.create(names.signature(job_id, digest), wire.encode({"hmac": self._mac(store, job_id, digest)}))

    def doubt_of_spec(self, store: Store, job_id: str, digest: str, told: str = "") -> str:
        """Return why the stored spec is not trusted, or "". `told`: the digest that came with a handle or a cursor.

        Raises Corrupt if it is known what the spec was, and the spec has changed.
        """
        if not self.checks or self.everything or digest == told:
            return ""
        known = [told] if told else self.remembered(store, job_id, SPEC)
        if digest in known or (not told and digest in self.remembered(store, job_id, OFFERED)):
            return ""
        signature = None if told else self._signature(store, job_id, digest)
        if signature:
            return ""
        if known:
            raise Corrupt(
                f"{names.spec(job_id)} in {store.url} is not the one that was submitted: somebody has changed it. "
                "Nothing was started from it. Find out who can write to the bucket, and submit the job again"
            )
        if signature is None:
            reason = "is not signed with the signing_key of this process"
        else:
            reason = "was written by another process, and nothing outside of the bucket vouches for it here"
        may = "watch it and cancel it" if self.signing_key else "watch and cancel it, and collect what is plain JSON"
        return (
            f"{names.spec(job_id)} in {store.url} {reason}. So this process starts no attempts of the job and "
            f"unpickles nothing of it; it can {may}. Let both processes have the same KINETIC_SIGNING_KEY or the same "
            "KINETIC_HOME, hand over the job's handle (it can be pickled), or set KINETIC_TRUST_STORE=true if whoever "
            "can write to the bucket may run code as you"
        )

    def _signature(self, store: Store, job_id: str, digest: str) -> bool | None:
        """Return True if the spec has a valid signature, None if it only has an invalid one, else False."""
        if not self.signing_key or (record := store.read(names.signature(job_id, digest), 0, 4096)) is None:
            return False
        try:
            found = wire.fields_of(record.data, SIGNATURE, names.signature(job_id, digest)).get("hmac")
        except (wire.Unreadable, wire.Newer):
            return None
        good = isinstance(found, str) and hmac.compare_digest(found.encode(), self._mac(store, job_id, digest).encode())
        return good or None

    def _mac(self, store: Store, job_id: str, digest: str) -> str:
        """Return the signature of a job's spec. It is valid for this job and deployment only."""
        return _word(self.key(SUBMITTER, store, job_id), digest)

    # ---- values --------------------------------------------------------------------------------------------

    def doubt_of_value(
        self, store: Store, job_id: str, attempt: int, digest: str, proof: str, *, role: str, account: str, project: str
    ) -> str:
        """Return why a value, or an exception, is not known to come from the job's own hosts, or "". The spec is
        trusted.
        """
        if not self.checks or self.everything or digest in self.remembered(store, job_id, role):
            return ""
        if not proof:
            return "no machine has vouched for it: its verdict has no identity token"
        try:
            claims = self._claims(proof, "kinetic/" + names.claim(role, store.url, job_id, attempt, digest))
        except _Unproven as error:
            return str(error)
        if reason := _wrong_machine(claims, account, project):
            return reason
        self.remember(store, job_id, role, digest)
        return ""

    def _claims(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return the claims of a token once its signature is known to be Google's. Raises _Unproven."""
        try:
            from google.auth import jwt
        except ImportError:
            raise _Unproven("google-auth is not installed here, which checks who computed it") from None
        certificates = _certificates(self.certificates, int(time.monotonic() / _CERTIFICATE_SECONDS))
        try:
            decode: Any = jwt.decode
            claims = decode(token, certs=certificates, audience=audience, clock_skew_in_seconds=_FOR_EVER)
        except Exception as error:  # google-auth raises what its decoders do, too, for what is no token
            raise _Unproven(
                f"the identity token in its verdict does not prove it ({type(error).__name__}: {error}). Google shows "
                "its certificates for some days only, and a value must be collected once within them"
            ) from None
        if not isinstance(claims, dict) or claims.get("iss") not in ISSUERS:
            raise _Unproven("the identity token in its verdict is not Google's")
        return claims


ALONE = Trust()


@functools.lru_cache(maxsize=64)
def _unchecked(believed: Trust) -> Trust:
    """Return one shared object for all jobs of trusted stores."""
    return replace(believed, checks=False)


class Ended(NamedTuple):
    """The end that a job was seen to have."""

    attempt: int
    status: str
    verdict: str  # digest of the content of the attempt's verdict
    at: float  # when that was written, by the store's clock
    proven: bool = False  # by a seal, or by a machine's signature of its value; otherwise a record alone says so

    def __str__(self) -> str:
        """Return the form that handles and cursors carry. It proves nothing to its receiver."""
        return f"{self.attempt}/{self.status}/{self.verdict}/{self.at:.3f}"

    def line(self) -> str:
        """Return it as a home remembers it."""
        return f"{self}/proven" if self.proven else str(self)

    @classmethod
    def of(cls, text: str) -> Ended | None:
        """Parse the line of a home. Returns None if it is malformed, as a line that was cut when its disk was full."""
        try:
            attempt, status, verdict, at, *proven = text.split("/")
            return cls(int(attempt), status, verdict, float(at), proven == ["proven"])
        except ValueError:
            return None

    def is_other(self, found: Ended) -> bool:
        return (self.attempt, self.status, self.verdict) != (found.attempt, found.status, found.verdict)


def gist(record: bytes) -> str:
    """Return the digest of a verdict's content, independent of its formatting and without its seal."""
    from kinetic_orchestration.host.machine import bootstrap  # loads more than most processes need

    return bootstrap.gist(json.loads(record))


def _word(key: str, text: str) -> str:
    from kinetic_orchestration.host.machine import bootstrap

    return bootstrap.sealed(key, text)


class _Unproven(Exception):
    """A value could not be authenticated; the message says why."""


def of(settings: Settings) -> Trust:
    if 0 < len(settings.signing_key) < SHORTEST_KEY:
        raise UsageError(
            f"signing_key has {len(settings.signing_key)} characters, which can be guessed: give {SHORTEST_KEY} or "
            "more, for example those of: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    certificates = f"{settings.emulator}/certs" if settings.emulator else CERTIFICATES
    return Trust(settings.home, settings.signing_key, settings.trust_store, certificates, settings.retention)


def prune(home: Path, keep: float) -> None:
    """Forget the jobs of which nothing new was known for so many seconds."""
    folder = home / FOLDER
    for memory in folder.glob("*/*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if time.time() - memory.stat().st_mtime > keep:
                memory.unlink()


def _wrong_machine(claims: Mapping[str, Any], account: str, project: str) -> str:
    """Return why the token is of a machine outside the plan's project, or of another account than the plan's, or ""."""
    email = claims.get("email")
    google = claims.get("google")
    engine = google.get("compute_engine") if isinstance(google, dict) else None
    machine = engine if isinstance(engine, dict) else {}
    if not isinstance(email, str) or claims.get("email_verified") is not True:
        return "the identity token in its verdict names no account"
    if machine.get("project_id") != project:
        return f"it was computed in the project {machine.get('project_id')!r}, and the job's is {project!r}"
    if account:
        return "" if email == account else f"it was computed as {email}, and the job's account is {account}"
    number = re.escape(str(machine.get("project_number")))
    default = rf"{number}-compute@developer\.gserviceaccount\.com|service-{number}@cloud-tpu\.iam\.gserviceaccount\.com"
    return "" if re.fullmatch(default, email) else f"it was computed as {email}, not as the project's default account"


@functools.lru_cache(maxsize=4)
def _certificates(url: str, _hour: int) -> dict[str, str]:
    """Return Google's certificates by key id, fetched once an hour."""
    import requests

    try:
        answer = requests.get(url, timeout=_TIMEOUT)
        answer.raise_for_status()
        found = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise _Unproven(f"Google's certificates to check who computed it could not be had: {error}") from None
    if not isinstance(found, dict):
        raise _Unproven(f"{url} shows no certificates")
    return {str(key): str(certificate) for key, certificate in found.items()}
