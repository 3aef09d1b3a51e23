"""The commands that lead to a host of a running job: a shell, a port, TensorBoard and XProf."""

from __future__ import annotations

import re
import signal
import sys
from argparse import Namespace
from typing import Any

from kinetic_orchestration.api.handle import JobHandle, find_job, job_behind
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, show_json, show_json_line, working
from kinetic_orchestration.errors import HostNotReached, UsageError
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.reach import boards
from kinetic_orchestration.reach.opening import Place, place_of, way_to
from kinetic_orchestration.reach.ssh import check_user
from kinetic_orchestration.reach.ways import Way

_PORT = re.compile(r"(\d{1,5})(?::(\d{1,5}))?")
_MOST = 65535


def shell(arguments: Namespace) -> int:
    if arguments.json and not arguments.words:
        raise UsageError(
            "a shell has no JSON: leave --json out, or run a command, as 'kinor shell ID --json -- uptime'"
        )
    handle, place = _place(arguments)
    way = _way(arguments, place)
    if not arguments.json:
        return way.attach(arguments.words)
    ran = way.run(arguments.words)
    texts = {"stdout": ran.out.decode("utf-8", "replace"), "stderr": ran.err.decode("utf-8", "replace")}
    show_json({"job_id": handle.job_id, "host": place.host, "exit_code": ran.code, **texts})
    return ran.code


def port_forward(arguments: Namespace) -> int:
    port, local = _ports(arguments.port)
    handle, place = _place(arguments)
    way = _way(arguments, place)
    own = place.plan.debug_port == port

    def ready(at: int) -> None:
        if arguments.json:
            told = {"job_id": handle.job_id, "host": place.host, "port": port, "address": f"127.0.0.1:{at}"}
            show_json_line(told)
        else:
            print(f"127.0.0.1:{at} leads to port {port} of host {place.host} of {handle.job_id}")
        if own:
            note(
                "in an editor: "
                f'{{"type": "debugpy", "request": "attach", "connect": {{"host": "127.0.0.1", "port": {at}}}}}'
            )
        sys.stdout.flush()

    way.forward(port, local, ready, note, own=own)
    return codes.OK


def tensorboard(arguments: Namespace) -> int:
    handle: JobHandle[Any] = find_job(arguments.job, store=arguments.store, deployment=arguments.deployment)
    if not 0 < arguments.port <= _MOST:
        raise UsageError(f"--port {arguments.port}: a port is a number from 1 to {_MOST}")

    board = boards.XPROF if arguments.xprof else boards.TENSORBOARD
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the board ends with the command then, too

    def ready(at: int) -> None:
        address = f"http://127.0.0.1:{at}/{board.tab}"
        if arguments.json:
            show_json_line({"job_id": handle.job_id, "url": address})
        else:
            print(f"open {address}")
        sys.stdout.flush()

    if not arguments.xprof and handle.peek().outcome is None:
        try:
            _, place = _place(arguments, handle)
            way = _way(arguments, place)
            served = way.listens(arguments.port)
        except HostNotReached as error:
            note(f"what the job has written is read, as its host is not reached: {error}")
        else:
            if served:
                note(f"host {place.host} itself serves it at its port {arguments.port}; Ctrl-C ends the way there")
                way.forward(arguments.port, arguments.port, ready, note)
                return codes.OK
    folder = handle.profile_dir() if arguments.xprof else handle.output_dir
    if not folder:
        raise UsageError(_no_profile(handle))
    return boards.serve(board, folder, arguments.port, ready)


def _no_profile(handle: JobHandle[Any]) -> str:
    if job_behind(handle).plan().profile:
        return f"job {handle.job_id} has captured no profile yet: 'kinor logs {handle.job_id}' has a line once it has"
    return f"job {handle.job_id} captures no profile, as it was submitted without profile=: submit it with one"


def _place(arguments: Namespace, handle: JobHandle[Any] | None = None) -> tuple[JobHandle[Any], Place]:
    check_user(arguments.user, arguments.account)
    handle = handle or find_job(arguments.job, store=arguments.store, deployment=arguments.deployment)
    settings = configuration.load(None, store=arguments.store, deployment=arguments.deployment)
    return handle, place_of(job_behind(handle), settings, arguments.host)


def _way(arguments: Namespace, place: Place) -> Way:
    with working(f"opening the way to host {place.host} of {place.job_id}"):
        return way_to(place, note, user=arguments.user, account=arguments.account)


def _ports(text: str) -> tuple[int, int]:
    found = _PORT.fullmatch(text)
    port, local = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < port <= _MOST or not 0 <= local <= _MOST:
        usual = command("port-forward", "ID", "6006:6007")
        raise UsageError(f"{text!r} names no port: give the host's, and this machine's if it is another, as in {usual}")
    return port, local
