"""A module for Terraform that makes what `kinor init` makes: each resource is one row of the table. Pure.

The table is filled in for answers that stand for the variables, and again without each of the options, which tells
what depends on them. Conventions: https://developer.hashicorp.com/terraform/language/modules/develop/structure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import LOOKED_UP, hcl, texts, variables
from kinetic_orchestration.platforms.google.setup.rendered.hcl import Attribute, Block, Comment, literal
from kinetic_orchestration.platforms.google.setup.table import (
    Account,
    Bucket,
    Firewall,
    Grant,
    Item,
    Network,
    Role,
    Router,
    Setup,
    Subnetwork,
    Wish,
)

# Answers that stand for the variables, so that their places in the table's texts are found.
STANDING: Final = Wish(
    project="the-project-id",
    number=LOOKED_UP,
    region="us-west4",
    bucket="the-bucket-name",
    network="the-network-name",
    own_network=True,
    range="10.77.0.0/20",
    submitters=("user:the-submitter@example.com",),
    shell=True,
)
# Without each of these options: what is not there then depends on it, which a condition of Terraform says.
_OPTIONS: Final[Mapping[str, Wish]] = {
    "var.create_network": replace(STANDING, own_network=False),
    "var.shell": replace(STANDING, shell=False),
    "length(var.submitters) > 0": replace(STANDING, submitters=()),
}
_EACH: Final = "length(var.submitters) > 0"
_AFTER: Final = Attribute("depends_on", "[time_sleep.apis]")
_PROJECT: Final = Attribute("project", "var.project_id")


def files(wish: Wish | None = None) -> dict[str, str]:
    """Return the files of the module by their paths in its folder.

    Args:
        wish: Answers that `terraform.tfvars` is written for, so that the folder can be applied as it is.
    """
    made = {
        "versions.tf": texts.VERSIONS,
        "variables.tf": hcl.document(variables.declared()),
        "main.tf": hcl.document(list(_main(table.setup(STANDING)))),
        "outputs.tf": texts.OUTPUTS,
        "README.md": texts.readme(),
        "examples/minimal/main.tf": texts.MINIMAL,
        "examples/full/main.tf": texts.FULL,
    }
    if wish is not None:
        given = [Attribute(name, literal(value)) for name, value in variables.answers(wish).items()]
        made["terraform.tfvars"] = hcl.attributes(given)
    return made


def _main(made: Setup) -> Iterator[Block | Comment]:
    yield Block("locals", (), tuple(_locals(made)))
    found = (Attribute("count", 'var.project_number == "" ? 1 : 0'), Attribute("project_id", "var.project_id"))
    yield Block("data", ("google_project", "this"), found)
    yield Block("resource", ("google_project_service", "apis"), (
        Attribute("for_each", "local.services"), _PROJECT, Attribute("service", "each.value"),
        Attribute("disable_on_destroy", "false"),
    ))  # fmt: skip
    yield Comment("An API that was just enabled refuses its first requests.")
    yield Block("resource", ("time_sleep", "apis"), (
        Attribute("create_duration", "var.api_wait"),
        Attribute("triggers", "{ for name in local.services : name => name }"),
        Attribute("depends_on", "[google_project_service.apis]"),
    ))  # fmt: skip
    for item in table.items(made):
        yield from _resources(item)


def _locals(made: Setup) -> Iterator[Attribute]:
    shells = {api.service for api in made.apis} - {api.service for api in table.setup(_OPTIONS["var.shell"]).apis}
    always = [literal(api.service) for api in made.apis if api.service not in shells]
    more = f"var.shell ? {literal(sorted(shells))} : []"
    yield Attribute("services", f"toset(concat({hcl.listed(always)}, {more}))")
    default = f'"${{replace(var.project_id, "/[^a-z0-9-]/", "-")}}{table.default_bucket("")}"'
    yield Attribute("bucket", f"coalesce(var.bucket, {default})")
    yield Attribute("number", "coalesce(var.project_number, one(data.google_project.this[*].number))")
    yield Attribute("machines", "coalesce(var.service_account, one(google_service_account.machines[*].email))")


# ---- rows ------------------------------------------------------------------------------------------------------


def _resources(item: Item) -> Iterator[Block]:
    """The resources of one row: one, but for a router, whose NAT is another."""
    kind, name = address(item)
    many = tuple(_many(item))
    rows: Mapping[type, Callable[[Any], Iterator[Attribute | Block]]] = {
        Bucket: _bucket, Account: _account, Network: _network, Subnetwork: _subnetwork, Firewall: _firewall,
        Router: _router, Role: _role, Grant: _grant,
    }  # fmt: skip
    body = rows[type(item)](item)
    yield Block("resource", (kind, name), (*_reasons(item), *many, *body))
    if isinstance(item, Router):
        yield Block("resource", (f"{kind}_nat", name), (*many, *_nat(item)))


def address(item: Item) -> tuple[str, str]:
    """Return the kind and the name of the resource that a row of the table is."""
    if isinstance(item, Grant):
        kinds = {table.PROJECT: "project", table.BUCKET: "storage_bucket", table.ACCOUNT: "service_account"}
        who = "machines" if item.member.startswith("serviceAccount:") else "submitters"
        return f"google_{kinds[item.where]}_iam_member", f"{who}_{_snake(item.role.rpartition('/')[2])}"
    if isinstance(item, Role):
        return "google_project_iam_custom_role", _snake(item.id.removeprefix("kinetic"))
    if isinstance(item, Firewall):
        return "google_compute_firewall", item.name.removeprefix(f"{STANDING.network}-")
    rows: Mapping[type, tuple[str, str]] = {
        Bucket: ("google_storage_bucket", "store"),
        Account: ("google_service_account", "machines"),
        Network: ("google_compute_network", "hosts"),
        Subnetwork: ("google_compute_subnetwork", "hosts"),
        Router: ("google_compute_router", "hosts"),
    }
    return rows[type(item)]


def _snake(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|\.", "_", text).lower().strip("_")


def _needs(item: Item) -> list[str]:
    return [condition for condition, without in _OPTIONS.items() if item not in table.items(table.setup(without))]


def _many(item: Item) -> Iterator[Attribute]:
    """Yield how many there are of a resource, where options decide it."""
    needs = _needs(item)
    if isinstance(item, Account):
        yield Attribute("count", 'var.service_account == "" ? 1 : 0')
    elif isinstance(item, Grant) and _EACH in needs:
        others = " && ".join(need for need in needs if need != _EACH)
        yield Attribute("for_each", f"{others} ? var.submitters : toset([])" if others else "var.submitters")
    elif needs:
        yield Attribute("count", f"{' && '.join(needs)} ? 1 : 0")


def _reference(item: Item, field: str) -> str:
    kind, name = address(item)
    return f"{kind}.{name}{'[0]' if _needs(item) else ''}.{field}"


def _bucket(item: Bucket) -> Iterator[Attribute | Block]:
    yield from (
        Attribute("name", "local.bucket"), _PROJECT, Attribute("location", _text(item.location)),
        Attribute("labels", "{ " + ", ".join(f"{key} = {literal(value)}" for key, value in item.labels) + " }"),
        Attribute("uniform_bucket_level_access", literal(item.uniform_access)),
        Attribute("public_access_prevention", literal(item.public_access)), Attribute("force_destroy", "false"),
    )  # fmt: skip
    kept = Attribute("retention_duration_seconds", literal(item.soft_delete_seconds))
    yield Block("soft_delete_policy", (), (kept,))
    yield _AFTER


def _account(item: Account) -> Iterator[Attribute]:
    yield from (Attribute("account_id", literal(item.id)), _PROJECT, Attribute("display_name", literal(item.title)))
    yield from (Attribute("description", literal(item.description)), _AFTER)


def _network(item: Network) -> Iterator[Attribute]:
    yield from (Attribute("name", _text(item.name)), _PROJECT, Attribute("description", literal(item.description)))
    yield from (Attribute("auto_create_subnetworks", "false"), Attribute("routing_mode", '"REGIONAL"'), _AFTER)


def _within() -> Attribute:
    network = table.setup(STANDING).network
    assert network is not None
    return Attribute("network", _reference(network, "id"))


def _subnetwork(item: Subnetwork) -> Iterator[Attribute]:
    yield from (Attribute("name", _text(item.name)), _PROJECT, Attribute("description", literal(item.description)))
    yield from (_within(), Attribute("region", _text(item.region)), Attribute("ip_cidr_range", _text(item.range)))
    yield Attribute("private_ip_google_access", literal(item.private_access))


def _firewall(item: Firewall) -> Iterator[Attribute | Block]:
    yield from (Attribute("name", _text(item.name)), _PROJECT, Attribute("description", literal(item.description)))
    yield from (_within(), Attribute("source_ranges", hcl.listed([_text(each) for each in item.sources])))
    for allowed in item.allowed:
        ports = [Attribute("ports", literal(allowed.ports))] if allowed.ports else []
        yield Block("allow", (), (Attribute("protocol", literal(allowed.protocol)), *ports))


def _router(item: Router) -> Iterator[Attribute]:
    yield from (Attribute("name", _text(item.name)), _PROJECT, Attribute("description", literal(item.description)))
    yield from (_within(), Attribute("region", _text(item.region)))


def _nat(item: Router) -> Iterator[Attribute]:
    yield from (Attribute("name", _text(item.nat)), _PROJECT, Attribute("router", _reference(item, "name")))
    yield from (Attribute("region", _text(item.region)), Attribute("nat_ip_allocate_option", '"AUTO_ONLY"'))
    yield Attribute("source_subnetwork_ip_ranges_to_nat", '"ALL_SUBNETWORKS_ALL_IP_RANGES"')
    yield Attribute("enable_dynamic_port_allocation", "true")
    yield Attribute("enable_endpoint_independent_mapping", "false")


def _role(item: Role) -> Iterator[Attribute]:
    yield from (Attribute("role_id", literal(item.id)), _PROJECT, Attribute("title", literal(item.title)))
    yield from (
        Attribute("description", literal(item.description)),
        Attribute("permissions", literal(item.permissions)),
    )
    yield from (Attribute("stage", '"GA"'), _AFTER)


def _grant(item: Grant) -> Iterator[Attribute | Block]:
    on = {
        table.PROJECT: _PROJECT,
        table.BUCKET: Attribute("bucket", "google_storage_bucket.store.name"),
        table.ACCOUNT: Attribute("service_account_id", '"projects/-/serviceAccounts/${local.machines}"'),
    }
    yield from (on[item.where], Attribute("role", _text(item.role)), Attribute("member", _text(item.member)))
    if item.condition is not None:
        yield Block("condition", (), tuple(
            Attribute(name, _text(value)) for name, value in item.condition._asdict().items()
        ))  # fmt: skip
    if item.where != table.BUCKET:
        yield _AFTER


def _reasons(item: Item) -> Iterator[Comment]:
    """Return why what checkov would find is so: it reads such a comment within the resource."""
    yield from (Comment(text) for text in texts.FINDINGS.get(type(item).__name__, ()))


# ---- texts in which answers stand ------------------------------------------------------------------------------


def _references() -> dict[str, str]:
    """Return what stands in the table's texts for a variable, the longest first."""
    made = table.setup(STANDING)
    roles = {table.custom(STANDING.project, role.id): _reference(role, "name") for role in made.roles}
    return {
        **roles,
        made.machines: "local.machines",
        STANDING.submitters[0]: "each.value",
        STANDING.number: "local.number",
        STANDING.bucket: "local.bucket",
        STANDING.network: "var.network",
        STANDING.region: "var.region",
        STANDING.range: "var.range",
        STANDING.project: "var.project_id",
    }


def _text(text: str) -> str:
    """Return a text of the table as an expression, with references where answers stand."""
    known = _references()
    if text in known:
        return known[text]
    pieces = re.split("(" + "|".join(map(re.escape, known)) + ")", text)
    inner = "".join(f"${{{known[each]}}}" if each in known else literal(each)[1:-1] for each in pieces)
    return f'"{inner}"'
