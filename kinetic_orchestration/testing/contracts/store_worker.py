"""Several processes that use a store at once, run by file so that nothing but the package is imported: no pytest.

`store_worker.py '[modules]' MODULE:OPENER '[arguments]' ACTION '[arguments]' '[pipes]'` imports these modules once and
forks a process for each pair of pipes. That opens the store, writes its id, waits for a line, acts, and writes what
came of it as one line of JSON.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from kinetic_orchestration.platforms.store import Store

MEGABYTE = 1 << 20


def create(store: Store, rounds: int) -> list[int]:
    """The names that this process created."""
    return [n for n in range(rounds) if store.create(f"race/{n}", str(os.getpid()).encode()) is not None]


def upload(store: Store, rounds: int, folder: str) -> list[int]:
    won = []
    for n in range(rounds):
        path = f"{folder}/{os.getpid()}-{n}"
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(str(os.getpid()).encode() * 1000)
        if store.upload(f"uploads/{n}", path, move=n % 2 == 0):
            won.append(n)
    return won


def increment(store: Store, times: int) -> int:
    """Adds one to a counter; how often the store said that somebody else was faster."""
    lost = 0
    for _ in range(times):
        while True:
            record = store.read("counter")
            assert record is not None
            if store.swap("counter", b"%d" % (int(record.data) + 1), record.generation) is not None:
                break
            lost += 1
    return lost


def renew(store: Store, times: int) -> list[tuple[int, int]]:
    """Swaps an object for the same bytes; which generations this process replaced, and by which."""
    pairs = []
    for _ in range(times):
        record = store.read("same")
        assert record is not None
        if (generation := store.swap("same", record.data, record.generation)) is not None:
            pairs.append((record.generation, generation))
    return pairs


def overwrite(store: Store, times: int) -> list[tuple[int, int]]:
    """Puts a megabyte of one letter again and again; which generation has which letter."""
    return [(store.put("whole", bytes([65 + n % 26]) * MEGABYTE), 65 + n % 26) for n in range(times)]


def recreate(store: Store, times: int) -> list[int]:
    """Creates and deletes one object in a folder of its own; the generations it had."""
    generations = []
    for n in range(times):
        generation = store.create("come/and/go", bytes([65 + n % 26]) * MEGABYTE)
        if generation is not None:
            generations.append(generation)
        store.delete("come/and/go")
    return generations


def flood(store: Store) -> None:
    """Writes in every way until it is killed."""
    for n in itertools.count():
        data = bytes([65 + n % 26]) * MEGABYTE
        store.create(f"flood/{os.getpid()}/{n % 50}", data)
        store.put("flood/put", data)
        record = store.read("flood/swap", 0, 1)
        if record is None:
            store.create("flood/swap", data)
        else:
            store.swap("flood/swap", data, record.generation)
        store.delete(f"flood/{os.getpid()}/{(n - 10) % 50}")


def fork(store: Store, times: int) -> int:
    """Uses the store from here and from a child that is forked while it is in use."""
    store.create("before", b"x")
    child = os.fork()
    for n in range(times):
        assert store.create(f"forked/{'parent' if child else 'child'}/{n}", b"x") is not None
    if not child:
        os._exit(0)
    return os.waitpid(child, 0)[1]


def member(pipes: list[int], open_store: Callable[..., Store], where: list[Any], act: Callable[..., Any]) -> None:
    with os.fdopen(pipes[0], "r") as orders, os.fdopen(pipes[1], "w") as told:
        store = open_store(*where)
        print(os.getpid(), file=told, flush=True)
        if orders.readline():
            print(json.dumps(act(store)), file=told, flush=True)


def main(modules: str, opener: str, where: str, action: str, arguments: str, pairs: str) -> int:
    for name in json.loads(modules):
        importlib.import_module(name)
    module, _, function = opener.partition(":")
    open_store, given, ends = (
        getattr(importlib.import_module(module), function),
        json.loads(arguments),
        json.loads(pairs),
    )
    members = []
    for pipes in ends:
        if (pid := os.fork()) == 0:
            try:
                for other in itertools.chain(*ends):
                    if other not in pipes:  # or nobody would see that its process has ended
                        os.close(other)
                member(pipes, open_store, json.loads(where), lambda store: globals()[action](store, *given))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        members.append(pid)
    for end in itertools.chain(*ends):
        os.close(end)
    return max(os.waitpid(pid, 0)[1] for pid in members) and 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
