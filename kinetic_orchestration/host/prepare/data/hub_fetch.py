"""A program for the Python of a job's environment, which has `huggingface_hub`: fetches files of one commit, several at
once, each to a part that a later run continues.

It gets what to fetch as JSON on its standard input. Its last line, if it fails, is JSON as well: whether another try
may mend it, and a sentence. It imports nothing of ours, since it runs anywhere.

The library's own download begins a file anew after a kill (2.4.0: its parts have random names, and the cache of
`hf_xet` 1.8.0 is off), so this one has the library find the file and transfer its bytes, and has a place of its own for
them. A file in Xet storage comes by `hf_xet` where that is installed, as a stream that begins where the part ends; if
that fails, the hub's ordinary address of the file continues the same part.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

SIDE_BY_SIDE = 8
PAUSES = (1.0, 4.0)  # seconds before the second and the third try of a file
PROGRESS = 64 << 20  # bytes: a try that has brought so many is not counted
MOST_BY_HTTP = 50 * 10**9  # bytes of a file that the hub sends from its ordinary address
FAILED = 3
FOR_GOOD, FULL, PASSING = "for good", "full", "passing"
_NO_TOKEN = "give the job a token that may read it: capture_env_vars=['HF_TOKEN'], or secrets={'HF_TOKEN': 'NAME'}"
_ADVICE = {
    "RepositoryNotFoundError": "the hub shows the repository to no one with this token, or it is gone",
    "GatedRepoError": "accept its terms on the hub's page with the account of this token",
    "RevisionNotFoundError": "the commit is gone from the hub: submit the job again, which takes the one that is there",
    "EntryNotFoundError": "the file is gone from the commit: submit the job again",
    "RemoteEntryNotFoundError": "the file is gone from the commit: submit the job again",
}


def fail(kind: str, message: str) -> None:
    """End this program with a sentence for the agent."""
    print("\n" + json.dumps([kind, message[:4000]]), flush=True)
    sys.stdout.flush()
    os._exit(FAILED)  # without waiting for the other files


def fetch(asked: dict[str, Any], file: dict[str, Any], *, xet: bool = True) -> None:
    """Fetch one file to its part, and then to its place; by Xet, if it is to be and can be."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(
        asked["repository"], file["name"], repo_type=asked["kind"], revision=asked["commit"], endpoint=asked["hub"]
    )
    headers = importlib.import_module("huggingface_hub.utils").build_hf_headers()  # with the token, if there is one
    about = get_hf_file_metadata(url, headers=headers, endpoint=asked["hub"])
    if about.size is not None and about.size != file["size"]:
        fail(PASSING, f"{file['name']} has {about.size} bytes on the hub, and {file['size']} in the commit")
    stored: Any = getattr(about, "xet_file_data", None)
    streams = None
    if stored is not None and (xet or file["size"] > MOST_BY_HTTP):
        streams = _streams(stored.refresh_route, json.dumps(_headers(headers, url, stored.refresh_route)))
    with open(file["part"], "ab") as part:
        if part.tell() > file["size"]:
            part.seek(0)
            part.truncate()
        if streams is None:
            headers = _headers(headers, url, about.location)
            http_get(about.location, part, resume_size=part.tell(), headers=headers, expected_size=file["size"])
        elif part.tell() < file["size"]:
            _stream(streams, stored.file_hash, file["size"], part)
    os.replace(file["part"], file["path"])


def _headers(headers: dict[str, str], url: str, location: str) -> dict[str, str]:
    """Return the headers of a request, without the token if it goes elsewhere."""
    kept = gets_token(url, location)
    return {name: value for name, value in headers.items() if kept or name.lower() != "authorization"}


def gets_token(url: str, location: str) -> bool:
    """Return True if the hub itself has a file; a signed address elsewhere gets no token, nor does one in clear."""
    return urlsplit(location)[:2] == urlsplit(url)[:2]


_opening = threading.Lock()


def _streams(route: str, headers: str) -> Any:
    """Return connections to the storage of Xet, by the address that gives a token for it; None without `hf_xet`."""
    with _opening:  # a token for all files, and not one for each: the hub counts the requests
        return _opened(route, headers)


@functools.cache
def _opened(route: str, headers: str) -> Any:
    if os.environ.get("HF_HUB_DISABLE_XET", "").upper() in ("1", "ON", "YES", "TRUE"):  # as the library reads it
        return None
    try:
        session = importlib.import_module("hf_xet").XetSession()
        streams = session.new_download_stream_group
    except (ImportError, AttributeError):  # of a release that knew no streams
        return None
    return streams(token_refresh_url=route, token_refresh_headers=json.loads(headers))


def _stream(streams: Any, name: str, size: int, part: Any) -> None:
    info = importlib.import_module("hf_xet").XetFileInfo(name, size)
    for piece in streams.download_stream(info, start=part.tell() or None):
        part.write(piece)
    if part.tell() != size:
        raise OSError(f"hf_xet has brought {part.tell()} of {size} bytes")


def _is_of_room(error: BaseException) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.ENOSPC, errno.EDQUOT) or f"os error {errno.ENOSPC}" in str(error)  # as hf_xet words it


def _here(error: BaseException, name: str) -> str:
    """Return what is amiss with this host and its environment, and not with the hub; "" if nothing is."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENAMETOOLONG:
        return f"no file of this host can have the name {name}: name a folder of the repository without it"
    if _is_of_room(error):
        return (
            f"the disk is full at {name}, and what had come was removed: take hosts with a larger disk, or name a "
            "folder of the repository"
        )
    if isinstance(error, ValueError) and "hf_xet" in str(error):  # of 50 GB and more, which comes in no other way
        return f"{name} is too large for huggingface_hub alone: add hf_xet>=1.8 to requirements=, and do not disable it"
    return ""


def _sentence(error: BaseException, name: str, hub: str) -> tuple[str, str]:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if here := _here(error, name):
        return FULL if _is_of_room(error) else FOR_GOOD, here
    told = " ".join(str(error).split())[:1000]
    if status in (400, 401, 403) and not gets_token(hub, str(error.response.url)):  # type: ignore[attr-defined]
        return PASSING, f"the hub's storage refuses {name} with {status}, as it does once an address is old: {told}"
    if status in (401, 403) and not os.environ.get("HF_TOKEN"):
        return FOR_GOOD, f"the hub refuses {name} with {status}: {_NO_TOKEN}"
    advice = next((_ADVICE[kind] for kind in kinds if kind in _ADVICE), "")
    if advice or (400 <= status < 500 and status not in (408, 416, 429)):
        return FOR_GOOD, f"the hub refuses {name} ({type(error).__name__}, {status}): {advice or told}"
    return PASSING, f"{name}: {type(error).__name__}: {told}"


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def main() -> None:
    asked = json.load(sys.stdin)
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        fail(
            FOR_GOOD,
            f"the environment of the job has no huggingface_hub ({error}). Add huggingface_hub to requirements=, or "
            "import it in the code that is sent",
        )

    failed = threading.Event()  # perhaps by Xet, which then is not tried again

    def one(file: dict[str, Any]) -> None:
        left = [*PAUSES]
        while True:
            had = _length(file["part"])
            try:
                fetch(asked, file, xet=asked["xet"] and not failed.is_set())
                return
            except Exception as error:
                kind, sentence = _sentence(error, file["name"], asked["hub"])
            if _length(file["part"]) >= had + PROGRESS:
                left = [*PAUSES]
            if not left or kind != PASSING:
                fail(kind, sentence)
            failed.set()
            time.sleep(left.pop(0))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(one, asked["files"]))


if __name__ == "__main__":
    main()
