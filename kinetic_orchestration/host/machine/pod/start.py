"""First program of a pod: it fetches the agent and becomes it, or ends the attempt in the agent's place.

It travels in the pod's manifest, with `bootstrap`, `account`, `last_words` and, for a store on S3, what reads that: the
standard library of Python 3.10. It is independent of programs and of the cluster's API, for which a pod has no token.
Its messages go to the pod's log, and why it ends to where Kubernetes shows it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.pod import account, last_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

ORDERS = last_words.ORDERS
DRIVER = {"PATH": "usr/local/nvidia/bin", "LD_LIBRARY_PATH": "usr/local/nvidia/lib64"}
"""The folders in which GKE mounts the GPUs' driver, by the variable that finds it: only images with CUDA have these."""
CODES = {
    "infrastructure": 65,
    "preemption": 66,
    "deadline": 68,
    "configuration": 69,
}  # those of the wire, which is not here yet
HEARD = 8.0  # seconds for which a host that is told waits for the others: as attempt_rules has it
LOOK = 0.5


class Late(bootstrap.Failed):
    """The attempt's time was over before its pods were started."""

    cause = "deadline"


class Denied(bootstrap.Unusable):
    """The store does not let this pod in."""


class Nobody(Denied):
    """This pod is nobody to the store, which so cannot be told either."""


class Taken(bootstrap.Failed):
    """The cluster takes this pod away before its agent is there."""

    cause = "preemption"


def main() -> NoReturn:
    orders = json.loads(os.environ[ORDERS])
    host = 0
    signal.signal(signal.SIGTERM, _end)  # the first process of a container hears only what it handles
    try:
        os.makedirs(bootstrap.home(), exist_ok=True)
        find_driver()
        host = host_number(orders)
        agent, now = _fetch(orders)
        if 0 < orders["deadline"] < now:
            raise Late("the attempt's deadline passed before this pod was started")
        what = f"host {host} of {orders['hosts']} of {orders['job']}, attempt {orders['attempt']}"
        bootstrap.say(f"this is {what}; the agent is here")
        _become(agent, orders, host)
    except Exception as error:  # it is taken away, no room, no store, orders of a later version
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        reason = last_words.discreet(last_words.sentence(error), os.environ)
        bootstrap.say(reason)
        cause = getattr(error, "cause", bootstrap.Failed.cause)
        told = f"host {host} {bootstrap.Failed.what}: {reason}"
        last_words.leave(told)  # before the store is told, which may not answer
        if isinstance(error, Taken) and orders["hosts"] > 1:
            _await_another_word(orders)
        if not isinstance(error, Nobody):
            _abort(orders, host, told, cause)
        if isinstance(error, bootstrap.Changed):  # else it would never be sent again
            _forget_agent(orders)
        sys.exit(CODES[cause])


def _end(_number: int, _frame: object) -> None:
    raise Taken("it received SIGTERM, before its agent was there")


def echo(line: bytes) -> None:
    """Write to the pod's log, unless that would take time: it is for people, and the store has it all."""
    try:
        os.set_blocking(1, False)
        os.write(1, line)
    except OSError:  # nobody reads it
        pass


def find_driver() -> None:
    """Append the folders of the driver's programs, nvidia-smi among them, and of its libraries to the paths on which
    this process and all that it starts look for them; nothing where there are none."""
    for name, place in DRIVER.items():
        folder = os.path.join(bootstrap.root(), place)
        known = os.environ.get(name) or (os.defpath if name == "PATH" else "")
        if os.path.isdir(folder) and folder not in known.split(os.pathsep):
            os.environ[name] = os.pathsep.join([*filter(None, [known]), folder])


def host_number(orders: Mapping[str, Any]) -> int:
    """Return this pod's number among all hosts, counted through the slices."""
    return int(os.environ["KINETIC_SLICE"]) * int(orders["hosts_per_slice"]) + int(os.environ["JOB_COMPLETION_INDEX"])


# ---- the store, in Cloud Storage or on S3 ----------------------------------------------------------------------


def _on_s3(orders: Mapping[str, Any]) -> Any:
    """Return the records of a store on S3; None for one in Cloud Storage, which `bootstrap` reads."""
    if not orders["store"].startswith("s3://"):
        return None
    from kinetic_orchestration.host.machine.s3.records import S3Records

    return S3Records(orders["store"])


def _agent_of(orders: Mapping[str, Any]) -> str:
    return f"blobs/{orders['agent'][:2]}/{orders['agent']}"


def _fetch(orders: Mapping[str, Any]) -> tuple[str, float]:
    """Return the path of the agent's zip, and the store's time, which the answer with it tells."""
    records = _on_s3(orders)
    if records is None:
        return _fetch_from_bucket(orders)

    from kinetic_orchestration.protocol.records.base import Damaged, TooLarge

    def read() -> bootstrap.Reply:
        try:
            found = records.read(_agent_of(orders), limit=bootstrap.LARGEST)
        except (Damaged, TooLarge):
            return bootstrap.Reply(200, {}, b"")  # whose digest differs, too
        return bootstrap.Reply(404, {}, b"it is not there") if found is None else bootstrap.Reply(200, {}, found.data)

    return bootstrap.fetch(orders["store"], orders["agent"], read), float(records.now())


def _fetch_from_bucket(orders: Mapping[str, Any]) -> tuple[str, float]:
    date: str | None = None

    def read() -> bootstrap.Reply:
        nonlocal date
        if why := account.nowhere():
            raise Nobody(f"the agent could not be fetched from {orders['store']}: {why}")
        if bootstrap.has_account() and not bootstrap.token():
            raise _denied(orders, *account.without_token(orders))
        blob = bootstrap.blob(orders["store"], orders["agent"])
        reply = bootstrap.request("GET", blob + "?alt=media", patience=bootstrap.FETCH_PATIENCE)
        if reply.status == 403:
            raise _denied(orders, *account.refused(orders, reply))
        date = reply.headers.get("Date")
        return reply

    fetched = bootstrap.fetch(orders["store"], orders["agent"], read)
    return fetched, parsedate_to_datetime(date).timestamp() if date else bootstrap.store_time()


def _await_another_word(orders: Mapping[str, Any]) -> None:
    """Wait for a while until somebody else has said why the attempt ends: the cluster may end this pod for another one
    that died, of which whoever follows the job knows, and nobody here.
    """
    until = time.monotonic() + HEARD
    while time.monotonic() < until and not _has_verdict(orders):
        time.sleep(LOOK)


def _has_verdict(orders: Mapping[str, Any]) -> bool:
    name = bootstrap.verdict_name(orders)
    try:
        if (records := _on_s3(orders)) is not None:
            return records.read(name) is not None
        return bootstrap.request("GET", bootstrap.address(orders["store"], name)[0], patience=0.0).status == 200
    except OSError:
        return False


def _denied(orders: Mapping[str, Any], why: str, for_good: bool) -> bootstrap.Failed:
    kind = Denied if for_good else bootstrap.Failed
    return kind(f"the agent could not be fetched from {orders['store']}: {why}")


def _abort(orders: Mapping[str, Any], host: int, reason: str, cause: str) -> None:
    try:
        if (records := _on_s3(orders)) is None:
            bootstrap.abort(orders, host, reason, cause)
        else:
            records.create(bootstrap.verdict_name(orders), bootstrap.verdict(orders, host, reason, cause))
    except OSError as error:  # this pod's exit code says it, too
        bootstrap.say(f"the attempt could not be ended: {last_words.discreet(str(error), os.environ)}")


def _forget_agent(orders: Mapping[str, Any]) -> None:
    try:
        if (records := _on_s3(orders)) is None:
            bootstrap.request("DELETE", bootstrap.blob(orders["store"], orders["agent"]), patience=10.0)
        else:
            records.delete(_agent_of(orders))
    except OSError as error:
        bootstrap.say(f"the agent could not be removed from the store: {last_words.discreet(str(error), os.environ)}")


def _become(agent: str, orders: Mapping[str, Any], host: int) -> NoReturn:
    """Run the agent, whose package takes the place of this one. It reads its secrets from standard input."""
    pod = os.environ["KINETIC_POD"]
    words = [*bootstrap.agent_arguments({**orders, "resource": ""}, host), f"pod={pod}"]
    private, end = os.pipe()
    os.write(end, json.dumps({"seal": {"key": orders["key"]}} if orders.get("key") else {}).encode())
    os.close(end)
    os.dup2(private, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until its processes handle it: nobody sends it twice
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    package = __name__.partition(".")[0]
    del sys.path[0]  # where the loader put this one
    for name in [name for name in sys.modules.copy() if name.partition(".")[0] == package]:
        del sys.modules[name]
    bootstrap.run(agent, [agent, *words])
