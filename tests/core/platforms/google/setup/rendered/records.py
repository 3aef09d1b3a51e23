"""What a set-up is made of, as each of its renderings says it, in one form: kind and name of each thing → its properties."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.platforms.google.setup import requests, table
from kinetic_orchestration.platforms.google.setup.table import Grant, Setup

Record = tuple[tuple[str, ...], dict[str, Any]]
Records = dict[tuple[str, ...], dict[str, Any]]


def _only(found: Iterable[Record]) -> Records:
    records: Records = {}
    for key, properties in found:
        assert key not in records, f"{key} is there twice"
        records[key] = properties
    return records


def _last(address: str) -> str:
    return address.rpartition("/")[2]


# ---- the table itself ------------------------------------------------------------------------------------------


def of_table(made: Setup) -> Records:
    """Return what the table itself says: renderings may say more of each thing, and all of them the same."""
    return _only(_rows(made))


def shared(found: Records, made: Setup) -> Records:
    """Return what is found, of each thing no more than the table says of it."""
    told = of_table(made)
    return {
        key: {name: value for name, value in row.items() if name in told.get(key, row)} for key, row in found.items()
    }


def _rows(made: Setup) -> Iterator[Record]:
    for api in made.apis:
        yield ("api", api.service), {}
    one = made.bucket
    yield ("bucket", one.name), {
        "location": one.location, "labels": dict(one.labels), "soft_delete": one.soft_delete_seconds,
        "uniform": one.uniform_access, "public": one.public_access,
    }  # fmt: skip
    if made.account is not None:
        account = made.account
        yield ("account", account.id), {"title": account.title, "description": account.description}
    if made.network is not None:
        yield ("network", made.network.name), {"description": made.network.description}
    if made.subnetwork is not None:
        sub = made.subnetwork
        yield ("subnetwork", sub.region, sub.name), {
            "network": sub.network, "range": sub.range, "private": sub.private_access, "description": sub.description,
        }  # fmt: skip
    for rule in made.firewalls:
        yield ("firewall", rule.name), {
            "network": rule.network, "sources": set(rule.sources), "description": rule.description,
            "allowed": {(each.protocol, *each.ports) for each in rule.allowed},
        }  # fmt: skip
    if made.router is not None:
        router = made.router
        yield ("router", router.region, router.name), {"network": router.network, "description": router.description}
        yield ("nat", router.region, router.name, router.nat), {}
    for role in made.roles:
        yield ("role", role.id), {
            "title": role.title, "description": role.description, "permissions": set(role.permissions),
        }  # fmt: skip
    for grant in made.grants:
        condition = grant.condition._asdict() if grant.condition else None
        yield ("grant", grant.where, grant.name, grant.role, grant.member), {"condition": condition}


# ---- REST ------------------------------------------------------------------------------------------------------


def of_rest(made: Setup) -> Records:
    """Return what the requests of `kinor init` make where nothing is there."""
    calls = [requests.make(item, made) for item in table.items(made) if not isinstance(item, Grant)]
    enabled = requests.enable(made.wish.project, [api.service for api in made.apis]).body or {}
    services = [(("api", name), {}) for name in enabled["serviceIds"]]
    places = dict.fromkeys((grant.where, grant.name) for grant in made.grants)
    granted = [
        (("grant", *place, binding["role"], member), {"condition": binding.get("condition")})
        for place in places
        for binding in requests.with_grants({}, [grant for grant in made.grants if grant[:2] == place])["bindings"]
        for member in binding["members"]
    ]
    return _only([*services, *(record for call in calls for record in _requested(call)), *granted])


def _requested(call: requests.Call) -> Iterator[Record]:
    body = call.body or {}
    kind, name, about = _last(call.path), body.get("name", ""), {"description": body.get("description")}
    region = call.path.split("/")[5] if "/regions/" in call.path else ""
    match kind:
        case "b":
            access = body["iamConfiguration"]
            yield ("bucket", name), {
                "location": body["location"], "labels": body["labels"],
                "soft_delete": int(body["softDeletePolicy"]["retentionDurationSeconds"]),
                "uniform": access["uniformBucketLevelAccess"]["enabled"], "public": access["publicAccessPrevention"],
            }  # fmt: skip
        case "serviceAccounts":
            told = body["serviceAccount"]
            yield ("account", body["accountId"]), {"title": told["displayName"], "description": told["description"]}
        case "networks":
            custom, routing = not body["autoCreateSubnetworks"], body["routingConfig"]["routingMode"]
            yield ("network", name), {**about, "custom": custom, "routing": routing}
        case "subnetworks":
            within = {"network": _last(body["network"]), "range": body["ipCidrRange"]}
            yield ("subnetwork", region, name), {**within, "private": body["privateIpGoogleAccess"], **about}
        case "firewalls":
            assert body["direction"] == "INGRESS"
            allowed = {(each["IPProtocol"], *each.get("ports", ())) for each in body["allowed"]}
            within = {"network": _last(body["network"]), "sources": set(body["sourceRanges"]), "allowed": allowed}
            yield ("firewall", name), within | about
        case "routers":
            yield ("router", region, name), {"network": _last(body["network"]), **about}
            for nat in body["nats"]:
                addresses = {"AUTO_ONLY": "auto"}[nat["natIpAllocateOption"]]
                ranges = {"ALL_SUBNETWORKS_ALL_IP_RANGES": "all"}[nat["sourceSubnetworkIpRangesToNat"]]
                yield ("nat", region, name, nat["name"]), {
                    "addresses": addresses, "ranges": ranges, "dynamic": nat["enableDynamicPortAllocation"],
                    "independent": nat["enableEndpointIndependentMapping"],
                }  # fmt: skip
        case "roles":
            role = body["role"]
            yield ("role", body["roleId"]), {
                "title": role["title"], "description": role["description"], "stage": role["stage"],
                "permissions": set(role["includedPermissions"]),
            }  # fmt: skip
        case _:
            raise AssertionError(f"nobody asked for {call.path}")


# ---- gcloud ----------------------------------------------------------------------------------------------------


def of_gcloud(commands: Iterable[Sequence[str]]) -> Records:
    """Return what these words of gcloud make."""
    records: Records = {}
    for words in commands:
        given = [word for word in words if not word.startswith("--")]
        flags = dict(_flag(word) for word in words if word.startswith("--"))
        for key, properties in _commanded(" ".join(given[:-1]), given, flags):
            records[key] = records.get(key, {}) | properties
    return records


def _flag(word: str) -> tuple[str, str]:
    name, _, value = word[2:].partition("=")
    return name, value


def _commanded(verb: str, given: Sequence[str], flags: Mapping[str, str]) -> Iterator[Record]:
    name, region = given[-1], flags.get("region", "")
    about = {"description": flags.get("description")}
    match verb:
        case _ if list(given[:2]) == ["services", "enable"]:
            yield from ((("api", each), {}) for each in given[2:])
        case "storage buckets create":
            yield ("bucket", name.removeprefix("gs://")), {
                "location": flags["location"], "soft_delete": int(flags["soft-delete-duration"].removesuffix("s")),
                "uniform": "uniform-bucket-level-access" in flags,
                "public": "enforced" if "public-access-prevention" in flags else "inherited",
            }  # fmt: skip
        case "storage buckets update":
            labels = dict(each.split("=") for each in flags["update-labels"].split(","))
            yield ("bucket", name.removeprefix("gs://")), {"labels": labels}
        case "iam service-accounts create":
            yield ("account", name), {"title": flags["display-name"], **about}
        case "compute networks create":
            custom, routing = flags["subnet-mode"] == "custom", flags["bgp-routing-mode"].upper()
            yield ("network", name), {**about, "custom": custom, "routing": routing}
        case "compute networks subnets create":
            private = "enable-private-ip-google-access" in flags
            yield ("subnetwork", region, name), {
                "network": flags["network"], "range": flags["range"], "private": private, **about,
            }  # fmt: skip
        case "compute firewall-rules create":
            assert flags["direction"] == "INGRESS"
            allowed = {tuple(each.split(":")) for each in flags["allow"].split(",")}
            sources = set(flags["source-ranges"].split(","))
            yield ("firewall", name), {"network": flags["network"], "sources": sources, "allowed": allowed, **about}
        case "compute routers create":
            yield ("router", region, name), {"network": flags["network"], **about}
        case "compute routers nats create":
            addresses = "auto" if "auto-allocate-nat-external-ips" in flags else ""
            ranges = "all" if "nat-all-subnet-ip-ranges" in flags else ""
            yield ("nat", region, flags["router"], name), {
                "addresses": addresses, "ranges": ranges, "dynamic": "enable-dynamic-port-allocation" in flags,
                "independent": "no-enable-endpoint-independent-mapping" not in flags,
            }  # fmt: skip
        case "iam roles create":
            permissions = set(flags["permissions"].split(","))
            yield (
                ("role", name),
                {"title": flags["title"], **about, "permissions": permissions, "stage": flags["stage"]},
            )
        case _ if verb.endswith("add-iam-policy-binding"):
            where = {"projects": table.PROJECT, "storage": table.BUCKET, "iam": table.ACCOUNT}[given[0]]
            key = ("grant", where, name.removeprefix("gs://"), flags["role"], flags["member"])
            yield key, {"condition": _condition(flags["condition"])}
        case "beta services identity":
            assert flags["service"] == "tpu.googleapis.com"
        case _:
            raise AssertionError(f"no thing is made by {' '.join(given)}")


def _condition(flag: str) -> dict[str, str] | None:
    """As `gcloud topic escaping` reads it."""
    if flag == "None":
        return None
    escaped = re.match(r"\^(.+?)\^", flag)
    parts = flag[escaped.end() :].split(escaped[1]) if escaped else flag.split(",")
    return dict(part.split("=", 1) for part in parts)


# ---- Terraform -------------------------------------------------------------------------------------------------


def of_plan(plan: Mapping[str, Any]) -> Records:
    """Return what a plan of Terraform creates."""
    found = plan["planned_values"]["root_module"]["resources"]
    values = ((one["type"].removeprefix("google_"), one["values"]) for one in found if one["mode"] == "managed")
    return _only(record for kind, value in values for record in _planned(kind, value))


def _planned(kind: str, value: Mapping[str, Any]) -> Iterator[Record]:
    name, region, about = value.get("name", ""), value.get("region"), {"description": value.get("description")}
    match kind:
        case "project_service":
            assert value["disable_on_destroy"] is False
            yield ("api", value["service"]), {}
        case "storage_bucket":
            assert value["force_destroy"] is False
            yield ("bucket", name), {
                "location": value["location"], "labels": value["labels"],
                "soft_delete": value["soft_delete_policy"][0]["retention_duration_seconds"],
                "uniform": value["uniform_bucket_level_access"], "public": value["public_access_prevention"],
            }  # fmt: skip
        case "service_account":
            yield ("account", value["account_id"]), {"title": value["display_name"], **about}
        case "compute_network":
            custom, routing = not value["auto_create_subnetworks"], value["routing_mode"]
            yield ("network", name), {**about, "custom": custom, "routing": routing}
        case "compute_subnetwork":
            private = value["private_ip_google_access"]
            within = {"network": _last(value["network"]), "range": value["ip_cidr_range"], "private": private}
            yield ("subnetwork", region, name), within | about
        case "compute_firewall":
            allowed = {(each["protocol"], *(each["ports"] or ())) for each in value["allow"]}
            within = {"network": _last(value["network"]), "sources": set(value["source_ranges"]), "allowed": allowed}
            yield ("firewall", name), within | about
        case "compute_router":
            yield ("router", region, name), {"network": _last(value["network"]), **about}
        case "compute_router_nat":
            addresses = {"AUTO_ONLY": "auto"}[value["nat_ip_allocate_option"]]
            ranges = {"ALL_SUBNETWORKS_ALL_IP_RANGES": "all"}[value["source_subnetwork_ip_ranges_to_nat"]]
            yield ("nat", region, value["router"], name), {
                "addresses": addresses, "ranges": ranges, "dynamic": value["enable_dynamic_port_allocation"],
                "independent": value["enable_endpoint_independent_mapping"],
            }  # fmt: skip
        case "project_iam_custom_role":
            yield ("role", value["role_id"]), {
                "title": value["title"], **about, "permissions": set(value["permissions"]), "stage": value["stage"],
            }  # fmt: skip
        case "project_iam_member":
            yield _granted(table.PROJECT, value["project"], value)
        case "storage_bucket_iam_member":
            yield _granted(table.BUCKET, value["bucket"], value)
        case "service_account_iam_member":
            yield _granted(table.ACCOUNT, _last(value["service_account_id"]), value)
        case "time_sleep":
            pass
        case _:
            raise AssertionError(f"nobody asked for {kind}")


def _granted(where: str, name: str, value: Mapping[str, Any]) -> Record:
    condition = value["condition"][0] if value["condition"] else None
    return ("grant", where, name, value["role"], value["member"]), {"condition": condition}
