"""One walk over a project: which files are sent, which are not, and which must be read.

Responsible for the kinds of things on a disk (files, links in and out of the tree, empty folders, sockets) and for
doing no more per unchanged file than a stat and a comparison. Reads no contents but ignore files; knows nothing of
digests.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.packaging.source import ignore
from kinetic_orchestration.packaging.source.stat_index import Index
from kinetic_orchestration.protocol.content.file_stamps import Stamp, stamp_of

MOST_ENTRIES = 20_000  # of a folder that is only measured
_IGNORE_FILES = (ignore.GIT, ignore.KINETIC)
_SPECIAL_NAMES = ignore.ENVIRONMENT_MARKS.union(_IGNORE_FILES)


class FileToRead(NamedTuple):
    """A file to be read: new, changed, or perhaps changed. `followed`: its path is a link that leads out.

    `allowed`: it is sent though it should look like a key.
    """

    path: str
    stamp: Stamp
    followed: bool = False
    allowed: bool = False


@dataclass(frozen=True)
class Listing:
    """The result of a walk. Paths are relative to the root, with slashes."""

    kept: list[str] = field(default_factory=list)  # as the index knows them
    fresh: list[FileToRead] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    ignored: set[str] = field(default_factory=set)
    withheld: dict[str, Stamp] = field(default_factory=dict)  # files that the index knows as keys
    rules: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Walk:
    """`index` spares questions: where no ignore file changed, what it knows as ignored or not still is."""

    def __init__(self, root: str, index: Index, rules: ignore.Rules, *, same: bool, excluded: Iterable[str]):
        self.root = root
        self.index = index
        self.rules = rules
        self.same = same
        self.excluded = frozenset(excluded)
        self.listing = Listing()
        self._links: dict[str, ignore.Rules] = {}
        self._rules: dict[str, ignore.Rules] = {}

    def everything(self) -> Listing:
        self._descend("", self.rules, self.same)
        self._resolve_links()
        return self.listing

    def only(self, paths: Iterable[str]) -> Listing:
        """Walk the named files and, by the rules, the named folders."""
        folder = "/"  # no path begins like this
        for path in sorted(set(paths), key=lambda path: path + "/"):
            if path.startswith(folder):
                continue
            try:
                status = os.lstat(f"{self.root}/{path}")
            except OSError as error:
                raise UsageError(f"{self.root}/{path} cannot travel with the job: {error.strerror}") from None
            if stat.S_ISDIR(status.st_mode):
                folder = f"{path}/"
                self._descend(folder, self._rules_of(path), same=False)
            elif stat.S_ISLNK(status.st_mode):
                self._links[path] = self._rules_of(path)
            else:
                self._take(path, status, self._rules_of(path))
        self._resolve_links()
        return self.listing

    def _rules_of(self, path: str) -> ignore.Rules:
        """The rules of the folder that contains it."""
        if not self.rules.defaults:
            return self.rules
        folder = os.path.dirname(path)
        if folder not in self._rules:
            rules, prefix = self.rules, ""
            for part in path.split("/"):
                rules = rules.below(prefix, *(ignore.read(f"{self.root}/{prefix}{name}") for name in _IGNORE_FILES))
                prefix += f"{part}/"
            self._rules[folder] = rules
        return self._rules[folder]

    def _descend(self, start: str, rules: ignore.Rules, same: bool) -> None:
        """The hot loop. A file that the index knows costs a stat and a comparison."""
        stamps, excluded = self.index.stamps, self.excluded
        keep = self.listing.kept.append
        stack = [(start, rules, same)]
        while stack:
            prefix, rules, same = stack.pop()
            entries = self._entries(prefix)
            if not entries:
                if entries is not None and prefix:
                    self.listing.empty.add(prefix[:-1])
                continue
            marks = [entry.name for entry in entries if entry.name in _SPECIAL_NAMES]
            if marks:
                if prefix and self.rules.defaults and not ignore.ENVIRONMENT_MARKS.isdisjoint(marks):
                    continue
                rules, same = self._enter(prefix, marks, rules, same)
            elif same:
                same = self._was_without_rules(prefix)
            self.listing.folders.add(prefix)

            for entry in entries:
                path = prefix + entry.name
                if excluded and path in excluded:
                    continue
                known = stamps.get(path) if same else None
                if known is not None:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if (
                        status.st_mode,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ino,
                        status.st_ctime_ns,
                    ) == known:
                        keep(path)
                        continue
                self._new(entry, path, rules, same, stack)

    def _new(
        self,
        entry: os.DirEntry[str],
        path: str,
        rules: ignore.Rules,
        same: bool,
        stack: list[tuple[str, ignore.Rules, bool]],
    ) -> None:
        """Handle an entry that is not in the index or has changed. The file that the index has at `path`, if any, has
        changed."""
        is_folder = entry.is_dir(follow_symlinks=False)
        key = f"{path}/" if is_folder else path
        index = self.index
        travels = same and (key in index.folders or key in index.stamps or key in index.links)
        if not travels and ((same and key in index.ignored) or rules.ignores(path, entry.name, is_folder)):
            self.listing.ignored.add(key)
            return
        if is_folder:
            stack.append((key, rules, same))
        elif entry.is_symlink():
            self._links[path] = rules
        else:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                self._take(path, entry.stat(follow_symlinks=False), rules)

    def _take(self, path: str, status: os.stat_result, rules: ignore.Rules, *, followed: bool = False) -> None:
        if stat.S_ISREG(status.st_mode):
            stamp, index = stamp_of(status), self.index
            if index.stamps.get(path) == stamp and (path not in index.allowed or rules.allows(path)):
                self.listing.kept.append(path)
                return
            allowed = rules.allows(path)
            if index.withheld.get(path) == stamp and not allowed:
                self.listing.withheld[path] = stamp
            else:
                self.listing.fresh.append(FileToRead(path, stamp, followed, allowed))
        else:
            self.listing.warnings.append(f"{path} is {_kind(status.st_mode)} and stays here")

    def _entries(self, prefix: str) -> list[os.DirEntry[str]] | None:
        try:
            with os.scandir(f"{self.root}/{prefix}") as scanned:
                return list(scanned)
        except (FileNotFoundError, NotADirectoryError):
            return None  # deleted meanwhile
        except OSError as error:
            raise unreadable(self.root, prefix, error) from None

    def _enter(self, prefix: str, marks: list[str], rules: ignore.Rules, same: bool) -> tuple[ignore.Rules, bool]:
        if not self.rules.defaults:
            return rules, same
        texts = []
        for name in _IGNORE_FILES:
            path = prefix + name
            text = ignore.read(f"{self.root}/{path}") if name in marks else None
            texts.append(text)
            same = same and self.index.rules.get(path) == text
            if text is not None:
                self.listing.rules[path] = text
        return rules.below(prefix, *texts), same

    def _was_without_rules(self, prefix: str) -> bool:
        known = self.index.rules
        return not known or (prefix + ignore.GIT not in known and prefix + ignore.KINETIC not in known)

    def _resolve_links(self) -> None:
        """Keep a link that stays inside; send a file outside as a file; warn of other links."""
        inside = []
        for path, rules in sorted(self._links.items(), key=itemgetter(0)):
            full = f"{self.root}/{path}"
            try:
                text = os.readlink(full)
            except OSError:
                continue  # deleted meanwhile
            try:
                status = os.stat(full)
            except OSError as error:
                self.listing.links[path] = text
                self.listing.warnings.append(f"{path} is a link to {text}, which fails: {error.strerror}")
                continue
            real = os.path.realpath(full)
            if real == self.root or real.startswith(f"{self.root}/"):
                self.listing.links[path] = _inside_text(path, text, os.path.relpath(real, self.root))
                inside.append((path, os.path.relpath(real, self.root)))
            elif stat.S_ISDIR(status.st_mode):
                self.listing.links[path] = text
                self.listing.warnings.append(
                    f"{path} is a link to the folder {text} outside the project; the link travels, the "
                    "folder does not: wrap it in Data, or move it into the project"
                )
            else:
                self._take(path, status, rules, followed=True)
        if not inside:
            return
        travels = {*self.listing.kept, *(found.path for found in self.listing.fresh), *self.listing.empty}
        for path, real in inside:
            if real not in travels and real != "." and f"{real}/" not in self.listing.folders:
                self.listing.warnings.append(f"{path} is a link to {real}, which stays here")


def measure(root: Path, stop: Path | None, *, files: int, size: int) -> tuple[int, int] | None:
    """Count the files that a walk over the folder would find, and their bytes; None if either exceeds its limit.

    Also None after many more entries, ignored ones included: to count on would take too long. `stop` as in `ignore`.
    """
    found = amount = seen = 0
    stack = [("", ignore.outer_rules(ignore.outer_texts(root, stop)))]
    while stack:
        prefix, rules = stack.pop()
        try:
            with os.scandir(f"{root}/{prefix}") as scanned:
                entries = list(itertools.islice(scanned, MOST_ENTRIES))
        except OSError:
            continue  # the walk reports it
        seen += len(entries)
        if seen >= MOST_ENTRIES:
            return None
        marks = {entry.name for entry in entries if entry.name in _SPECIAL_NAMES}
        if prefix and not ignore.ENVIRONMENT_MARKS.isdisjoint(marks):
            continue
        texts = (ignore.read(f"{root}/{prefix}{name}") if name in marks else None for name in _IGNORE_FILES)
        rules = rules.below(prefix, *texts)
        for entry in entries:
            path, is_folder = prefix + entry.name, entry.is_dir(follow_symlinks=False)
            if rules.ignores(path, entry.name, is_folder):
                continue
            if is_folder:
                stack.append((f"{path}/", rules))
                continue
            with contextlib.suppress(OSError):
                amount += entry.stat(follow_symlinks=False).st_size
            found += 1
            if found > files or amount > size:
                return None
    return found, amount


def unreadable(root: str, path: str, error: OSError) -> UsageError:
    """The one error for what cannot be read, with the line that leaves it out."""
    path = shown(path)
    return UsageError(
        f"{root}/{path} cannot be read ({error.strerror}), so the project cannot travel. Make it readable, "
        f"or add this line to {root}/{ignore.KINETIC}:  /{escaped(path)}"
    )


def shown(path: str) -> str:
    """A path as it can be printed: bytes that are not UTF-8 as escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def escaped(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[\\" else letter for letter in path)


def _inside_text(path: str, text: str, real: str) -> str:
    """The link's text if it is valid wherever the tree is, else one that is."""
    folder = os.path.dirname(path)
    if not os.path.isabs(text):
        meant = os.path.normpath(os.path.join(folder, text))
        if meant != ".." and not meant.startswith("../"):
            return text
    return os.path.relpath(real, folder or ".")


def _kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a named pipe" if stat.S_ISFIFO(mode) else "a device"
