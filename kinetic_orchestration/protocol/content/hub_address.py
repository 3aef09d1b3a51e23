"""Addresses of repositories on Hugging Face's hub, as its own file system writes them: `hf://owner/name@revision/path`,
and `hf://datasets/…`, `hf://spaces/…` (https://huggingface.co/docs/huggingface_hub/guides/hf_file_system). Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SCHEME = "hf://"
KINDS = {"datasets": "dataset", "spaces": "space"}  # models have no word
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[^\s\x00-\x1f\x7f@?#\\^~:*\[]{1,250}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Unaddressed(ValueError):
    """The address names no repository; the message says what to write."""


class Repository(NamedTuple):
    """A repository at a revision, or a folder or a file of it."""

    kind: str  # "model", "dataset" or "space"
    name: str  # owner/name
    revision: str
    path: str = ""

    @property
    def commit(self) -> str:
        """The revision, if it is a commit: 40 hex digits, which name one content for ever."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""

    def __str__(self) -> str:
        word = "" if self.kind == "model" else f"{self.kind}s/"
        return f"{SCHEME}{word}{self.name}@{self.revision}" + (f"/{self.path}" if self.path else "")

    def has(self, file: str) -> bool:
        """Return True if a file of the repository is meant by the address."""
        return not self.path or file == self.path or file.startswith(f"{self.path}/")


def parse(address: str) -> Repository:
    """Return what an address names; without a revision, that of the branch main. Raises Unaddressed."""
    word, _, rest = address.removeprefix(SCHEME).partition("/")
    kind = KINDS.get(word)
    first, second, path = (*(rest if kind else f"{word}/{rest}").split("/", 2), "", "")[:3]
    second, at, revision = second.partition("@")
    if at and not revision:
        raise Unaddressed(f"{address!r} names no revision after the @: write a branch, a tag or a commit")
    if "?" in address or not (_NAME.fullmatch(first) and _NAME.fullmatch(second)):
        raise Unaddressed(
            f"{address!r} names no repository of the hub: write hf://OWNER/NAME@REVISION, of a dataset "
            "hf://datasets/OWNER/NAME@REVISION, and a folder or a file of it behind that"
        )
    path = path.strip("/")
    revision = revision.replace("%2F", "/").replace("%2f", "/") or "main"  # of refs/pr/1, as the hub's library has it
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise Unaddressed(f"{address!r} names no path in a repository: {path!r}")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise Unaddressed(f"{address!r} names no revision: {revision!r} is no branch, tag or commit")
    return Repository(kind or "model", f"{first}/{second}", revision, path)
