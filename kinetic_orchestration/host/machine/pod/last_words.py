"""The last words of a pod: Kubernetes shows them in its status, where they are still read once its log is gone.

They are for an end of which the store cannot tell. More people read a pod's status than its Secrets, so nothing of
these may be in it. A pod's first program has this module in its manifest, and the agent has it, too.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "dev/termination-log"  # the default of terminationMessagePath: a kubelet makes it before a container starts
MOST = 4096  # bytes that a kubelet shows of it
ORDERS = "KINETIC_ORDERS"  # the variable with a pod's orders
HIDDEN = "(hidden)"

_SHORT = 6  # letters: a shorter value is a word that says nothing, such as "false"
_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_ADDRESS = ("_FILE", "_URI", "_URL", "GOOGLE_APPLICATION_CREDENTIALS")  # where a secret is
_SHAPES = [
    (re.compile(r"(://)[^/\s@'\"]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[^\s'\",]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(Signature|Credential|Security-Token)(=|:\s*)[^\s&,'\"<>]+", re.IGNORECASE), rf"\1\2{HIDDEN}"),
]


def leave(text: str) -> None:
    """Leave words for people, unless there are some already: the first say most. Nothing where nobody reads them."""
    said = discreet(text, copies.environ()).encode("utf-8", "replace")[:MOST]
    try:
        with open(os.path.join(bootstrap.root(), FILE), "r+b") as file:
            if not file.read(1):
                file.write(said.decode("utf-8", "ignore").encode())  # no half of a letter
    except OSError:  # no kubelet has made it, or its disk is full
        pass


def sentence(error: Exception) -> str:
    """Return an error as words for people."""
    told = isinstance(error, (bootstrap.Failed, OSError))
    return str(error) if told else f"{type(error).__name__}: {error}"


def discreet(text: str, environ: Mapping[str, str]) -> str:
    """Return a text without the secrets among the variables of a pod, by their names or its orders, and without
    signatures, tokens and passwords by their shape.
    """
    orders = json.loads(environ.get(ORDERS, "{}"))
    names = {name for name in environ if _NAME.search(name) and not name.endswith(_ADDRESS)}
    secrets = {environ.get(name, "").strip() for name in names.union(orders.get("secrets", ()))}
    secrets.add(orders.get("key", ""))
    for value in sorted((value for value in secrets if len(value) >= _SHORT), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text
