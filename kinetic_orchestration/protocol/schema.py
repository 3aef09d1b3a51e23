"""The schema language of records: the valid values of a field, and the refusal of a record with others.

Any writer of a store may have written any record in it. So each kind of record is declared as a table of fields, and
each field as a check of its type, its bounds and its characters; no field of a record is used before its table has
accepted it. Unknown fields are of a later version and are ignored; fields with a default may be missing.

The tables of records that hosts and clients both read are in `wire` and its `task`; those for clients alone are in the
core's `records`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Check = Callable[[Any], None]

MOST_HOSTS = 1 << 16  # of all slices together
MOST_SLICES = 1 << 12
MOST_CHIPS = 1 << 20
MOST_ATTEMPTS = 1 << 20
MOST_PLACES = 3  # that one attempt asks at once
MOST_ENTRIES = 1 << 16  # of a list or a table in a record
LONGEST_WAIT = 100 * 365 * 86400.0  # seconds
LARGEST = 1 << 53  # a count of bytes
SHOWN = 80  # characters of a value that an error quotes

WORD = 200
LINE = 4096
PAGE = 1 << 20  # a traceback
NEVER = float("inf")


class Wrong(ValueError):
    """A value that its field may not hold, and where in the record that is."""

    def __init__(self, value: Any, path: str = "", why: str = "") -> None:
        super().__init__(value, path, why)
        self.value, self.path, self.why = value, path, why

    def __str__(self) -> str:
        where = f"its {self.path} " if self.path else "it "
        if self.why:
            return f"{where}{self.why}"
        return f"{where}is {short(self.value)}"

    def within(self, name: str) -> Wrong:
        """The same, seen from what holds it."""
        return Wrong(self.value, f"{name}.{self.path}" if self.path else name, self.why)


def short(value: Any) -> str:
    """The beginning of a value of any type and length."""
    if isinstance(value, str):
        return repr(value[:SHOWN]) + ("…" if len(value) > SHOWN else "")
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        return "a number of many digits"
    if isinstance(value, (dict, list, tuple)) and len(value) > SHOWN:
        return f"a {type(value).__name__} of {len(value)} entries"
    try:
        shown = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is too deep"
    return shown[:SHOWN] + ("…" if len(shown) > SHOWN else "")


# ---- single values ---------------------------------------------------------------------------------------------


def text(most: int = LINE, *, printable: bool = False) -> Check:
    """Any characters, which are shown and never followed."""

    def check(value: Any) -> None:
        if type(value) is not str or len(value) > most or (printable and not value.isprintable()):
            raise Wrong(value)

    return check


def line(most: int = LINE) -> Check:
    """Text without control characters."""
    return text(most, printable=True)


def matching(pattern: str, *, empty: bool = False) -> Check:
    """Text that the whole of a pattern describes. The pattern is compiled when it is first asked."""
    known: list[Any] = []

    def check(value: Any) -> None:
        if empty and value == "":
            return
        if not known:
            import re

            known.append(re.compile(pattern))
        if type(value) is not str or len(value) > LINE or known[0].fullmatch(value) is None:
            raise Wrong(value)

    return check


def number(least: float, most: float, kinds: tuple[type, ...] = (float, int)) -> Check:
    def check(value: Any) -> None:
        if type(value) not in kinds or not least <= value <= most:
            raise Wrong(value)

    return check


def whole(least: int, most: int) -> Check:
    return number(least, most, (int,))


def measure(value: Any) -> None:
    """A number that a program reported: any float, and no whole number that is none."""
    if type(value) is float:
        return
    if type(value) is not int or not -(1 << 1000) < value < 1 << 1000:
        raise Wrong(value)


def flag(value: Any) -> None:
    if type(value) is not bool:
        raise Wrong(value)


def one_of(*known: str) -> Check:
    def check(value: Any) -> None:
        if type(value) is not str or value not in known:
            raise Wrong(value)

    return check


def maybe(check: Check, nothing: Any = None) -> Check:
    """Accept the value that stands for none, or what the check accepts."""

    def either(value: Any) -> None:
        if value != nothing:
            check(value)

    return either


def empty_or(check: Check) -> Check:
    return maybe(check, {})


# ---- values of several parts -----------------------------------------------------------------------------------


def many(check: Check, most: int = MOST_ENTRIES) -> Check:
    def checked(value: Any) -> None:
        if type(value) is not list or len(value) > most:
            raise Wrong(value)
        index = 0
        try:
            for entry in value:
                check(entry)
                index += 1
        except Wrong as wrong:
            raise wrong.within(str(index)) from None

    return checked


def table(key: Check, value_of: Check, most: int = MOST_ENTRIES) -> Check:
    def checked(value: Any) -> None:
        if type(value) is not dict or len(value) > most:
            raise Wrong(value)
        for name, entry in value.items():
            try:
                key(name)
            except Wrong:
                raise Wrong(name, "", f"has the name {short(name)}") from None
            try:
                value_of(entry)
            except Wrong as wrong:
                raise wrong.within(name) from None

    return checked


def plain(most: int = LINE, depth: int = 4) -> Check:
    """A value of JSON that is shown as it is: bounded in all directions."""
    words = text(most)

    def check(value: Any, left: int = depth) -> None:
        if type(value) is str:
            words(value)
        elif type(value) is dict or type(value) is list:
            if left == 0 or len(value) > MOST_ENTRIES:
                raise Wrong(value)
            if type(value) is dict:
                for name in value:
                    words(name)
            for entry in value.values() if type(value) is dict else value:
                check(entry, left - 1)
        elif type(value) is int:
            measure(value)

    return check


class Fields:
    """A JSON object: the fields that it must have, and those that it may have."""

    __slots__ = ("checks", "needed")

    def __init__(self, needed: Mapping[str, Check], others: Mapping[str, Check] | None = None) -> None:
        self.needed = tuple(needed)
        self.checks = {**needed, **(others or {})}

    def __call__(self, value: Any) -> None:
        if type(value) is not dict:
            raise Wrong(value)
        for name in self.needed:
            if name not in value:
                raise Wrong(None, name, "is missing")
        checks = self.checks
        for name, entry in value.items():
            if name in checks:
                try:
                    checks[name](entry)
                except Wrong as wrong:
                    raise wrong.within(name) from None

    def known(self, value: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return those of the fields that a reader wants which are there."""
        return {name: value[name] for name in names if name in value}


# ---- identifiers -----------------------------------------------------------------------------------------------

job_id = matching(r"job-[0-9a-z]{1,64}")
deployment = matching(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,255}")
project = matching(r"(?:[a-z0-9][a-z0-9.-]{0,99}:)?[a-z0-9][a-z0-9-]{0,62}", empty=True)  # also example.com:project
zone = matching(r"[a-z0-9][a-z0-9-]{0,62}")
place = matching(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,511}")  # a zone, or CLUSTER/NAMESPACE of Kubernetes
resource = matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")  # the name of a slice, a node, a host's folder
backends = matching(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,254}")  # names of backends, with + between them
variable = matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,199}")  # of the environment, when it names a secret
setting = matching(r"[^=\x00]{1,1000}")  # of the environment, when it only has a value
digest = matching(r"[0-9a-f]{64}", empty=True)
token = line(WORD)  # random, or naming a process
account = matching(  # of Google Cloud, or of Kubernetes
    r"[A-Za-z0-9._%+:-]+@[A-Za-z0-9.-]{1,253}|[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", empty=True
)
secret = matching(r"[A-Za-z0-9_-]{1,255}")
_SECRET_REF = (
    r"(?:projects/(?:[a-z0-9][a-z0-9.-]{0,99}:)?[a-z0-9][a-z0-9-]{0,62}/secrets/)?[A-Za-z0-9_-]{1,255}"
    r"(?:/versions/(?:[0-9]{1,18}|[A-Za-z][A-Za-z0-9_-]{0,62}))?"
)
secret_ref = matching(_SECRET_REF)  # of Secret Manager
any_secret_ref = matching(  # … or of Kubernetes: NAME, or NAME/KEY
    _SECRET_REF + r"|[a-z0-9][a-z0-9.-]{0,252}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,252})?"
)
relative = matching(r"(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\x00-\x1f\x7f]{0,4096}")  # a path that stays where it begins
path = matching(r"[^\x00]{0,4096}")  # a user's path of a file
address = matching(r"[^\x00-\x1f\x7f]{0,4096}")  # a folder, or an address in a cloud
environ = table(setting, text(PAGE), 10_000)

count = whole(0, MOST_ATTEMPTS)
attempt = whole(1, MOST_ATTEMPTS)
host = whole(0, MOST_HOSTS - 1)
hosts = whole(1, MOST_HOSTS)
slices = whole(1, MOST_SLICES)
chips = whole(1, MOST_CHIPS)
size = whole(0, LARGEST)
port = whole(0, 65535)
exit_code = whole(-(1 << 32), 1 << 32)
seconds = number(0, LONGEST_WAIT)
limit = number(0, NEVER)  # of seconds or of money, if there is one
moment = number(-1e12, 1e12)  # by a store's clock
