"""The preparation of one host: what its program needs, its account's answers, the other hosts and the compile cache.

It may run on a thread beside the host's loop, which sees what it came to.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.machine import Unanswered, Unauthorized, Ungranted
from kinetic_orchestration.host.prepare import prepare, tier
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetic_orchestration.host.machine.machine import Machine
    from kinetic_orchestration.host.prepare.compile_cache import CompileCache
    from kinetic_orchestration.host.prepare.prepare import Ready
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

OF_JAX = "JAX_COMPILATION_CACHE_DIR"


class Preparation:
    """Preparation of a program, with its result: `ready`, or `unready` and the reason."""

    def __init__(
        self,
        at: Assignment,
        task: Task,
        view: View,
        machine: Machine,
        private: Mapping[str, Mapping[str, str]],
        *,
        alone: bool,
        scratch: str,
        note: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        """`private`: secrets of the program and settings of the package index, which may hold passwords and are never
        written down. `alone`: there are no hosts on other machines. `wake` is called when the loop should look again.
        """
        self.ready: Ready | None = None
        self.unready: attempt_rules.Exit | None = None
        self.python = ""  # of the environment, as soon as that is there
        self.addresses = ["127.0.0.1"] * at.hosts
        self._at = at
        self._task = task
        self._view = view
        self._machine = machine
        self._secrets = dict(private.get("env", {}))
        self._seal = private.get("seal", {}).get("key", "")
        self._uv = private.get("uv", {})
        self._alone = alone
        self._scratch = scratch
        self._note = note
        self._wake = wake
        self._compiled: CompileCache | None = None
        self._asked = self._met = 0.0  # when the addresses of the others were asked for, and when they came

    def begin(self) -> None:
        """Prepare: here and now if that is quick, else on a thread."""
        if self._task.quick:
            self.run()
            return
        import threading

        threading.Thread(target=self.run, name="kinetic-prepare", daemon=True).start()

    def run(self) -> None:
        try:
            self.ready = self._prepared()
        except Unauthorized as error:
            self.unready = attempt_rules.Exit(1, wire.CONFIGURATION, str(error))
        except Unanswered as error:
            self.unready = attempt_rules.Exit(1, wire.INFRASTRUCTURE, str(error))
        except Ungranted as error:
            self.unready = attempt_rules.Exit(1, wire.STOCKOUT, str(error))
        except prepare.NotReady as error:
            self.unready = attempt_rules.Exit(1, error.cause, str(error))
        except Exception:
            import traceback

            reason = f"preparing failed:\n{traceback.format_exc()}"
            self.unready = attempt_rules.Exit(1, wire.INFRASTRUCTURE, reason)
        self._wake()

    def secrets(self) -> dict[str, str]:
        """Return the program's: the passwords of a package index are for those who install from it."""
        wanted = self._task.environment
        hidden = wanted.installer_only if wanted is not None else ()
        return {name: value for name, value in self._secrets.items() if name not in hidden}

    def environ(self) -> dict[str, str]:
        """Return the variables by which a program finds what earlier ones left on this machine, or in the store."""
        copies = tier.environ(self._at, self._task, self._machine, self.addresses, self._seal)
        return {**self.compile_cache(), **copies}

    def compile_cache(self) -> dict[str, str]:
        """Return the variables by which JAX compiles nothing again, unless the user has a cache of their own."""
        if self._compiled is not None:
            return self._compiled.environ()
        if not self._task.compile_cache or os.environ.get(OF_JAX):
            return {}
        return {OF_JAX: os.path.join(self._at.home, "cache", "compile")}

    def waited(self, now: float) -> float:
        """Return for how many seconds machines of others have been waited for that were not there: slices may be
        granted hours apart, and whoever waits for them has a limit of its own."""
        return (self._met or now) - self._asked if self._asked else 0.0

    def spans(self) -> dict[str, tuple[float, float]]:
        """Return when each part began and ended, by the steady clock."""
        return {} if self.ready is None else dict(self.ready.spans)  # a copy: an import ahead may end just now

    def discard_payload(self) -> None:
        """Remove a call that is not what it was: it would be found for ever, and never sent again."""
        if self._task.payload is not None:
            prepare.discard(self._view.records, names.blob(self._task.payload.digest))

    def release(self, seconds: float) -> None:
        """Give back what the program had. The compile cache may take so long to send what is new, and data four times
        as long to be listed once more."""
        tell_news = self._ask_news()
        for volume in self.ready.volumes if self.ready is not None else ():
            volume.release()
        if self._compiled is not None:
            self._compiled.close(seconds)
        tell_news(4 * seconds)

    def _ask_news(self) -> Callable[[float], None]:
        """Begin to ask, of data that are read where they are, what others have changed since the job was submitted;
        returns what waits for the answer, up to some seconds, and says it.
        """
        ready, data = self.ready, self._task.data
        if self._at.host or ready is None or not any(prepare.is_pinned(item) for item in data):
            return lambda _: None
        import threading

        found: list[str] = []

        def look() -> None:
            with contextlib.suppress(OSError, ValueError):  # the job has ended, and nobody waits for this
                found.extend(prepare.news(self._task, ready))

        thread = threading.Thread(target=look, name="kinetic-news", daemon=True)
        thread.start()

        def tell(seconds: float) -> None:
            thread.join(seconds)
            for told in () if thread.is_alive() else found:
                self._note(told)

        return tell

    def _prepared(self) -> Ready:
        if self._machine.is_own and self._machine.keeps_files:
            tier.keep_only(self._at.home, self._task.checkpoint_dir)
        others = Ahead(self._find_others, in_background=self._machine.is_own)
        devices = Ahead(self._machine.devices, self._task, self._note, in_background=self._machine.is_own)
        self._secrets |= self._machine.secrets(self._note)
        if self._machine.shares_cache:
            self._open_compile_cache()
        own = self._task.environment.secrets if self._task.environment is not None else ()
        uv = {**self._uv, **{name: self._secrets[name] for name in own if name in self._secrets}}
        ready = prepare.prepare(
            self._view.records,
            self._task,
            self._scratch,
            self._at.home,
            uv,
            self._note,
            self._found_python,
            self.secrets(),
        )
        for told in ready.told if self._at.host == 0 else ():
            self._note(told)
        devices.result()
        others.result()
        self.compile_cache()  # waits for it here, with a bound, and not in the loop
        return ready

    def _find_others(self) -> None:
        if not self._alone:
            self._asked = time.monotonic()
            self.addresses = self._machine.addresses(self._task)
            self._met = time.monotonic()
            self._machine.meet(self.addresses, lambda host: self._view.started(host) is not None)

    def _open_compile_cache(self) -> None:
        wanted = self._task.environment
        if not ((wanted is not None and wanted.compiles) or self._task.image):
            return  # there is no JAX that could use one
        from kinetic_orchestration.host.prepare import compile_cache

        if (key := compile_cache.key(self._task)) and OF_JAX not in self._task.env:
            self._compiled = compile_cache.CompileCache(
                self._view.records, key, self._at.home, self._note,
                pushes=self._at.host == 0, writer=f"{self._at.job}-{self._at.attempt}", taken=self._task.env,
            )  # fmt: skip

    def _found_python(self, python: str) -> None:
        """Take the interpreter as soon as its environment exists: the program's process need not wait for the rest."""
        self.python = python
        self._wake()
