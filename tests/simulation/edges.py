"""The edges between the code under test and the world: clocks, randomness, threads and machines are simulated."""

from __future__ import annotations

import functools
import gc
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pytest import MonkeyPatch

from kinetic_orchestration.capacity.races import backend as races
from kinetic_orchestration.capacity.shares import line, records
from kinetic_orchestration.host import host
from kinetic_orchestration.host.attempt import idle, lease, opening, self_delete
from kinetic_orchestration.host.machine import attestation, bootstrap, bucket_records
from kinetic_orchestration.host.machine.pod import pod, start
from kinetic_orchestration.host.machine.vm import gpus, member, network, rearming
from kinetic_orchestration.host.machine.vm.kept import cleaning
from kinetic_orchestration.host.prepare import prepare
from kinetic_orchestration.host.view import bucket, open_records, segments
from kinetic_orchestration.jobs import job as jobs
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, drivers, follower, verdicts
from kinetic_orchestration.jobs.watching import decode
from kinetic_orchestration.jobs.watching import look as looking
from kinetic_orchestration.jobs.watching.watchers import base, polling
from kinetic_orchestration.plan.values import TRAITS, Traits
from kinetic_orchestration.platforms.google.compute import client as compute
from kinetic_orchestration.platforms.google.compute import request as inserts
from kinetic_orchestration.platforms.google.tpu import request
from kinetic_orchestration.platforms.kubernetes import backend as kubernetes
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import processes
from tests.simulation.threads import Threads
from tests.simulation.world import World


@contextmanager
def simulated_edges(worlds: list[World]) -> Iterator[None]:
    """Replace clocks, sleeps, threads, random tokens, this boot of this machine and free ports by those of the last of
    `worlds`. Every process has a skew of its own: an age that is not judged by the store's time is wrong by minutes.
    """
    threads, real_sleep, RealThread = Threads(worlds), time.sleep, threading.Thread

    class Thread(RealThread):  # type: ignore[valid-type, misc]
        def __new__(cls, *args: Any, **how: Any) -> Any:
            inside = cls is Thread and worlds and worlds[-1].current is not None
            return threads.Thread(**how) if inside else super().__new__(cls)

    def local() -> float:
        world = worlds[-1]
        return world.now + (world.current.skew if world.current is not None else 0.0)

    def sleep(seconds: float) -> None:
        if worlds and worlds[-1].current is not None:
            worlds[-1].sleep(seconds)
        else:
            real_sleep(seconds)

    def token(size: int = 16) -> str:
        return f"{worlds[-1].random.getrandbits(8 * size):0{2 * size}x}"

    def life() -> str:
        current = worlds[-1].current
        return f"life {current.process.number}" if current is not None else ""

    with MonkeyPatch.context() as edges:
        edges.setattr(time, "time", local)
        edges.setattr(time, "monotonic", local)
        edges.setattr(time, "sleep", sleep)
        edges.setattr(threading, "Thread", Thread)
        edges.setattr(secrets, "token_hex", token)
        edges.setattr(processes, "machine", life)
        edges.setattr(opening, "_free_ports", lambda _hosts: {})
        for module in (bucket, segments, base, polling, lease):
            edges.setattr(module, "threading", threads)
        _distant_edges(edges, worlds)
        _kept_edges(edges, worlds)
        often = gc.get_threshold()
        gc.set_threshold(200_000, 20, 20)  # a world is one big cycle, and there are thousands
        try:
            yield
        finally:
            gc.set_threshold(*often)


class _OneByOne:
    """Acts as Several, on the thread that asks."""

    def __init__(self, act: Callable[[Any], Any], things: Sequence[Any], most: int) -> None:
        del most
        self._act, self._things = act, things

    def result(self) -> list[Any]:
        return [self._act(thing) for thing in self._things]


def _kept_edges(edges: MonkeyPatch, worlds: list[World]) -> None:
    """Replace what hosts of kept slices do with their machine: `KeptGround` has it."""
    end_slice, machine_of = bootstrap.end_slice, opening.machine_of

    def ground() -> Any:
        return worlds[-1].distance.ground

    def became(_program: str, words: list[str]) -> None:
        raise ground().became(words[3:])

    def end(resource: str, *args: Any, **how: Any) -> None:
        if resource.startswith("kept/"):
            ground().end_slice(how["taken"])
        else:
            end_slice(resource, *args, **how)

    def machine(at: Any) -> Any:
        return ground().machine_of(at) if at.resource.startswith("kept/") else machine_of(at)

    system = SimpleNamespace(
        path=os.path, utime=lambda _path: None, pipe=lambda: (0, 0), write=lambda _end, data: ground().told(data),
        dup2=lambda *_: None, closerange=lambda *_: None, execv=became,
    )  # fmt: skip
    agent = SimpleNamespace(
        metadata=lambda name: ground().metadata(name), fetch=lambda store, digest: ground().fetch(store, digest),
        agent_arguments=lambda told, host: ground().words(told, host), Failed=bootstrap.Failed,
        abort=lambda *args: ground().abort(*args),
    )  # fmt: skip

    class Standby:
        """Acts as standby.Standby: its processes become the next host as the one that keeps the machine would."""

        def __init__(self, _at: Any, agent: str, digest: str) -> None:
            self.agent, self.digest = agent, digest

        def take(self, _agent: str, words: Sequence[str], private: bytes) -> bool:
            ground().told(private)
            raise ground().became(list(words))

        def end(self) -> None:
            pass

    edges.setattr(idle, "Standby", Standby)
    edges.setitem(TRAITS, "kept", Traits(may_be_kept=True, races=True))
    edges.setattr(idle, "LOOKS", ((1.0, 60.0),))  # as of drivers.LONGEST_SLEEP
    edges.setattr(idle, "LATER", 3.0)
    edges.setattr(idle, "ARMED", 100.0)  # less than an attempt may take
    edges.setattr(idle, "os", system)
    edges.setattr(idle, "bootstrap", agent)
    edges.setattr(idle, "signal", SimpleNamespace(SIGTERM=15, SIGINT=2, SIGHUP=1, SIG_DFL=0, signal=lambda *_: None))
    edges.setattr(cleaning, "clean", lambda folder, marker, shared: ground().clean(folder, marker))
    edges.setattr(cleaning, "remember", lambda _folder: None)
    edges.setattr(rearming, "rearm", lambda at, when: ground().rearm(at, when))
    edges.setattr(bootstrap, "end_slice", end)

    def chance() -> float:
        drawn: float = worlds[-1].random.random()
        return drawn

    edges.setattr(lease, "random", SimpleNamespace(random=chance))
    for module in (opening, host):
        edges.setattr(module, "machine_of", machine)


def _distant_edges(edges: MonkeyPatch, worlds: list[World]) -> None:
    """Replace the edges of machines and of their followers, at a distance: `World.distance` is between them."""
    watcher_of, exchange, prepared, store_time = (
        drivers.watcher_of,
        bootstrap.exchange,
        prepare.prepare,
        bootstrap.store_time,
    )
    looked = looking.look
    opened = open_records.open_records

    def watcher(store: Any, backend: Any) -> Any:
        return worlds[-1].distance.watcher_of(store, backend) if store.metered else watcher_of(store, backend)

    def records_of(store: str) -> Any:
        return worlds[-1].distance.records if store.startswith("gs://") else opened(store)

    def ask(*args: Any, **how: Any) -> Any:
        distance = worlds[-1].distance if worlds else None
        return exchange(*args, **how) if distance is None else distance.ground.exchange(*args, **how)

    def clock() -> float:
        """A process of its own remembers it."""
        if not worlds or worlds[-1].distance is None:
            return store_time()
        machine = worlds[-1].distance.ground.machine()
        bootstrap._heard = machine.heard
        found = store_time()
        machine.heard = bootstrap._heard
        return found

    def prepare_(*args: Any, **how: Any) -> Any:
        distance = worlds[-1].distance if worlds else None
        return prepared(*args, **how) if distance is None else distance.ground.machine().agent._prepared()

    def look(store: Any, *args: Any, **how: Any) -> Any:
        """Record the start of a poll, on which decisions rest. Not each read of an intent begins one: the intent of the
        previous attempt is read when the next is written.
        """
        task = worlds[-1].current if worlds else None
        if task is not None:
            task.look_called = worlds[-1].now
        if task is not None and not store.metered:
            task.look_began = worlds[-1].now
        return looked(store, *args, **how)

    def sent(self: Api, access: Access, asked: Any) -> Any:
        del self
        return worlds[-1].distance.ground.api.sent(access.server, asked.method, asked.target, asked.body)

    def chance() -> float:
        return (worlds[-1].random if worlds else random).random()

    for module in (verdicts, looking):
        edges.setattr(module, "look", look)

    for module in (drivers, follower):
        edges.setattr(module, "watcher_of", watcher)
    edges.setattr(open_records, "open_records", records_of)
    edges.setattr(bucket_records, "CloudRecords", records_of)
    edges.setattr(bootstrap, "exchange", ask)
    edges.setattr(bootstrap, "store_time", clock)
    edges.setattr(bootstrap, "say", lambda text: worlds[-1].note("says", text))
    edges.setattr(line, "warn_once", lambda message: None)  # of a damaged book
    edges.setattr(bootstrap, "token", lambda fresh=False: "a token")
    edges.setattr(attestation, "identity", lambda _audience: "a proof")
    edges.setattr(bootstrap, "random", SimpleNamespace(random=chance))
    edges.setattr(prepare, "prepare", prepare_)
    for module in (reaper, kubernetes):
        edges.setattr(module, "side_by_side", lambda act, things, _threads: [act(thing) for thing in things])
    # Each process has its own, and none of a world waits for another's.
    edges.setattr(races, "_creations", SimpleNamespace(acquire=lambda timeout: True, release=lambda: None))
    for known in ("_charged", "_given_up"):
        edges.setattr(races, known, {})
    edges.setattr(pod, "_is_known", lambda _name: True)
    edges.setattr(start, "echo", lambda _line: None)
    edges.setattr(Api, "_sent", sent)
    for module in (request, inserts):
        edges.setattr(module, "startup_script", lambda: "#!/bin/sh")
    edges.setattr(compute, "kept", lambda _settings: worlds[-1].distance.ground.api)
    edges.setattr(member, "Several", _OneByOne)
    edges.setattr(gpus, "missing", lambda *_args, **_how: worlds[-1].distance.ground.gpus())
    edges.setattr(network, "receive", lambda *_args: None)
    edges.setattr(network, "knock", lambda *_args: "")
    dying = SimpleNamespace(SIGTERM=signal.SIGTERM, SIG_DFL=signal.SIG_DFL)
    dying.signal = lambda _number, _handler: worlds[-1].distance.ground.defenseless()
    edges.setattr(self_delete, "signal", dying)
    for verb in ("read", "decode"):  # pure, and asked of the same bytes again and again
        edges.setattr(wire.Beat, verb, staticmethod(functools.lru_cache(10_000)(getattr(wire.Beat, verb))))
    edges.setattr(jobs, "spec_of", functools.lru_cache(100)(jobs.spec_of))
    intent_of = functools.lru_cache(1_000)(actions.intent_of)
    for module in (actions, decode):
        edges.setattr(module, "intent_of", intent_of)
    edges.setattr(drivers, "LONGEST_SLEEP", 60.0)  # a virtual hour has too many halves of a second
    edges.setattr(records, "book_of", functools.lru_cache(100)(records.book_of))
    edges.setattr(line, "ROUND", 20.0)
    edges.setattr(line, "SOON", 45.0)
    edges.setattr(line, "LEASE", 100.0)
    for module in (base, polling):
        edges.setattr(module, "PACE", 10.0)
    edges.setattr(polling, "POLL_MIN", 10.0)
    edges.setattr(bucket, "QUICKEST", 2.0)
    edges.setattr(segments, "UNWATCHED", 10.0)
