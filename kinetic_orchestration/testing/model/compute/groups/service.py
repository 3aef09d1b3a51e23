"""Compute Engine with groups of instances, their templates and policies: one function for each method, in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules import filters
from kinetic_orchestration.testing.model.compute import catalog, checks
from kinetic_orchestration.testing.model.compute.groups import rules
from kinetic_orchestration.testing.model.compute.groups.lifecycle import GROUP, KINDS
from kinetic_orchestration.testing.model.compute.groups.resources import Group, Member, Policy, Template, path_of
from kinetic_orchestration.testing.model.compute.groups.script import GroupScript
from kinetic_orchestration.testing.model.compute.lifecycle import step
from kinetic_orchestration.testing.model.compute.networks import VERBS as OF_INSTANCES
from kinetic_orchestration.testing.model.compute.resources import LINK, Instance, Json
from kinetic_orchestration.testing.model.compute.service import Request, Verb, number, page
from kinetic_orchestration.testing.model.faults import Caller

_MANAGERS: Final = "instanceGroupManagers"
_MOMENT: Final = 0.1  # of the time that an instance takes: what a policy or a template does


class Compute(GroupScript):
    """All of Compute Engine that the emulated cloud has."""

    def verbs(self) -> Mapping[str, Verb]:
        return VERBS

    def _may(self, permission: str, resource: str, caller: Caller) -> bool:
        return super()._may(permission, resource.replace(f"/{_MANAGERS}/", "/instances/"), caller)

    def _made(self, asked: Request, body: Json, path: str) -> Instance:
        made = super()._made(asked, body, path)
        for link in body.get("resourcePolicies") or ():
            policy = self._policy(str(link), asked.project, region_of(asked.place))
            if "workloadPolicy" in policy.body:
                raise refusals.usage(f"A workload policy is for groups, and not for an instance: {policy.path}.")
        return made

    # Policies and templates

    def insert_policy(self, asked: Request) -> Json:
        rules.policy(dict(asked.body))
        return self._keep(asked, "resourcePolicies", Policy)

    def insert_template(self, asked: Request) -> Json:
        rules.template(dict(asked.body))
        self._demand_account(asked._replace(body=asked.body["properties"]))
        return self._keep(asked, "instanceTemplates", Template)

    def _keep(self, asked: Request, kind: str, made: type[Policy] | type[Template]) -> Json:
        self._demand_region(asked)
        path = f"{asked.scope}/{kind}/{checks.name(str(asked.body.get('name') or ''))}"
        if path in self._kept(path):
            raise refusals.exists(path)
        one = made(path, dict(asked.body), self.means.random_bits(62) | 1 << 61, self.world.now)
        self._kept(path)[path] = one  # type: ignore[assignment]
        self.world.ledger.created(KINDS[kind], path)
        operation = self._begun("insert", one, path, asked)
        method = _of_region(kind, asked) + ".insert"
        fault = self.world.faults.take("provision", method, "", asked.caller, path)

        def ready() -> None:
            one.ready = True
            if fault is not None and fault.refusal is not None:
                self._drop(one)
                self._end_operation(operation, refusals.of(fault.refusal()))
            else:
                self._settle(operation, method, "")

        self.world.later(self.world.timing.provision * _MOMENT, ready)
        return operation.to_json()

    def get_kept(self, asked: Request, kind: str) -> Json:
        return self._one_kept(asked, kind).to_json()

    def list_kept(self, asked: Request, kind: str, name: str) -> Json:
        self._demand_region(asked)
        parent = f"{asked.scope}/{kind}"
        there = self._kept(f"{parent}/")
        return _listed(name, parent, [there[path].to_json() for path in sorted(there) if _within(path, parent)], asked)

    def aggregated_kept(self, asked: Request, kind: str, name: str, places: Iterable[str]) -> Json:
        there = self._kept(f"/{kind}/")
        return self._aggregated(asked, kind, name, {path: one.to_json() for path, one in there.items()}, places)

    def delete_kept(self, asked: Request, kind: str) -> Json:
        one = self._one_kept(asked, kind)
        running = self._running("delete", one.number)
        if running is not None:
            return running.to_json()
        user = self.user_of(one.path)
        if user:
            raise refusals.in_use(one.path, user)
        operation = self._begun("delete", one, one.path, asked)
        one.deletes = True

        def gone() -> None:
            if one.path in self._kept(one.path):
                self._drop(one)
            self._settle(operation, _of_region(kind, asked) + ".delete", "")

        self.world.later(self.world.timing.delete, gone)
        return operation.to_json()

    def _one_kept(self, asked: Request, kind: str) -> Policy | Template:
        self._demand_region(asked)
        path = f"{asked.scope}/{kind}/{asked.name}"
        found = self._kept(path).get(path)
        if found is None:
            raise refusals.missing(path)
        return found

    def _policy(self, link: str, project: str, where: str) -> Policy:
        path = path_of(link, project, where)
        found = self.policies.get(path)
        if found is None:
            raise refusals.missing(path)
        if path.split("/")[3] != where:
            raise refusals.value("resource.resourcePolicies", path, f"It is not of the region {where}.")
        if not found.ready or found.deletes:
            raise refusals.not_ready(path)
        return found

    # Groups

    def insert_group(self, asked: Request) -> Json:
        self._demand_region(asked)
        body = dict(asked.body)
        name = checks.name(str(body.get("name") or ""))
        path = f"{asked.scope}/{_MANAGERS}/{name}"
        rules.mode(body)
        zone = rules.zone(body, asked.place, self.zones)
        size = rules.size(body.get("targetSize"))
        template = self._template(rules.template_of(body), asked, zone)
        policy = self._workload(body, asked, zone)
        topology = policy.topology if policy is not None else ""
        rules.shape(template.machine, topology, size)
        base = str(body.setdefault("baseInstanceName", name))
        names = rules.names(base, size, self.means.random_bits)
        if path in self.groups:
            raise refusals.exists(path)
        where = f"projects/{asked.project}/zones/{zone}/instances"
        group = Group(
            path, body, self.means.random_bits(62) | 1 << 61, self.world.now, zone, template.path,
            policy.path if policy is not None else "", topology, size,
            [Member(f"{where}/{name}", index) for index, name in enumerate(names)],
        )  # fmt: skip
        self.groups[path] = group
        self.world.ledger.created(GROUP, path)
        self.world.record(GROUP, path, f"asks for {size} instances")
        operation = self._begun("insert", group, path, asked)

        def made() -> None:
            self._settle(operation, _of_region(_MANAGERS, asked) + ".insert", zone)
            self._fill(group)

        self.world.later(self.world.timing.provision * _MOMENT, made)
        return operation.to_json()

    def _template(self, link: str, asked: Request, zone: str) -> Template:
        path = path_of(link, asked.project, region_of(zone))
        found = self.templates.get(path)
        if found is None:
            raise refusals.missing(path)
        if "/regions/" in path and path.split("/")[3] != region_of(zone):
            why = f"A template of a region is for groups in it, and not in {region_of(zone)}."
            raise refusals.value("resource.instanceTemplate", path, why)
        self._demand("compute.instanceTemplates.useReadOnly", path, asked.caller)
        if not found.ready or found.deletes:
            raise refusals.not_ready(path)
        return found

    def _workload(self, body: Json, asked: Request, zone: str) -> Policy | None:
        link = str((body.get("resourcePolicies") or {}).get("workloadPolicy") or "")
        if not link:
            return None
        policy = self._policy(link, asked.project, region_of(zone))
        self._demand("compute.resourcePolicies.use", policy.path, asked.caller)
        if "workloadPolicy" not in policy.body:
            raise refusals.usage(f"The policy of a group is a workload policy: {policy.path} is none.")
        return policy

    def get_group(self, asked: Request) -> Json:
        return self._shown_group(self._group(asked))

    def list_groups(self, asked: Request) -> Json:
        self._demand_region(asked)
        kind = (
            "compute#regionInstanceGroupManagerList"
            if "/regions/" in asked.scope
            else "compute#instanceGroupManagerList"
        )
        parent = f"{asked.scope}/{_MANAGERS}"
        here = [self._shown_group(self.groups[path]) for path in sorted(self.groups) if _within(path, parent)]
        return _listed(kind, parent, here, asked)

    def aggregated_groups(self, asked: Request) -> Json:
        there = {path: self._shown_group(one) for path, one in self.groups.items()}
        return self._aggregated(
            asked, _MANAGERS, "compute#instanceGroupManagerAggregatedList", there, ("zones", "regions")
        )

    def test_group_permissions(self, asked: Request) -> Json:
        """Return a caller's permissions on the instance group of a group manager, which has no such method itself."""
        group = self._group(asked)
        wanted = [str(one) for one in asked.body.get("permissions") or ()]
        for one in wanted:
            if not one.startswith("compute.instanceGroups."):
                raise refusals.not_of_resource(one)
        held = [one for one in wanted if self._may(one, group.path, asked.caller)]
        return {"permissions": held} if held else {}

    def managed(self, asked: Request) -> Json:
        """All of them at once, unless the group is made with PAGINATED."""
        group = self._group(asked)
        there = group.managed(self.instances)
        if group.body.get("listManagedInstancesResults") == "PAGINATED":
            shown, rest = page(there, asked.query)
        else:
            shown, rest = filters.chosen(there, asked.query.get("filter", "")), {}
        return ({"managedInstances": shown} if shown else {}) | rest

    def resize_group(self, asked: Request) -> Json:
        group = self._group(asked)
        size = rules.size(number(asked.query, "size", 0), "size")
        if group.deleting is not None:
            raise refusals.not_ready(group.path)
        rules.shape(self.templates[group.template].machine, group.topology, size)
        operation = self._begun("compute.instanceGroupManagers.resize", group, group.path, asked)
        kept, others = group.members[:size], group.members[size:]
        group.size = size
        if len(kept) < size:
            names = rules.names(str(group.body["baseInstanceName"]), size, self.means.random_bits)
            where = f"projects/{group.project}/zones/{group.zone}/instances"
            kept += [Member(f"{where}/{name}", index) for index, name in enumerate(names) if index >= len(kept)]
        for member in others:
            member.wanted = False
        group.members = kept + [one for one in others if one.path in self.instances]
        self._take_away(group, others)
        if not any(one.wanted and one.path not in self.instances for one in group.members):
            group.bulk = None
        self._look(group)
        self._settle(operation, _of_region(_MANAGERS, asked) + ".resize", group.zone)
        self._fill(group)
        return operation.to_json()

    def delete_group(self, asked: Request) -> Json:
        group = self._group(asked)
        self._demand("compute.instanceGroups.delete", group.path, asked.caller)
        if group.deleting is not None:
            return group.deleting.to_json()
        operation = self._begun("delete", group, group.path, asked)
        self._delete_group(group, operation)
        return operation.to_json()

    def delete(self, asked: Request) -> Json:
        self._ends(self._named(asked), "deleted")
        return super().delete(asked)

    def _group(self, asked: Request) -> Group:
        self._demand_region(asked)
        path = f"{asked.scope}/{_MANAGERS}/{asked.name}"
        found = self.groups.get(path)
        if found is None:
            raise refusals.missing(path)
        return found

    def _shown_group(self, group: Group) -> Json:
        return group.to_json(self.instances, self.templates[group.template].waits, self.state_of(group))

    # Small parts

    def _demand_region(self, asked: Request) -> None:
        if "/regions/" in asked.scope and asked.place not in catalog.regions(self.zones):
            raise refusals.missing(asked.scope)

    # Inspection by tests

    @step
    def group(self, name: str) -> Json | None:
        """A group as the API shows it, by its path or its name; or None."""
        found = next((one for path, one in self.groups.items() if name in (path, one.name)), None)
        return self._shown_group(found) if found is not None else None


def _of_region(kind: str, asked: Request) -> str:
    """A method's resource by Google's names, as they are of a region."""
    if kind == "resourcePolicies" or "/regions/" not in asked.scope:
        return kind
    return f"region{kind[0].upper()}{kind[1:]}"


def _within(path: str, parent: str) -> bool:
    return path.rpartition("/")[0] == parent


def _listed(kind: str, parent: str, items: list[Json], asked: Request) -> Json:
    shown, rest = page(items, asked.query)
    return {"kind": kind, "id": parent, "selfLink": LINK + parent, **({"items": shown} if shown else {})} | rest


def _verbs_of_kept(resource: str, kind: str, insert: Verb, shown: str) -> dict[str, Verb]:
    return {
        f"{resource}.insert": insert,
        f"{resource}.get": Verb(lambda own, asked: own.get_kept(asked, kind), f"{kind}.get", False, kind),
        f"{resource}.list": Verb(lambda own, asked: own.list_kept(asked, kind, shown), f"{kind}.list", False, kind),
        f"{resource}.delete": Verb(lambda own, asked: own.delete_kept(asked, kind), f"{kind}.delete", False, kind),
    }


def _verbs_of_groups(resource: str, *, zonal: bool) -> dict[str, Verb]:
    acts = {
        "insert": (Compute.insert_group, "create"), "get": (Compute.get_group, "get"),
        "list": (Compute.list_groups, "list"), "delete": (Compute.delete_group, "delete"),
        "listManagedInstances": (Compute.managed, "get"), "resize": (Compute.resize_group, "update"),
    }  # fmt: skip
    return {
        f"{resource}.{name}": Verb(act, f"{_MANAGERS}.{permission}", zonal, _MANAGERS)
        for name, (act, permission) in acts.items()
    }


_INSERT_TEMPLATE = Verb(Compute.insert_template, "instanceTemplates.create", False, "instanceTemplates")
_INSERT_POLICY = Verb(Compute.insert_policy, "resourcePolicies.create", False, "resourcePolicies")
VERBS: Final[Mapping[str, Verb]] = {
    **OF_INSTANCES,
    **_verbs_of_kept("resourcePolicies", "resourcePolicies", _INSERT_POLICY, "compute#resourcePolicyList"),
    **_verbs_of_kept("instanceTemplates", "instanceTemplates", _INSERT_TEMPLATE, "compute#instanceTemplateList"),
    **_verbs_of_kept("regionInstanceTemplates", "instanceTemplates", _INSERT_TEMPLATE, "compute#instanceTemplateList"),
    **_verbs_of_groups(_MANAGERS, zonal=True),
    **_verbs_of_groups("regionInstanceGroupManagers", zonal=False),
    "instanceGroupManagers.aggregatedList": Verb(
        Compute.aggregated_groups, f"{_MANAGERS}.list", False, _MANAGERS
    ),
    "instanceGroups.testIamPermissions": Verb(Compute.test_group_permissions, ""),
    "resourcePolicies.aggregatedList": Verb(
        lambda own, asked: own.aggregated_kept(
            asked, "resourcePolicies", "compute#resourcePolicyAggregatedList", ("regions",)
        ),
        "resourcePolicies.list", False, "resourcePolicies",
    ),
    "instanceTemplates.aggregatedList": Verb(
        lambda own, asked: own.aggregated_kept(
            asked, "instanceTemplates", "compute#instanceTemplateAggregatedList", ("global", "regions")
        ),
        "instanceTemplates.list", False, "instanceTemplates",
    ),
    **{
        f"{scope}Operations.{verb}": OF_INSTANCES[f"zoneOperations.{verb}"]._replace(
            permission=f"{scope}Operations.{'list' if verb == 'list' else 'get'}", zonal=False
        )
        for scope in ("region", "global")
        for verb in ("get", "list", "wait")
    },
}  # fmt: skip
