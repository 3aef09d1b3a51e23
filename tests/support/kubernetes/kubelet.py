"""The kubelet of nodes of a control plane, a process: `python -m tests.support.kubernetes.kubelet FOLDER`.

FOLDER has a `kubeconfig` and `pool.json`, which `nodes.py` writes and changes while this runs: the nodes, what becomes of
them and of their pods.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.api.answers import Refused
from kinetic_orchestration.testing.kubernetes.api.objects import stamp
from kinetic_orchestration.testing.kubernetes.pods.kubelet import Kubelet
from kinetic_orchestration.testing.kubernetes.pods.nodes import Pool
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.log_server import LogServer

_TICK = 0.1


def main() -> None:
    processes.die_with_parent()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    folder = Path(sys.argv[1])
    kubelet = Kubelet(folder, Api(folder / "kubeconfig", keep=True))
    kubelet.port = LogServer(folder / "tls.crt", kubelet.log_of, kubelet.is_over, kubelet.container_of).server_port
    try:
        while not asked:
            try:
                _tick(kubelet, folder)
            except (OSError, Refused) as error:  # the server is away for a while
                print(f"{stamp()} {type(error).__name__}: {error}", flush=True)
            time.sleep(_TICK)
    finally:
        kubelet.close()


def _tick(kubelet: Kubelet, folder: Path) -> None:
    pool = Pool.of_text((folder / "pool.json").read_text(encoding="utf-8"))
    kubelet.tick(pool)
    taken = folder / "taken.new"
    taken.write_text(str(pool.serial), encoding="ascii")
    taken.rename(folder / "taken")


if __name__ == "__main__":
    main()
