"""The last words of a pod: Kubernetes shows them in its status, where they are still read once its log is gone.

They are for an end of which the store cannot tell. More people read a pod's status than its Secrets, so nothing of
these may be in it. A pod's first program has this module in its manifest, and the agent has it, too.
"""

from __future__ import annotations

import base64
import json
import os
import re
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import quote

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = "dev/termination-log"  # the default of terminationMessagePath: a kubelet makes it before a container starts
MOST = 4096  # bytes that a kubelet shows of it
ORDERS = "KINETIC_ORDERS"  # the variable with a pod's orders
HIDDEN = "(hidden)"

_SHORT = 6  # letters: a shorter value is a word that says nothing, such as "false"
_PART = 8  # letters of a secret by which a part of it is known that was cut off
_NAME = re.compile(
    r"KEY|SECRET|TOKEN|PASS|(?<!^)(?<!^OLD)PWD|CREDENTIAL|AUTH|COOKIE|DSN|WEBHOOK|CONNECTION_STRING|PRIVATE|SIGNATURE",
    re.IGNORECASE,
)
# Such a variable has the place of a secret.
_PLACE = re.compile(r"_FILE$|^AWS_CONTAINER_CREDENTIALS_(FULL|RELATIVE)_URI$|^GOOGLE_APPLICATION_CREDENTIALS$")
_LABEL = (
    r"(Signature(?:Provided)?|Credential|Security-?Token|Session-?Token|WebIdentityToken|Secret-?Access-?Key|Access-?Key-?Id"
    r"|\b(?:access_|id_|refresh_)?token|\b(?:client_)?secret|\bpass(?:word|wd)?)"
)
_SHAPES = [
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|$)", re.DOTALL), HIDDEN),
    (re.compile(r"(://)[^\s'\"<>]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[^\s'\",]+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(_LABEL + r"(['\"]?\s*[=:>]\s*['\"]?)(?!\()[^\s&,'\"<>]+", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{8,}[\w.-]*|\bya29\.[\w.-]+|\bA[KS]IA[A-Z0-9]{12,}"), HIDDEN),
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
    names = {name for name in environ if _NAME.search(name) and not _PLACE.search(name)}
    secrets = {environ.get(name, "") for name in names.union(orders.get("secrets", ()))} | {orders.get("key", "")}
    forms = sorted({form for value in secrets for form in _forms(value)}, key=len, reverse=True)
    for form in forms:
        text = text.replace(form, HIDDEN)
    for form in forms:
        text = _without_beginning(text, form)
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it may stand in a text: whole or a line of it, as it is, escaped, in an address, in base64."""
    for word in {secret.strip(), *(line.strip() for line in re.split(r"[\r\n]+|\\n", secret))}:
        if len(word) >= _SHORT:
            raw = word.encode("utf-8", "surrogatepass")
            yield from (word, repr(word)[1:-1], json.dumps(word)[1:-1], quote(raw, safe=""), quote(raw))
            yield base64.b64encode(raw).decode().rstrip("=")


def _without_beginning(text: str, form: str) -> str:
    """Return a text without the beginning of a secret's form: errors quote the first letters of an answer. Addresses
    all begin alike."""
    begin, at = form if "://" in form else form[:_PART], 0
    while (at := text.find(begin, at)) >= 0:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(text[at:], form, strict=False))
        text = f"{text[:at]}{HIDDEN}{text[at + len(list(same)) :]}"
        at += len(HIDDEN)
    return text
