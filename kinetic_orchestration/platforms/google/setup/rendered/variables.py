"""The variables of the Terraform module: how a `Wish` is asked for there, and what is no answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import LOOKED_UP
from kinetic_orchestration.platforms.google.setup.rendered.hcl import Attribute, Block, literal
from kinetic_orchestration.platforms.google.setup.table import Wish

_USUAL: Final = Wish("", "", "")  # whose other answers are the defaults
_MEMBER: Final = r"^((user|group|serviceAccount):[^@ ]+@[^@ ]+|principal(Set)?://iam\\.googleapis\\.com/[^ ]+)$"


class Variable(NamedTuple):
    """A variable of the module.

    Attributes:
        name: Its name.
        type: Of Terraform.
        description: What it is.
        condition: What has to be true of it, in Terraform's language; "": its type says all.
        message: What to write, for whoever wrote something else.
        default: None: it has to be given.
    """

    name: str
    type: str
    description: str
    condition: str = ""
    message: str = ""
    default: str | bool | Sequence[str] | None = None


def _matches(name: str, pattern: str) -> str:
    return f'can(regex("{pattern}", var.{name}))'


VARIABLES: Final = (
    Variable(
        "project_id", "string", "Id of the project, not its number.",
        _matches("project_id", "^([a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$"),
        "A project's id has 6 to 30 small letters, digits and hyphens.",
    ),
    Variable(
        "region", "string", "Region of the bucket and of the subnetwork: one that has your TPUs.",
        _matches("region", "^[a-z]+-[a-z]+[0-9]+$"), "Name a region, such as us-west4, and no zone.",
    ),
    Variable(
        "project_number", "string", "Number of the project, by which IAM names secrets; \"\": it is looked up.",
        _matches("project_number", "^[0-9]*$"), "A project's number has digits only.", "",
    ),
    Variable(
        "bucket", "string", "Name of the bucket; \"\": by the project's id.",
        _matches("bucket", "^([a-z0-9][a-z0-9_-]{1,61}[a-z0-9])?$"),
        "A bucket's name has 3 to 63 small letters, digits, hyphens and underscores.", "",
    ),
    Variable(
        "service_account", "string", "Email of an account that exists, for the machines; \"\": one is made.",
        _matches("service_account", r"^([a-z0-9-]+@[a-z0-9.-]+\\.gserviceaccount\\.com)?$"),
        "Give the account's email: NAME@PROJECT.iam.gserviceaccount.com.", "",
    ),
    Variable(
        "submitters", "set(string)", "Members of policies who submit jobs and are no owners of the project.",
        f'alltrue([for member in var.submitters : can(regex("{_MEMBER}", member))])',
        "Write user:EMAIL, group:EMAIL or serviceAccount:EMAIL.", (),
    ),
    Variable("shell", "bool", "Submitters may open shells on running hosts, through IAP.", default=False),
    Variable("create_network", "bool", "A network of its own is made, with NAT.", default=False),
    Variable(
        "network", "string", "Name of the network of the machines, which is made with create_network.",
        _matches("network", "^[a-z]([-a-z0-9]{0,54}[a-z0-9])?$"),
        "A network's name has small letters, digits and hyphens.", _USUAL.network,
    ),
    Variable(
        "range", "string", "Private addresses of the subnetwork, with create_network.",
        "can(cidrnetmask(var.range))", f"Write a range of addresses, such as {_USUAL.range}.", _USUAL.range,
    ),
    Variable(
        "api_wait", "string", "How long it takes until an API that was enabled can be used.",
        _matches("api_wait", "^[0-9]+(s|m)$"), "Write seconds or minutes, such as 60s.", "60s",
    ),
)  # fmt: skip


def declared() -> list[Block]:
    """Return the blocks of variables.tf."""
    return [_block(each) for each in VARIABLES]


def _block(variable: Variable) -> Block:
    default: list[Attribute] = [] if variable.default is None else [Attribute("default", literal(variable.default))]
    tested = (Attribute("condition", variable.condition), Attribute("error_message", literal(variable.message)))
    body: tuple[Attribute | Block, ...] = (
        Attribute("description", literal(variable.description)),
        Attribute("type", variable.type),
        *default,
        Attribute("nullable", "false"),
        *([Block("validation", (), tested)] if variable.condition else []),
    )
    return Block("variable", (variable.name,), body)


def answers(wish: Wish) -> Mapping[str, str | bool | Sequence[str]]:
    """Return the answers as values of the module's variables, but for those that are the defaults."""
    given: dict[str, str | bool | Sequence[str]] = {
        "project_id": wish.project,
        "region": wish.region,
        "project_number": "" if wish.number == LOOKED_UP else wish.number,
        "bucket": "" if wish.bucket == table.default_bucket(wish.project) else wish.bucket,
        "service_account": wish.account,
        "submitters": wish.submitters,
        "shell": wish.shell,
        "create_network": wish.own_network,
        "network": wish.network,
        "range": wish.range,
    }
    defaults = {each.name: each.default for each in VARIABLES}
    return {name: value for name, value in given.items() if value != defaults[name]}
