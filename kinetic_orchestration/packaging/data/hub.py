"""Asks Hugging Face's hub which commit a revision is now, and which files it has: one request.

The files themselves are fetched by the hosts (`host/prepare/data/hub`). What the hub says is checked before it is used.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from kinetic_orchestration.errors import DataNotFound, Denied, KineticError, Unreachable, Unsupported, UsageError
from kinetic_orchestration.protocol.content import hub_address, pins
from kinetic_orchestration.protocol.content.hub_address import Repository

ORIGIN: Final = "https://huggingface.co"
TOKEN: Final = "HF_TOKEN"
PAUSES = (0.5, 2.0)  # before the second and the third try
_LIMIT: Final = 64 << 20  # bytes of an answer
_TIMEOUT: Final = 30.0
_MARKS: Final = (("sha256", 64, pins.SHA256), ("blobId", 40, pins.GIT))


class Found(NamedTuple):
    """The files of a commit, and whether only some may read them."""

    pinned: pins.Pinned
    restricted: bool


def parse(address: str) -> Repository:
    """Return the repository that an address names. Raises Unsupported."""
    try:
        return hub_address.parse(address)
    except hub_address.Unaddressed as error:
        raise Unsupported(f"Data({address!r}): {error}") from None


def find(address: str, environ: Mapping[str, str]) -> Found:
    """Return the files at an address, of the commit that its revision is now.

    Args:
        address: `hf://…`.
        environ: Has `HF_ENDPOINT`, `HF_TOKEN` and the places of a login, as the hub's own library reads them.

    Raises:
        DataNotFound: The hub has no such repository, revision or path, or does not show it to this account.
        Denied: The account may not read it.
        Unreachable: The hub did not answer.
        UsageError: What it answers cannot be used.
    """
    asked = parse(address)
    origin = environ.get("HF_ENDPOINT", "").rstrip("/") or ORIGIN
    if "@" in urlsplit(origin).netloc:  # it would be in the list of files, and in messages
        raise UsageError("HF_ENDPOINT has a password or a user in it: write https://HOST, and set HF_TOKEN")
    if urlsplit(origin).scheme not in ("https", "http") or not urlsplit(origin).netloc:
        raise UsageError(f"HF_ENDPOINT={origin!r} is no address of a server: write https://HOST")
    target = f"{origin}/api/{asked.kind}s/{asked.name}/revision/{quote(asked.revision, safe='')}?blobs=true"
    answer = _ask(target, _token(environ), asked, address)
    commit = answer.get("sha")
    at = asked._replace(revision=commit if isinstance(commit, str) else "")
    if not at.commit or (asked.commit and at.commit != asked.commit):
        raise UsageError(f"{origin} names no commit of {address}: is HF_ENDPOINT a server of the hub's API?")
    listed = answer.get("siblings")
    entries = listed if isinstance(listed, list) else []
    if len(entries) >= pins.MOST_FILES:
        raise UsageError(f"{address} has {len(entries):,} files or more, too many to list: use a repository with fewer")
    try:
        files = [_file(entry) for entry in entries]
        _check_folders({file.name for file in files})
        pinned = pins.pinned(str(at), [file for file in files if at.has(file.name)], origin)
    except pins.Unpinned as error:
        raise UsageError(f"Data({address!r}) is refused: {error}") from None
    if not pinned.files:
        has = ", ".join(sorted({file.name.partition("/")[0] for file in files})[:8]) or "no files"
        raise DataNotFound(f"Data({address!r}): there is nothing at {asked.path!r} in it, which has {has}")
    return Found(pinned, bool(answer.get("private")) or answer.get("gated") not in (None, False))


def _check_folders(names: Collection[str]) -> None:
    """Raise Unpinned if a file would have to be a folder as well."""
    for name in names:
        above = name
        while above := above.rpartition("/")[0]:
            if above in names:
                raise pins.Unpinned(f"the hub lists {above!r} as a file and as a folder")


def _file(entry: Any) -> pins.File:
    """Return a file that the hub lists, with the strongest mark of its content: the sha256 of a large file, or the
    hash that git gives to a small one (https://huggingface.co/docs/hub/api)."""
    fields = entry if isinstance(entry, dict) else {}
    large = fields.get("lfs")
    told = {**fields, **(large if isinstance(large, dict) else {})}
    name, size = fields.get("rfilename"), told.get("size")
    if not isinstance(name, str) or not isinstance(size, int):
        raise pins.Unpinned("the hub lists a file without a name or a size")
    for field, length, kind in _MARKS:
        mark = told.get(field)
        if isinstance(mark, str) and len(mark) == length and all(letter in "0123456789abcdef" for letter in mark):
            return pins.File(name, size, kind + mark)
    raise pins.Unpinned(f"the hub gives no digest of {name[:200]!r}, so nobody could tell whether it came whole")


def _ask(target: str, token: str, asked: Repository, address: str) -> dict[str, Any]:
    request = urllib.request.Request(target, headers={"Accept": "application/json", "User-Agent": "kinetic"})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    error: KineticError
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                return _json(reply.read(_LIMIT + 1), target)
        except urllib.error.HTTPError as refused:
            with refused:
                error = _refusal(refused, asked, address, has_token=bool(token))
        except (OSError, http.client.HTTPException) as broken:
            reason = getattr(broken, "reason", broken)
            error = Unreachable(
                f"Data({address!r}): {urlsplit(target).netloc} did not answer ({reason}): try again, or name the "
                "server that this network has in HF_ENDPOINT"
            )
        if pause is None or not isinstance(error, Unreachable):
            break
        time.sleep(pause)
    raise error


def _json(data: bytes, target: str) -> dict[str, Any]:
    try:
        if len(data) > _LIMIT:
            raise ValueError(f"it has more than {_LIMIT >> 20} MiB")
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"what {target} answers cannot be read: {str(error)[:200]}") from None
    return found


def _refusal(refused: urllib.error.HTTPError, asked: Repository, address: str, *, has_token: bool) -> KineticError:
    """Return the error of an answer, by the code in which the hub says what is wrong (X-Error-Code)."""
    code, host = str(refused.headers.get("X-Error-Code", "")), urlsplit(refused.url).netloc
    page = f"https://{host}/{'' if asked.kind == 'model' else asked.kind + 's/'}{asked.name}"
    hidden = "from the account of this token" if has_token else "from those who are not logged in"
    if code == "GatedRepo":
        return Denied(
            f"Data({address!r}) is gated: accept its terms on {page}, and set HF_TOKEN to a token that may read"
        )
    if code == "RevisionNotFound":
        return DataNotFound(
            f"Data({address!r}): {asked.name} has no revision {asked.revision!r}: see {page}/commits/main"
        )
    if refused.code in (401, 403, 404):
        other = "a dataset is hf://datasets/OWNER/NAME" if asked.kind == "model" else "a model is hf://OWNER/NAME"
        return DataNotFound(
            f"Data({address!r}): {host} has no {asked.kind} {asked.name}, or hides it {hidden} ({refused.code}). If it "
            f"is private, set HF_TOKEN to a token that may read it; {other}"
        )
    if refused.code in (408, 429) or refused.code >= 500:
        return Unreachable(f"Data({address!r}): {host} answers {refused.code}: try again later")
    return UsageError(f"Data({address!r}): {host} refuses with {refused.code}")


def _token(environ: Mapping[str, str]) -> str:
    """Return the user's token, from where the hub's own library and `hf auth login` have it
    (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables); "" without a login."""
    token = environ.get(TOKEN, "").strip() or _of_login(environ)
    if not (token.isascii() and token.isprintable()):  # whose refusal by http.client would show it
        raise UsageError("the token of the hub has line breaks or other signs that none has: set HF_TOKEN anew")
    return token


def _of_login(environ: Mapping[str, str]) -> str:
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    try:
        return Path(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""
