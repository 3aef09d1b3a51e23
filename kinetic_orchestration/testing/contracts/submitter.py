"""A client that makes one create call, and may be killed at it: `submitter.py FILE WHEN`, run by file.

FILE is a pickled `Submission`. It says that it is ready, waits for a line, makes the call and prints the answer as
JSON. WHEN is where SIGKILL meets it: `before` the call, `within` it, `after` it, or `never`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.registry import open_backend

WITHIN = 0.03  # seconds of the call: a request is on its way, or a process was started


def main(file: str, when: str) -> None:
    asked: Submission = pickle.loads(Path(file).read_bytes())
    backend = open_backend(asked.plan.backend, settings.load())
    print("ready", flush=True)
    sys.stdin.readline()
    if when == "before":
        _die()
    if when == "within":
        threading.Thread(target=_die_later, daemon=True).start()
    answer = backend.submit(asked)
    if when != "never":
        _die()
    print(json.dumps(answer), flush=True)


def _die_later() -> None:
    time.sleep(WITHIN)
    _die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
