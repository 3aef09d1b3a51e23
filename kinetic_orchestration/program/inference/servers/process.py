"""The process of a model's server on this host: started, awaited until it is healthy, started again after it died, and
ended with all that it started.

Does not know what is asked of it. Its log is a file; what a message quotes of it is its end.
"""

from __future__ import annotations

import contextlib
import http.client
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from kinetic_orchestration.errors import EngineLost, EngineNotStarted
from kinetic_orchestration.host.process import topology
from kinetic_orchestration.program.inference import models
from kinetic_orchestration.program.inference.servers import engines
from kinetic_orchestration.program.inference.servers.caches import Caches
from kinetic_orchestration.protocol.system import copies, escaping

HOST = "127.0.0.1"
LAST_LINES = 40
LAST_BYTES = 6000
STOP_PATIENCE = 10.0
RESTARTS = 3  # in a row, without an answer between them
ANSWER_LIMIT = 1 << 20  # of a health check
SILENCE = 60.0  # without an answer, after which a server is looked at


class Running:
    """A server that is kept running. Any thread may ask whether it is healthy; one of them starts it again."""

    def __init__(
        self,
        engine: engines.Server,
        options: Mapping[str, Any],
        model: str,
        *,
        kind: str,
        devices: int,
        patience: float,
        environ: Mapping[str, str],
        keep_log: Callable[[str, int], str],
        tell: Callable[[str], object],
    ) -> None:
        """`keep_log` is given a log's path and its number, and returns where it is kept."""
        self._engine, self._options, self._model = engine, options, model
        self._kind, self._devices, self.patience = kind, devices, patience
        self._environ, self._keep_log, self._tell = environ, keep_log, tell
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._leash = -1
        self._log = ""
        self._folder = tempfile.mkdtemp(prefix="kinetic-server-")
        self._caches = Caches(engine, options, model, environ, self._folder, tell)
        self._deaths = self._blamed = 0  # since the last answer: of the server, and rows that were to blame
        self._heard = time.monotonic()  # from the server, at last
        self.generation = 0
        self.port = 0
        self.served = ""  # name of the model
        self.started_seconds = 0.0  # until healthy, of the first start
        self.restarts = 0

    # ---- asked by lanes -------------------------------------------------------------------------------------------

    def healthy(self, seen: int = 0) -> int:
        """Return the number of the server's life, once it is healthy. `seen`: of a life that has ended, or hangs.

        Raises:
            EngineNotStarted: It did not become healthy.
            EngineLost: It died too often without an answer between.
        """
        with self._lock:
            if self._over.is_set():
                raise EngineLost(f"{self._called} was stopped, since the batch has ended")
            if self.generation and self.generation != seen and self.is_alive():
                return self.generation
            if self.generation:
                self._ended()
            self._start()
            return self.generation

    def answered(self) -> None:
        self._deaths = self._blamed = 0
        self._heard = time.monotonic()

    def end_if_deaf(self) -> None:
        """End a server that has answered nothing for a while and listens no more: it will never answer what it has
        accepted, and whoever waits for it asks the next one. A server that listens may be slow, and is left alone.
        """
        if time.monotonic() - self._heard < SILENCE or not self._lock.acquire(blocking=False):
            return  # who holds the lock starts it
        try:
            if self.is_alive() and not _listens(self.port):
                self._tell(f"{self._called} listens no more, and has answered nothing for {SILENCE:.0f} s: it is ended")
                self._end()
            self._heard = time.monotonic()
        finally:
            self._lock.release()

    def excuse(self, *, row_is_to_blame: bool) -> None:
        """The next death is that of a row which is asked alone.

        Raises:
            EngineLost: So many rows in a row were to blame that it is rather the server.
        """
        with self._lock:
            self._deaths -= 1
            self._blamed += row_is_to_blame
            if self._blamed > RESTARTS:
                self._lost(f"died at {self._blamed} prompts in a row, each asked alone")

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_well(self, patience: float = 10.0) -> bool:
        """Ask the server's health once."""
        return self.is_alive() and self._get(self._engine.health, patience)[0] == 200

    def stop(self) -> None:
        """End the server with all that it started."""
        self._over.set()
        with self._lock:
            self._end()
            if self._log:
                self._keep_log(self._log, self.generation)
            shutil.rmtree(self._folder, ignore_errors=True)

    # ---- one life -------------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        """A life has ended, or is ended here."""
        self._deaths += 1
        self._end()
        kept = self._keep_log(self._log, self.generation)
        if self._deaths > RESTARTS:
            self._lost(f"died {self._deaths} times without an answer between")
        self.restarts += 1
        self._tell(f"{self._called} died and is started again; its log is {kept}")

    def _start(self) -> None:
        self._check_module()
        self.generation += 1
        self.port = _free_port()
        filled = {
            "python": self._engine.python or sys.executable, "model": self._model, "host": HOST, "port": str(self.port),
            "devices": str(self._devices),
        }  # fmt: skip
        argv, env = engines.command(self._engine, self._options, filled)
        self._caches.restore()
        self._log = os.path.join(self._folder, f"server-{self.generation}.log")
        read, self._leash = os.pipe()
        try:
            with Path(self._log).open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _leash(), str(read), self._folder, *argv],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    env={**self._environ, **self._caches.environ, **env}, pass_fds=(read,), start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(read)
        self._await_health()

    def _check_module(self) -> None:
        if self._engine.module and not self._engine.python and find_spec(self._engine.module.partition(".")[0]) is None:
            raise EngineNotStarted(engines.missing_module(self._engine, self._kind))

    def _await_health(self) -> None:
        begun, pause, told = time.monotonic(), 0.05, 0.0
        while True:
            waited = time.monotonic() - begun
            if not self.is_alive():
                self._refuse(f"ended {waited:.0f} s after its start")
            if self._get(self._engine.health, 10.0)[0] == 200 and self._name_model():
                break
            if waited > self.patience:
                self._refuse(
                    f"was not healthy after {waited:.0f} s: if its log says that it still loads or compiles, give it "
                    "more of them by patience="
                )
            if waited - told >= 10.0:
                told = waited
                self._tell(f"{self._called} is not healthy yet, after {waited:.0f} s")
            if self._over.wait(pause):
                raise EngineLost("the batch has ended while its server was started")
            pause = min(1.0, pause * 1.3)
        if self.generation == 1:
            self.started_seconds = time.monotonic() - begun
        self._heard = time.monotonic()
        self._caches.keep()

    def _name_model(self) -> bool:
        status, data = self._get("/v1/models", 10.0)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            self.served = str(json.loads(data)["data"][0]["id"])
        return status == 200 and bool(self.served)

    @property
    def _called(self) -> str:
        return "the server" if self._engine.name == "server" else f"the {self._engine.name} server"

    def _lost(self, why: str) -> NoReturn:
        raise EngineLost(self._with_log(why))

    def _refuse(self, why: str) -> NoReturn:
        """Raise the error of a server that did not become healthy."""
        self._end()
        if self.generation > 1:  # it was healthy before: what ended it may pass
            self._lost(f"was started again, and {why}")
        raise EngineNotStarted(self._with_log(why))

    def _with_log(self, why: str) -> str:
        kept = self._keep_log(self._log, self.generation)
        return f"{self._called} {why}. The end of its log (the whole is {kept}):\n{self._tail()}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # the leash may have ended
            os.write(self._leash, b"k")
            if self._over.is_set():
                os.write(self._leash, b"t")
                process.wait(STOP_PATIENCE)
        os.close(self._leash)  # the leash kills its group then
        process.wait()

    def _get(self, path: str, patience: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=patience)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read(ANSWER_LIMIT)
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def _tail(self) -> str:
        """The end of the log, with control characters escaped."""
        with contextlib.suppress(OSError), Path(self._log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            text = file.read(LAST_BYTES).decode("utf-8", "replace")
            return escaping.log("\n".join(text.splitlines()[-LAST_LINES:]))
        return ""


def of_host(
    engine: engines.Server,
    options: Mapping[str, Any],
    model: str,
    *,
    devices: int,
    per_chip: int,
    hosts: int,
    patience: float | None,
    keep_log: Callable[[str, int], str],
    tell: Callable[[str], object],
) -> Running:
    """Return the server of this host, on all of its devices.

    Args:
        engine: The server.
        options: Its options.
        model: A directory of this host, or `hf://owner/name`.
        devices: Devices of a host, where its agent does not say their number.
        per_chip: Devices of a chip.
        hosts: Hosts of the job.
        patience: Seconds until it has to be healthy; None for those of the hardware.
        keep_log: Of `Running`.
        tell: Of `Running`.
    """
    kind = topology.expected(copies.environ()) or "cpu"
    devices = int(os.environ.get(topology.DEVICES, devices)) if kind != "cpu" else 1
    given = dict(options)
    if model.startswith(models.HUB):
        model, revision = models.hub_name(model)
        if revision:
            given.setdefault("revision", revision)
    return Running(
        engine, given, model, kind=kind, devices=devices,
        patience=engines.PATIENCE[kind] if patience is None else patience,
        environ=environment(copies.environ(), kind, hosts, devices, per_chip), keep_log=keep_log, tell=tell,
    )  # fmt: skip


def environment(environ: Mapping[str, str], kind: str, hosts: int, devices: int, per_chip: int = 1) -> dict[str, str]:
    """Return the variables of a server: those of the program without its place among other hosts, since each host has
    a server of its own.
    """
    found = {name: value for name, value in environ.items() if not topology.is_stale(name)}
    if kind == "tpu" and hosts > 1:
        # libtpu else waits for the other hosts of the slice; as JAX's "Running several processes on a TPU VM" has it.
        chips = max(1, devices // per_chip)
        bounds = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}.get(chips, "2,2,1")
        found |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds, "CLOUD_TPU_TASK_ID": "0"}
        found |= {"TPU_VISIBLE_CHIPS": ",".join(map(str, range(chips))), "TPU_WORKER_HOSTNAMES": "localhost"}
    return found


def _leash() -> str:
    from kinetic_orchestration.program.inference.servers import leash

    return inspect.getsource(leash)  # from a folder or a zip


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 10.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # its queue is full, or this process has no descriptor left
    return True


def _free_port() -> int:
    with socket.socket() as held:
        held.bind((HOST, 0))
        port: int = held.getsockname()[1]
        return port
