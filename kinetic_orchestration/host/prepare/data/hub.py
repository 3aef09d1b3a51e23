"""Fetches the files of a commit of a repository on Hugging Face's hub to this host's disk, by the hub's own library in
the environment of the job, and holds them to the digests that the client was told.

What a killed fetch has left is continued. It decides what is fetched; `hub_fetch` is the program that does it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.content import hub_address, pins
from kinetic_orchestration.protocol.content.digest import plain_of_file
from kinetic_orchestration.protocol.system.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONTENT, PARTS = "content", "parts"
SPARE = 256 << 20  # of a disk, which is never filled to the brim
TRIES = 2  # of a file whose bytes are not those of the commit
READERS = 4
TOLD = 16 << 10  # bytes of what a failed fetch has printed
TOKEN = "HF_TOKEN"
_QUERY = re.compile(r"(https?://[^\s?'\"]+\?)[^\s'\"]+")  # of a signed address, which opens its file to anybody
# Of hf_xet 1.8.0, which else tries for four minutes where its servers cannot be reached. What it gives up goes on by
# the ordinary address.
_XET = {
    "HF_XET_CLIENT_CONNECT_TIMEOUT": "10s",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "1s",
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "2",
}
_PASSING, _FULL = "passing", "full"  # words of `hub_fetch`: another attempt may mend it; there is no room


class Unfetched(Exception):
    """The files could not be fetched. `passing`: another attempt may have more luck. `full`: there is no room."""

    def __init__(self, message: str, *, passing: bool = False, full: bool = False) -> None:
        super().__init__(message)
        self.passing = passing
        self.full = full


def fetch(
    pinned: pins.Pinned,
    root: str,
    python: str,
    environ: Mapping[str, str],
    note: Callable[[str], object],
    held: Sequence[int] = (),
) -> str:
    """Return the path of the file or folder that the address names.

    Args:
        pinned: The files of a commit.
        root: Folder that this process has to itself; it may have what an earlier fetch has left.
        python: Interpreter of the job's environment.
        environ: The program's variables, with a token if it has one.
        note: Is told what is fetched.
        held: Descriptors that a fetch which outlives this process keeps open.

    Raises:
        Unfetched: The disk cannot have all names; or there is no room, and what had come is removed, since nobody could
            continue it and the next job needs the room; or the library is missing, or the hub refused or has other
            content.
    """
    import shutil

    try:
        return _fetched(pinned, root, python, environ, note, held)
    except Unfetched as error:
        for folder in (CONTENT, PARTS) if error.full else ():
            shutil.rmtree(os.path.join(root, folder), ignore_errors=True)
        raise


def _fetched(
    pinned: pins.Pinned,
    root: str,
    python: str,
    environ: Mapping[str, str],
    note: Callable[[str], object],
    held: Sequence[int],
) -> str:
    import shutil

    began = time.monotonic()
    at = hub_address.parse(pinned.address)
    _check_names(pinned, root)
    wanted = _missing(pinned, root)
    _check_room(pinned, root, wanted)
    if wanted:
        note(f"{len(wanted):,} files ({_size(sum(file.size for file in wanted))}) are fetched of {pinned.address}")
    for left in reversed(range(TRIES)):
        if wanted:  # what came with other bytes comes in the other way than Xet
            _run(pinned, root, wanted, python, environ, held, xet=left == TRIES - 1)
        wanted = _wrong(pinned, root)
        if not wanted:
            shutil.rmtree(os.path.join(root, PARTS), ignore_errors=True)  # also what the library keeps of its own
            note(f"{pinned.address} is here and verified, after {time.monotonic() - began:.1f} s")
            return os.path.join(root, CONTENT, *at.path.split("/")) if at.path else os.path.join(root, CONTENT)
        for file in wanted:
            os.unlink(_place(root, file))
        if left:
            note(f"{wanted[0].name} of {pinned.address} has other bytes here than in the commit, and is fetched again")
    names = ", ".join(file.name for file in wanted[:3])
    raise Unfetched(
        f"{pinned.address}: {names} came {TRIES} times with other bytes than the commit has ({wanted[0].mark}). Look "
        f"for what lies between this host and {pinned.hub}: a proxy, or a mirror in HF_ENDPOINT",
        passing=True,
    )


def _check_names(pinned: pins.Pinned, root: str) -> None:
    """Raise Unfetched if two names of the repository are one on this disk, as on most disks of macOS."""
    pair = pins.alike(file.name for file in pinned.files)
    if pair and tells_no_case(root):
        raise Unfetched(
            f"{pinned.address} has {pair[0]!r} and {pair[1]!r}, which are one name on the disk of {root}: name a "
            f"folder or a file of it ({pinned.address}/PATH), or set KINETIC_HOME to a folder of a disk that tells "
            "upper case from lower case"
        )


def tells_no_case(folder: str) -> bool:
    """Return True if a file of this folder is found by its name in upper case."""
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="case-", dir=folder) as found:
        return os.path.lexists(os.path.join(folder, os.path.basename(found.name).upper()))


def _place(root: str, file: pins.File) -> str:
    return os.path.join(root, CONTENT, file.name)


def _part(root: str, file: pins.File) -> str:
    name = hashlib.sha256(f"{file.mark} {file.name}".encode("utf-8", "surrogatepass")).hexdigest()
    return os.path.join(root, PARTS, name)


def _missing(pinned: pins.Pinned, root: str) -> list[pins.File]:
    """Return the files that are not here with their size; all that are here are verified in the end."""
    return [file for file in pinned.files if _length(_place(root, file)) != file.size]


def _length(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _check_room(pinned: pins.Pinned, root: str, wanted: Sequence[pins.File]) -> None:
    """Raise Unfetched unless what is still to come fits on the disk, with some to spare."""
    here = sum(max(_length(_part(root, file)), 0) for file in wanted)
    needed = max(sum(file.size for file in wanted) - here, 0)
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    if needed + min(SPARE, needed) > free:
        began = f", beside the {_size(had)} that had come and are removed now" if (had := _had(pinned, root)) else ""
        raise Unfetched(
            f"{pinned.address} does not fit on this host: {_size(needed)} are still to come, and the disk of {root} "
            f"has {_size(free)} free{began}. Name a folder or a file of the repository ({pinned.address}/PATH), take "
            "hosts with a larger disk, or put the files into a bucket and read them there, with "
            "Data('gs://…/', stream=True)",
            full=True,
        )


def _had(pinned: pins.Pinned, root: str) -> int:
    paths = (place(root, file) for file in pinned.files for place in (_place, _part))
    return sum(max(_length(path), 0) for path in paths)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _wrong(pinned: pins.Pinned, root: str) -> list[pins.File]:
    """Return the files whose content is not that of the commit."""
    right = side_by_side(lambda file: _is_right(root, file), pinned.files, READERS, name="kinetic-hub")
    return [file for file, is_right in zip(pinned.files, right, strict=True) if not is_right]


def _is_right(root: str, file: pins.File) -> bool:
    path = _place(root, file)
    if os.path.islink(path) or os.path.getsize(path) != file.size:
        return False
    if file.mark.startswith(pins.SHA256):
        return plain_of_file(path) == file.mark[len(pins.SHA256) :]
    found = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)  # as git names a file's content
    with open(path, "rb") as content:
        while piece := content.read(1 << 20):
            found.update(piece)
    return file.mark == pins.GIT + found.hexdigest()


def _run(
    pinned: pins.Pinned,
    root: str,
    wanted: Sequence[pins.File],
    python: str,
    environ: Mapping[str, str],
    held: Sequence[int],
    *,
    xet: bool,
) -> None:
    """Have the files fetched. Raises Unfetched."""
    import pkgutil
    import subprocess
    import tempfile

    at = hub_address.parse(pinned.address)
    os.makedirs(os.path.join(root, PARTS), exist_ok=True)
    files = []
    for file in wanted:
        os.makedirs(os.path.dirname(_place(root, file)), exist_ok=True)
        files.append({"name": file.name, "size": file.size, "part": _part(root, file), "path": _place(root, file)})
    asked = {
        "hub": pinned.hub, "kind": at.kind, "repository": at.name, "commit": at.commit, "files": files, "xet": xet
    }  # fmt: skip
    program = pkgutil.get_data(__package__, "hub_fetch.py") or b""  # the agent may be in a zip
    with tempfile.TemporaryFile() as told:
        done = subprocess.run(
            [python, "-I", "-c", program.decode()],
            input=json.dumps(asked).encode(),
            stdout=told,
            stderr=subprocess.STDOUT,
            env={
                **_XET,
                **environ,
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "HF_HUB_OFFLINE": "0",  # is for the program, whose files these are
                "HF_XET_CACHE": os.path.join(root, PARTS, "xet"),
            },
            cwd=root,
            pass_fds=tuple(held),
            check=False,
        )
        told.seek(max(told.seek(0, os.SEEK_END) - TOLD, 0))
        text = told.read().decode(errors="replace").rstrip()
    if done.returncode:
        raise _failure(pinned, text, done.returncode, environ.get(TOKEN, ""))


def _failure(pinned: pins.Pinned, text: str, code: int, token: str) -> Unfetched:
    kind, message = _PASSING, ""
    try:
        kind, message = (str(part) for part in json.loads(text.rpartition("\n")[2]))
    except (ValueError, TypeError):
        message = f"the program that fetches ended with {code}: {text[-2000:] or 'it printed nothing'}"
    if token := token.strip():
        message = message.replace(token, "…")
    message = _QUERY.sub(r"\1…", message)
    return Unfetched(f"{pinned.address} could not be fetched: {message}", passing=kind == _PASSING, full=kind == _FULL)
