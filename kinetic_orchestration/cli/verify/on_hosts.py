"""The functions that `kinor verify` runs as jobs: they need nothing but Python, and are sent as a project of their own.

A host reports names and forms of its machine, never values.
"""

import hashlib
import os
import platform
import re
import sys
import time
import urllib.request
from typing import Any

import kinetic_orchestration as kinetic

_SERVER = "http://{}/computeMetadata/v1/{}"
_LINES = re.compile(r"\s*\w+: '[^']*'\s*")


def tells(lines: int, pause: float) -> dict[str, Any]:
    """Print some lines with pauses, then return a description of this machine and its metadata server."""
    for number in range(lines):
        print(f"verify: line {number}", flush=True)
        time.sleep(pause)
    return machine()


def has_secret(variable: str) -> str:
    """The digest of a secret that came in the environment."""
    print("verify: looked for the secret", flush=True)
    return hashlib.sha256(os.environ.get(variable, "").encode()).hexdigest()


def endures(steps: int, pause: float, hold: int) -> dict[str, Any]:
    """A training that stores every step; its first attempt does not end after `hold` steps."""
    training = kinetic.Training(every=1, total=steps)
    state, began = training.restore({"done": 0})
    attempt = kinetic.current().attempt
    done = began
    while done < steps or attempt == 1:
        if done < (hold if attempt == 1 else steps):
            done += 1
            state = {"done": done}
            training.step(done, state)
            print(f"verify: step {done} of attempt {attempt}", flush=True)
        time.sleep(pause)
    training.finish(state)
    return {"attempt": attempt, "began": began, "done": state["done"]}


def waits() -> None:
    """Run until cancelled."""
    while True:
        print("verify: still here", flush=True)
        time.sleep(1.0)


def among_others() -> dict[str, Any]:
    """Print the host's index; the value is that of host 0, and every host printed it next to its own."""
    host = kinetic.current()
    print(f"verify: host {host.host_index} of {host.host_count}", flush=True)
    return {"hosts": host.host_count, **machine()}


def machine() -> dict[str, Any]:
    """The machine by what is not secret of it, and the forms of its metadata."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release().split("-")[0],
        "packages": "uv" if "uv" in sys.prefix else "system",
        "metadata": _metadata(),
    }


def _metadata() -> dict[str, Any]:
    found: dict[str, Any] = {"attributes": {}, "tpu-env": {}, "headers": []}
    listed, headers = _ask("instance/attributes/")
    found["headers"] = sorted(name for name in ("Metadata-Flavor", "ETag", "Server") if name in headers)
    for name in filter(None, listed.split()):
        value, _ = _ask(f"instance/attributes/{name}")
        found["attributes"][name] = _form(value)
        if name == "tpu-env":
            found["tpu-env"] = {line.partition(":")[0].strip(): "TEXT" for line in value.splitlines() if ":" in line}
    for path in ("instance/preempted", "instance/maintenance-event", "instance/network-interfaces/0/ip"):
        found[path] = _form(_ask(path)[0])
    return found


def _ask(path: str) -> tuple[str, dict[str, str]]:
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(_SERVER.format(server, path), headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode("utf-8", "replace"), dict(answer.headers)
    except OSError as error:
        return f"(no answer: {type(error).__name__})", {}


def _form(value: str) -> str:  # noqa: PLR0911 - a list of cases, the first that fits
    """Return the kind of a value, without the value."""
    value = value.strip()
    if value.startswith("(no answer"):
        return "no answer"
    if value in ("TRUE", "FALSE", "NONE"):
        return value
    if re.fullmatch(r"\d+", value):
        return "number"
    if re.fullmatch(r"(\d+\.){3}\d+(,(\d+\.){3}\d+)*", value):
        return "addresses"
    if re.fullmatch(r"[^,:]+:[^,:]+:(\d+\.){3}\d+(,[^,:]+:[^,:]+:(\d+\.){3}\d+)*", value):
        return "triples with addresses"
    lines = value.splitlines()
    if lines and all(_LINES.fullmatch(line) for line in lines):
        return "lines of NAME: 'value'"
    return "text" if value else "nothing"
