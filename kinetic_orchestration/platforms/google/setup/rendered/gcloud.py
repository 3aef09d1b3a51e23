"""The lines of gcloud that make what `kinor init` makes: a script for a POSIX shell, from the table alone. Pure.

Each line can be run again: gcloud's own bindings and services are the same a second time, and what is created is first
looked for. Facts: https://cloud.google.com/sdk/gcloud/reference; `gcloud topic escaping` for values with commas.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import LOOKED_UP
from kinetic_orchestration.platforms.google.setup.table import (
    Account,
    Bucket,
    Condition,
    Firewall,
    Grant,
    Item,
    Network,
    Role,
    Router,
    Setup,
    Subnetwork,
)

Flags = Mapping[str, str | bool]

_SEPARATORS: Final = ",~;:#%!"  # one of which no part of a condition has
_NUMBER: Final = "NUMBER"  # the variable of a script that looks the project's number up
_QUIETLY: Final = ">/dev/null 2>&1"


def lines(made: Setup) -> list[str]:
    """Return the commands, in the order in which they have to run."""
    where: Flags = {"project": made.wish.project}
    services = _command(("services", "enable", *(api.service for api in made.apis)), where)
    agent = _command(("beta", "services", "identity", "create"), {"service": "tpu.googleapis.com", **where})
    return [services, *(line for item in table.items(made) for line in _of(item, where)), agent]


def script(made: Setup) -> str:
    """Return the commands as a script that stops where one fails, and looks the project's number up."""
    look = _command(("projects", "describe", made.wish.project), {"format": "value(projectNumber)"})
    first = [f"{_NUMBER}=$({look})"] if made.wish.number == LOOKED_UP else []
    return "\n".join(("set -eu", *first, *lines(made))) + "\n"


def _of(item: Item, where: Flags) -> Iterator[str]:
    rows: dict[type, Callable[[Any, Flags], Iterator[str]]] = {
        Bucket: _bucket, Account: _account, Network: _network, Subnetwork: _subnetwork, Firewall: _firewall,
        Router: _router, Role: _role, Grant: _grant,
    }  # fmt: skip
    return rows[type(item)](item, where)


def _bucket(item: Bucket, where: Flags) -> Iterator[str]:
    group, url = ("storage", "buckets"), f"gs://{item.name}"
    flags: Flags = {
        **where,
        "location": item.location,
        "uniform-bucket-level-access": item.uniform_access,
        "public-access-prevention": item.public_access == "enforced",
        "soft-delete-duration": f"{item.soft_delete_seconds}s",
    }
    yield _made(group, url, flags, {})
    labels = ",".join(f"{key}={value}" for key, value in item.labels)
    yield _command((*group, "update", url), {"update-labels": labels})


def _account(item: Account, where: Flags) -> Iterator[str]:
    flags = {**where, "display-name": item.title, "description": item.description}
    yield _made(("iam", "service-accounts"), item.id, flags, where, looked_for=item.email)


def _network(item: Network, where: Flags) -> Iterator[str]:
    flags = {**where, "subnet-mode": "custom", "bgp-routing-mode": "regional", "description": item.description}
    yield _made(("compute", "networks"), item.name, flags, where)


def _subnetwork(item: Subnetwork, where: Flags) -> Iterator[str]:
    place = {**where, "region": item.region}
    flags: Flags = {
        **place,
        "network": item.network,
        "range": item.range,
        "enable-private-ip-google-access": item.private_access,
        "description": item.description,
    }
    yield _made(("compute", "networks", "subnets"), item.name, flags, place)


def _firewall(item: Firewall, where: Flags) -> Iterator[str]:
    flags: Flags = {
        **where,
        "network": item.network,
        "direction": "INGRESS",
        "source-ranges": ",".join(item.sources),
        "allow": ",".join(
            f"{each.protocol}:{port}" if port else each.protocol
            for each in item.allowed
            for port in each.ports or ("",)
        ),
        "description": item.description,
    }
    yield _made(("compute", "firewall-rules"), item.name, flags, where)


def _router(item: Router, where: Flags) -> Iterator[str]:
    group, place = ("compute", "routers"), {**where, "region": item.region}
    yield _made(group, item.name, {**place, "network": item.network, "description": item.description}, place)
    within = {"router": item.name, **place}
    words = ("auto-allocate-nat-external-ips", "nat-all-subnet-ip-ranges", "enable-dynamic-port-allocation")
    flags = {**within, **dict.fromkeys((*words, "no-enable-endpoint-independent-mapping"), True)}
    yield _made((*group, "nats"), item.nat, flags, within)


def _role(item: Role, where: Flags) -> Iterator[str]:
    flags: Flags = {
        **where,
        "title": item.title,
        "description": item.description,
        "permissions": ",".join(item.permissions),
        "stage": "GA",
    }
    updated, created = (_command(("iam", "roles", verb, item.id), flags) for verb in ("update", "create"))
    yield f"{updated} {_QUIETLY} || {created}"


def _grant(item: Grant, where: Flags) -> Iterator[str]:
    groups: Mapping[str, tuple[tuple[str, ...], str, Flags]] = {
        table.PROJECT: (("projects",), item.name, {}),
        table.BUCKET: (("storage", "buckets"), f"gs://{item.name}", {}),
        table.ACCOUNT: (("iam", "service-accounts"), item.name, where),
    }
    group, name, place = groups[item.where]
    flags: Flags = {**place, "member": item.member, "role": item.role, "condition": _condition(item.condition)}
    yield _command((*group, "add-iam-policy-binding", name), flags)


def _condition(condition: Condition | None) -> str:
    """Return a condition as one flag has it: with a separator that it does not have itself."""
    if condition is None:
        return "None"  # or gcloud asks, where the policy has conditions
    parts = condition._asdict()
    separator = next(each for each in _SEPARATORS if not any(each in text for text in parts.values()))
    start = "" if separator == "," else f"^{separator}^"
    return start + separator.join(f"{name}={text}" for name, text in parts.items())


def _made(group: Sequence[str], name: str, flags: Flags, look: Flags, *, looked_for: str = "") -> str:
    """Return the line that creates something if it is not there."""
    found = _command((*group, "describe", looked_for or name), look)
    return f"{found} {_QUIETLY} || {_command((*group, 'create', name), flags)}"


def _command(words: Sequence[str], flags: Flags) -> str:
    given = (
        f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items() if value is not False
    )
    return " ".join(map(_quoted, ("gcloud", *words, *given)))


def _quoted(word: str) -> str:
    """Return a word as a shell reads it: in a condition, the project's number is the variable's."""
    if LOOKED_UP not in word or not word.startswith("--condition="):
        return shlex.quote(word)
    inner = re.sub(r'[\\"$`]', r"\\\g<0>", word)
    return f'"{inner.replace(LOOKED_UP, f"${{{_NUMBER}}}")}"'
