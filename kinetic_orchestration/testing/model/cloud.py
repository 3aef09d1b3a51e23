"""The emulated Cloud TPU service as its callers know it: one method for each verb of the API, in proto-JSON.

`Cloud` is all of the emulated cloud but its servers: what is asked for here begins to exist, and scripts make it go
wrong. It does not know by which protocol callers come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from kinetic_orchestration.testing.api_rules import filters, refusals
from kinetic_orchestration.testing.api_rules.refusals import TPU, LostAnswer
from kinetic_orchestration.testing.model import deviations
from kinetic_orchestration.testing.model.clock import step
from kinetic_orchestration.testing.model.faults import CLIENT, Caller
from kinetic_orchestration.testing.model.lifecycle import Answered
from kinetic_orchestration.testing.model.script import Script
from kinetic_orchestration.testing.model.state import resources
from kinetic_orchestration.testing.model.state.machine import Host, project_number
from kinetic_orchestration.testing.model.state.resources import Json, Node, Operation, Queued, Wanted

_DELETABLE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED")
_UPDATABLE = ("description", "tags", "labels", "metadata")
_PAGE = 1000


class Cloud(Script):
    """One emulated cloud. `zones` are the ones there are, each with its chips (None: without end)."""

    def call(self, method: str, request: Json, caller: Caller = CLIENT) -> Json:
        """One request of the Cloud TPU API, both ways as proto-JSON. Raises Refusal, or LostAnswer once it is done."""
        verb = _VERBS.get(method)
        if verb is None:
            raise refusals.unimplemented(method)
        name = _target(request)
        zone = name.split("/")[3] if name.count("/") >= 3 else ""
        with self.meeting(method, zone, _named(method, request) or name, caller):
            return deviations.apply(
                self.deviations, method, request, caller, lambda: self._do(verb, request, name, zone, caller)
            )

    @contextmanager
    def meeting(self, method: str, zone: str, name: str, caller: Caller) -> Iterator[None]:
        """Wrap the work of a call: apply its fault before it, or after."""
        with self.changed:
            self._catch_up()
            self.requests.append((method, caller))
            fault = self.faults.take("call", method, zone, caller, name)
        if fault is not None and fault.delay:
            self._pause(fault.delay)
        if fault is not None and fault.refusal is not None:
            raise fault.refusal()
        yield
        if fault is not None and fault.lose:
            raise LostAnswer(method)

    @step
    def _do(self, verb: _Verb, request: Json, name: str, zone: str, caller: Caller) -> Json:
        parts = name.split("/")
        project = parts[1] if len(parts) > 1 else ""
        if self._projects and project not in self._projects:
            raise refusals.permission(verb.permissions[0], f"projects/{project}")
        self.demand_service(TPU, project)
        if zone and zone != "-" and zone not in self._zones:
            raise refusals.zone_unknown(zone)
        for permission in verb.permissions:
            self.demand(permission, name, caller)
        return verb.act(self, request, caller)

    # Queued resources

    def _create_queued_resource(self, request: Json, caller: Caller) -> Json:
        parent, ident = request["parent"], request.get("queuedResourceId", "")
        repeated = self._repeated(request)
        if repeated is not None:
            return repeated.to_json()
        body = request.get("queuedResource", {})
        wanted = resources.wanted_nodes(ident, parent, body)
        queued = Queued(f"{parent}/queuedResources/{ident}", body, self._now)
        names = [f"{parent}/nodes/{one.id}" for one in wanted]
        for name, taken in (
            (queued.name, queued.name in self._queued),
            *((name, name in self._nodes) for name in names),
        ):
            if taken:
                raise refusals.exists(name)
        self._demand_account(wanted, caller)
        self._demand_rate(queued.path.project, len(wanted))
        self._demand_quota(wanted, queued.path, queued.spot, "call")
        self._queued[queued.name] = queued
        self.ledger.created("queued resource", queued.name)
        self._record("queued resource", queued.name, "CREATING")
        operation = self._operation(queued.name, "create", "QueuedResource")
        if request.get("requestId"):
            self._answers[parent, request["requestId"]] = Answered(request, operation)
        self._later(self.timing.accept, lambda: self._accept(queued, wanted, operation))
        _, until = queued.window
        if until != float("inf"):
            self._later(max(0.0, until - self._now), lambda: self._expire(queued))
        return operation.to_json()

    def _repeated(self, request: Json) -> Operation | None:
        """The operation of an earlier request with the same id."""
        ident = resources.request_id(request)
        earlier = self._answers.get((request["parent"], ident))
        if earlier is not None and earlier.request != request:
            raise refusals.request_id_used(ident)
        return earlier.operation if earlier is not None else None

    def _get_queued_resource(self, request: Json, _: Caller) -> Json:
        return self._named(self._queued, request["name"]).to_json()

    def _list_queued_resources(self, request: Json, _: Caller) -> Json:
        return _listing("queuedResources", self._queued, request)

    def _delete_queued_resource(self, request: Json, _: Caller) -> Json:
        resources.request_id(request)
        queued = self._named(self._queued, request["name"])
        nodes = self._nodes_of(queued)
        if queued.state == "DELETING":
            return self._pending(queued.name, "delete").to_json()
        if nodes and not request.get("force") and queued.state not in _DELETABLE:
            raise refusals.has_nodes(queued.name)
        operation = self._operation(queued.name, "delete")
        self._become(queued, "DELETING")
        queued.stuck = self._sticks(queued.name)
        for node in nodes:
            self._start_deleting(node)
        self._later(self._delete_seconds(queued.name), lambda: self._try_to_forget(queued))
        return operation.to_json()

    def _reset_queued_resource(self, request: Json, _: Caller) -> Json:
        queued = self._named(self._queued, request["name"])
        if queued.state != "ACTIVE":
            raise refusals.not_while("reset", str(queued.state))
        for node in self._nodes_of(queued):
            self._repair(node, self.timing.repair, "RESTARTING")
        operation = self._operation(queued.name, "reset", "QueuedResource")
        self._later(self.timing.repair, lambda: self._finish(operation, queued.to_json()))
        return operation.to_json()

    # Nodes

    def _create_node(self, request: Json, caller: Caller) -> Json:
        parent, spec = request["parent"], request.get("node", {})
        wanted = Wanted(resources.node_id(request.get("nodeId", "")), spec, resources.checked(spec))
        name = f"{parent}/nodes/{wanted.id}"
        if name in self._nodes:
            raise refusals.exists(name)
        scheduling = spec.get("schedulingConfig", {})
        spot = bool(scheduling.get("spot") or scheduling.get("preemptible"))
        where = resources.path_of(name)
        self._demand_account([wanted], caller)
        self._demand_rate(where.project, 1)
        self._demand_quota([wanted], where, spot, "call")
        operation = self._operation(name, "create", "Node")
        free = self._free(where.zone)
        fault = self.faults.take("provision", "CreateNode", where.zone, caller, name)
        refusal = fault.refusal() if fault is not None and fault.refusal is not None else None
        if refusal is None and free is not None and wanted.hardware.chips > free:
            refusal = refusals.no_capacity(where.zone, self._event())
        if refusal is not None:
            failure = refusal
            self._later(self.timing.provision, lambda: self._finish(operation, error=failure))
            return operation.to_json()
        node = self._new_node(where, wanted, spot, bool(scheduling.get("reserved")), "")
        return self._then(operation, self.timing.provision, node, self._ready)

    def _get_node(self, request: Json, _: Caller) -> Json:
        return self._named(self._nodes, request["name"]).to_json()

    def _list_nodes(self, request: Json, _: Caller) -> Json:
        return _listing("nodes", self._nodes, request)

    def _delete_node(self, request: Json, _: Caller) -> Json:
        node = self._named(self._nodes, request["name"])
        if node.state == "DELETING":
            return self._pending(node.name, "delete").to_json()
        operation = self._operation(node.name, "delete")
        queued = self._queued.get(node.queued)
        self._start_deleting(node)
        if queued is not None and queued.state == "ACTIVE":
            self._suspend(queued, "USER")
        return operation.to_json()

    def _stop_node(self, request: Json, _: Caller) -> Json:
        def stop(node: Node) -> None:
            self._end_machines(node)
            self._show(node, "STOPPED")

        node, operation = self._begin(request, "stop", "READY", "STOPPING")
        return self._then(operation, self.timing.stop, node, stop)

    def _start_node(self, request: Json, _: Caller) -> Json:
        node, operation = self._begin(request, "start", "STOPPED", "STARTING")
        return self._then(operation, self.timing.provision, node, self._ready)

    def _begin(self, request: Json, verb: str, before: str, shown: str) -> tuple[Node, Operation]:
        """Start an operation on a node that has to be in the state `before`; it shows another until the end."""
        node = self._named(self._nodes, request["name"])
        if node.state != before:
            raise refusals.not_while(verb, str(node.state))
        operation = self._operation(node.name, verb, "Node")
        self._show(node, shown)
        return node, operation

    def _then(self, operation: Operation, seconds: float, node: Node, act: Callable[[Node], None]) -> Json:
        """Finish an operation on a node after some time, by `act` if the node's state is still the present one."""
        state = node.state

        def end() -> None:
            if self._nodes.get(node.name) is node and node.state == state:
                act(node)
            self._finish(operation, node.to_json())

        self._later(seconds, end)
        return operation.to_json()

    def _update_node(self, request: Json, _: Caller) -> Json:
        change = request.get("node", {})
        node = self._named(self._nodes, change.get("name", ""))
        if node.state != "READY":
            raise refusals.not_while("update", str(node.state))
        for path in request.get("updateMask", "").split(","):
            if path in ("networkConfig.enableExternalIps", "network_config.enable_external_ips"):
                wish = change.get("networkConfig", {}).get("enableExternalIps", False)
                node.spec = node.spec | {
                    "networkConfig": node.spec.get("networkConfig", {}) | {"enableExternalIps": wish}
                }
            elif path in _UPDATABLE:
                node.spec = {key: value for key, value in node.spec.items() if key != path}
                node.spec |= {path: change[path]} if path in change else {}
            else:
                raise refusals.invalid(f"Field '{path}' cannot be updated")
        for machine in node.booted() if "metadata" in request.get("updateMask", "").split(",") else ():
            machine.reconfigure(node.spec.get("metadata", {}))
        operation = self._operation(node.name, "update", "Node")
        self._finish(operation, node.to_json())
        return operation.to_json()

    def _get_guest_attributes(self, request: Json, _: Caller) -> Json:
        node = self._named(self._nodes, request["name"])
        path = request.get("queryPath", "").strip("/")
        workers = [resources.worker(worker) for worker in request.get("workerIds", [])] or range(len(node.machines))
        found = []
        for worker in workers:
            machine = node.machines[worker] if worker < len(node.machines) else None
            spaces = {} if machine is None else {**machine.guest_attributes, **machine.published()}
            items = [
                {"namespace": namespace, "key": key, "value": value}
                for namespace, pairs in sorted(spaces.items())
                for key, value in sorted(pairs.items())
                if not path or f"{namespace}/{key}/".startswith(f"{path}/")
            ]
            found.append({"queryPath": request.get("queryPath", ""), "queryValue": {"items": items}})
        return {"guestAttributes": found}

    # Accelerator types, runtime versions, locations and operations

    def _list_accelerator_types(self, request: Json, _: Caller) -> Json:
        return _page("acceleratorTypes", resources.accelerator_types(request["parent"]), request)

    def _get_accelerator_type(self, request: Json, _: Caller) -> Json:
        return _one_of(resources.accelerator_types(request["name"].rpartition("/acceleratorTypes/")[0]), request)

    def _list_runtime_versions(self, request: Json, _: Caller) -> Json:
        return _page("runtimeVersions", resources.runtime_versions(request["parent"]), request)

    def _get_runtime_version(self, request: Json, _: Caller) -> Json:
        return _one_of(resources.runtime_versions(request["name"].rpartition("/runtimeVersions/")[0]), request)

    def _generate_service_identity(self, request: Json, _: Caller) -> Json:
        """Make Cloud TPU's own account, which Google grants its role by itself."""
        project = self.projects.named(request["parent"].split("/")[1])
        email = f"service-{project_number(project.id)}@gcp-sa-tpu.iam.gserviceaccount.com"
        if not project.policy.has("roles/tpu.serviceAgent", f"serviceAccount:{email}"):
            project.policy = project.policy.with_grant("roles/tpu.serviceAgent", (f"serviceAccount:{email}",))
        return {"identity": {"email": email}}

    def _list_locations(self, request: Json, _: Caller) -> Json:
        return _page("locations", [_location(request["name"], zone) for zone in sorted(self._zones)], request)

    def _get_location(self, request: Json, _: Caller) -> Json:
        project, _slash, zone = request["name"].rpartition("/locations/")
        return _location(project, zone)

    def _get_operation(self, request: Json, _: Caller) -> Json:
        return self._named(self._operations, request["name"]).to_json()

    def _list_operations(self, request: Json, _: Caller) -> Json:
        if request.get("returnPartialSuccess") and not request["name"].endswith("/locations/-"):
            raise refusals.unimplemented("returnPartialSuccess of one location", "it is not documented for Cloud TPU")
        return _listing("operations", self._operations, request | {"parent": request["name"]})

    def _delete_operation(self, request: Json, _: Caller) -> Json:
        del self._operations[self._named(self._operations, request["name"]).name]
        return {}

    # Inspection by tests

    @step
    def queued_resources(self) -> list[Json]:
        return [queued.to_json() for queued in self._queued.values()]

    @step
    def nodes(self) -> list[Json]:
        return [node.to_json() for node in self._nodes.values()]

    @step
    def queued_resource(self, name: str) -> Json | None:
        """A queued resource by its full name or its id, or None."""
        found = self._find(self._queued, name)
        return found.to_json() if found is not None else None

    @step
    def node(self, name: str) -> Json | None:
        found = self._find(self._nodes, name)
        return found.to_json() if found is not None else None

    @step
    def hosts(self, node: str) -> list[Host | None]:
        """The machines of a node; None in place of one that never booted."""
        return list(self._chosen("node", self._nodes, node).machines)

    def count(self, method: str, caller: str = "*") -> int:
        """The number of calls of a method."""
        return sum(called == method and caller in ("*", who.kind) for called, who in list(self.requests))


class _Verb(NamedTuple):
    act: Callable[[Cloud, Json, Caller], Json]
    permissions: tuple[str, ...]


def _verb(act: Callable[[Cloud, Json, Caller], Json], *permissions: str) -> _Verb:
    return _Verb(act, tuple(f"tpu.{permission}" for permission in permissions))


# The permissions of queued resources are published nowhere that we found: they need those of their nodes, too.
_VERBS: dict[str, _Verb] = {
    "CreateQueuedResource": _verb(Cloud._create_queued_resource, "nodes.create", "queuedResources.create"),
    "GetQueuedResource": _verb(Cloud._get_queued_resource, "nodes.get", "queuedResources.get"),
    "ListQueuedResources": _verb(Cloud._list_queued_resources, "nodes.list", "queuedResources.list"),
    "DeleteQueuedResource": _verb(Cloud._delete_queued_resource, "nodes.delete", "queuedResources.delete"),
    "ResetQueuedResource": _verb(Cloud._reset_queued_resource, "nodes.reset", "queuedResources.reset"),
    "CreateNode": _verb(Cloud._create_node, "nodes.create"),
    "GetNode": _verb(Cloud._get_node, "nodes.get"),
    "ListNodes": _verb(Cloud._list_nodes, "nodes.list"),
    "DeleteNode": _verb(Cloud._delete_node, "nodes.delete"),
    "StopNode": _verb(Cloud._stop_node, "nodes.stop"),
    "StartNode": _verb(Cloud._start_node, "nodes.start"),
    "UpdateNode": _verb(Cloud._update_node, "nodes.update"),
    "GetGuestAttributes": _verb(Cloud._get_guest_attributes, "nodes.get"),
    "ListAcceleratorTypes": _verb(Cloud._list_accelerator_types, "acceleratortypes.list"),
    "GetAcceleratorType": _verb(Cloud._get_accelerator_type, "acceleratortypes.get"),
    "ListRuntimeVersions": _verb(Cloud._list_runtime_versions, "runtimeversions.list"),
    "GetRuntimeVersion": _verb(Cloud._get_runtime_version, "runtimeversions.get"),
    "GenerateServiceIdentity": _verb(Cloud._generate_service_identity, "locations.get"),
    "ListLocations": _verb(Cloud._list_locations, "locations.list"),
    "GetLocation": _verb(Cloud._get_location, "locations.get"),
    "GetOperation": _verb(Cloud._get_operation, "operations.get"),
    "ListOperations": _verb(Cloud._list_operations, "operations.list"),
    "DeleteOperation": _verb(Cloud._delete_operation, "operations.delete"),
}


def _target(request: Json) -> str:
    return str(request.get("name") or request.get("parent") or request.get("node", {}).get("name", ""))


def _named(method: str, request: Json) -> str:
    """The id that a create call asks for."""
    return str(request.get("queuedResourceId" if method == "CreateQueuedResource" else "nodeId", ""))


def _location(project: str, zone: str) -> Json:
    return {"name": f"{project}/locations/{zone}", "locationId": zone}


def _one_of(items: list[Json], request: Json) -> Json:
    for item in items:
        if item["name"] == request["name"]:
            return item
    raise refusals.missing(request["name"])


def _listing(
    field: str, among: Mapping[str, Queued] | Mapping[str, Node] | Mapping[str, Operation], request: Json
) -> Json:
    """`locations/-` is every location; in order of names, so that a page's end is a place to go on from."""
    parent = request["parent"]
    prefix = f"{parent.removesuffix('-')}" if parent.endswith("/-") else f"{parent}/"
    names = sorted(name for name in among if name.startswith(prefix))
    return _page(field, [among[name].to_json() for name in names], request)


def _page(field: str, items: list[Json], request: Json) -> Json:
    size = request.get("pageSize", 0)
    if request.get("orderBy", "name") != "name":
        raise refusals.unimplemented(f"the order {request['orderBy']!r}", "listings are in order of names")
    items = filters.chosen(items, request.get("filter", ""))
    if size < 0:
        raise refusals.invalid("page_size must not be negative")
    after = resources.after(request.get("pageToken", ""))
    items.sort(key=lambda item: str(item["name"]))
    rest = [item for item in items if item["name"] > after] if after else items
    page = rest[: min(size or _PAGE, _PAGE)]
    found: Json = {field: page} if page else {}
    if len(page) < len(rest):
        found["nextPageToken"] = resources.page_token(page[-1]["name"])
    return found
