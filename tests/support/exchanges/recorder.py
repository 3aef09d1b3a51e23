"""The recorder: reads what the emulated clouds of this session have journaled, in whatever process they ran, and checks it.

It owns the folder, and which test hears of what. An exchange that was right is not looked at again.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.journal import Exchange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.support.exchanges.checks import Finding
    from tests.support.exchanges.openapi import Documents

_REMEMBERED = 10_000  # of the last exchanges that were right
_TOLD = 5  # findings of one test, in full


class Recorder:
    """Reads a folder of journals again and again. `checked` counts the exchanges.

    Args:
        folder: The folder.
        openapi: Returns the documents that a Kubernetes API server publishes, or None; asked at the first exchange with one.
    """

    def __init__(self, folder: Path, openapi: Callable[[], Documents | None] = lambda: None) -> None:
        self.folder = folder
        self._openapi = functools.cache(openapi)
        self.checked = 0
        self._read: dict[str, int] = {}
        self._right: OrderedDict[int, None] = OrderedDict()

    def findings(self) -> list[Finding]:
        """Returns what is wrong in the exchanges since the last time."""
        return [finding for exchange in self._exchanges() for finding in self._check(exchange)]

    @contextmanager
    def wrong(self, *patterns: str) -> Iterator[None]:
        """Around what a test does wrong on purpose: each pattern is found in what is told of it, and nothing else."""
        before = self.findings()
        yield
        found = {str(finding): finding for finding in self.findings()}
        missed = [pattern for pattern in patterns if not any(re.search(pattern, text) for text in found)]
        others = [found[text] for text in found if not any(re.search(pattern, text) for pattern in patterns)]
        assert not missed, f"nothing wrong was found with {missed}; found was:\n{told([*found.values()])}"
        if before or others:
            raise AssertionError(told([*before, *others]))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self, exchange: Exchange) -> list[Finding]:
        from tests.support.exchanges.checks import check  # loads Google's libraries, which most tests have no use for

        self.checked += 1
        key = hash(exchange)
        if key in self._right:
            self._right.move_to_end(key)
            return []
        found = check(exchange, self._openapi() if exchange.face == "kubernetes" else None)
        if not found:
            self._right[key] = None
            if len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)
        return found

    def _exchanges(self) -> Iterator[Exchange]:
        """The new exchanges; a file that its process has left behind is removed."""
        names = sorted(os.listdir(self.folder))
        newest = {name.partition("-")[0]: name for name in names}  # of each process
        for name in names:
            path = self.folder / name
            at = self._read.get(name, 0)
            if path.stat().st_size > at:
                with path.open("rb") as file:
                    file.seek(at)
                    data = file.read()
                for exchange, end in journal.entries(data):
                    self._read[name] = at + end
                    yield exchange
            if name not in newest.values():
                path.unlink()
                self._read.pop(name, None)


def told(findings: list[Finding]) -> str:
    more = f"\n… and {len(findings) - _TOLD} more" if len(findings) > _TOLD else ""
    return (
        f"{len(findings)} departures from the documents of Google's APIs, or of a Kubernetes API server:\n"
        + "\n".join(map(str, findings[:_TOLD]))
        + more
    )
