"""A program for the Python of a job's environment, which has `huggingface_hub`: fetches files of one commit, several at
once, each to a part that a later run continues.

It gets what to fetch as JSON on its standard input. Its last line, if it fails, is JSON as well: whether another try
may mend it, and a sentence. It imports nothing of ours, since it runs anywhere.

The library's own download begins a file anew after a kill (2.4.0: its parts have random names), so this one has the
library find the file and transfer its bytes, and has a place of its own for them. Files in Xet storage are
left to the library where `hf_xet` is installed.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

SIDE_BY_SIDE = 8
PAUSES = (1.0, 4.0)  # seconds before the second and the third try of a file
FAILED = 3
FOR_GOOD, PASSING = "for good", "passing"
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


def fetch(asked: dict[str, Any], file: dict[str, Any]) -> None:
    """Fetch one file to its part, and then to its place."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(
        asked["repository"], file["name"], repo_type=asked["kind"], revision=asked["commit"], endpoint=asked["hub"]
    )
    headers = importlib.import_module("huggingface_hub.utils").build_hf_headers()  # with the token, if there is one
    about = get_hf_file_metadata(url, headers=headers)
    if about.size is not None and about.size != file["size"]:
        fail(PASSING, f"{file['name']} has {about.size} bytes on the hub, and {file['size']} in the commit")
    if getattr(about, "xet_file_data", None) is not None and _has_xet():
        _fetch_by_library(asked, file)
        return
    if not gets_token(url, about.location):
        headers.pop("authorization", None)
    with open(file["part"], "ab") as part:
        if part.tell() > file["size"]:
            part.truncate(0)
        http_get(about.location, part, resume_size=part.tell(), headers=headers, expected_size=file["size"])
    os.replace(file["part"], file["path"])


def gets_token(url: str, location: str) -> bool:
    """Return True if the hub itself has a file; a signed address elsewhere gets no token, nor does one in clear."""
    return urlsplit(location)[:2] == urlsplit(url)[:2]


def _has_xet() -> bool:
    return importlib.util.find_spec("hf_xet") is not None and os.environ.get("HF_HUB_DISABLE_XET", "0") in ("", "0")


def _fetch_by_library(asked: dict[str, Any], file: dict[str, Any]) -> None:
    from huggingface_hub import hf_hub_download

    folder = f"{file['part']}.library"
    found = hf_hub_download(
        asked["repository"], file["name"], repo_type=asked["kind"], revision=asked["commit"], endpoint=asked["hub"],
        local_dir=folder,
    )  # fmt: skip
    os.replace(found, file["path"])


def _here(error: BaseException, name: str) -> str:
    """Return what is amiss with this host and its environment, and not with the hub; "" if nothing is."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENAMETOOLONG:
        return f"no file of this host can have the name {name}: name a folder of the repository without it"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full at {name}: take hosts with a larger disk, or name a folder of the repository"
    if isinstance(error, ValueError) and "hf_xet" in str(error):  # of 50 GB and more, which comes in no other way
        return f"{name} is too large for huggingface_hub alone: add hf_xet to requirements="
    return ""


def _sentence(error: BaseException, name: str, hub: str) -> tuple[str, str]:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if here := _here(error, name):
        return FOR_GOOD, here
    told = " ".join(str(error).split())[:1000]
    if status in (400, 401, 403) and not gets_token(hub, str(error.response.url)):  # type: ignore[attr-defined]
        return PASSING, f"the hub's storage refuses {name} with {status}, as it does once an address is old: {told}"
    if status in (401, 403) and not os.environ.get("HF_TOKEN"):
        return FOR_GOOD, f"the hub refuses {name} with {status}: {_NO_TOKEN}"
    advice = next((_ADVICE[kind] for kind in kinds if kind in _ADVICE), "")
    if advice or (400 <= status < 500 and status not in (408, 416, 429)):
        return FOR_GOOD, f"the hub refuses {name} ({type(error).__name__}, {status}): {advice or told}"
    return PASSING, f"{name}: {type(error).__name__}: {told}"


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

    def one(file: dict[str, Any]) -> None:
        for pause in (*PAUSES, None):
            try:
                fetch(asked, file)
                return
            except Exception as error:
                kind, sentence = _sentence(error, file["name"], asked["hub"])
            if pause is None or kind == FOR_GOOD:
                fail(kind, sentence)
            else:
                time.sleep(pause)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(one, asked["files"]))


if __name__ == "__main__":
    main()
