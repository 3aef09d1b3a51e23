"""The create calls of TPU slices whose VMs are linked, as plain data: a workload policy, a template and groups.

Only the members of one managed instance group in bulk mode, under a workload policy that names their topology, are
linked as a slice. Several slices are as many groups under one policy and of one template. Pure, as `request` is, which
knows the VM itself and the names: the bodies are a `ResourcePolicy`, an `InstanceTemplate` and an
`InstanceGroupManager` of Compute Engine's discovery document. None of the three has labels, so what those would say is
in their descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.platforms.google.vms import shown, valid_for, would_submit
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names

POLICIES, TEMPLATES, GROUPS = "resourcePolicies", "instanceTemplates", "instanceGroupManagers"
"""The collections of a region and of a zone that the three are in."""

_OURS, _ZONE, _HOSTS, _MODEL = "kinetic", "zone", "hosts", "model"  # keys of a description, beside `names.UNTIL`


class Bodies(NamedTuple):
    """The bodies of all inserts of an attempt.

    Attributes:
        policy: Of the workload policy; None where each slice is one host, which nothing links.
        template: Of the template of all VMs.
        groups: Of the groups, in the order of the slices.
    """

    policy: dict[str, Any] | None
    template: dict[str, Any]
    groups: Sequence[dict[str, Any]]


class Described(NamedTuple):
    """The content of a description.

    Attributes:
        labels: What the labels of a VM would say of whose it is.
        zone: The zone of the placement: a policy and a template are of a region.
        hosts: Of all its slices.
        model: How they are to be had, as the placement has it.
        until: Until when a group that has no hosts yet waits for them, in seconds since the epoch; 0 for no limit.
    """

    labels: Mapping[str, str]
    zone: str = ""
    hosts: int = 0
    model: str = ""
    until: float = 0.0


def region_path(placement: Mapping[str, Any]) -> str:
    return f"projects/{placement['project']}/regions/{region_of(placement['zone'])}"


def policy_path(placement: Mapping[str, Any]) -> str:
    """The path of a placement's workload policy; "" if it has none."""
    has_one = request.is_grouped(placement) and request.per_slice(placement) > 1
    return f"{region_path(placement)}/{POLICIES}/{placement['name']}" if has_one else ""


def template_path(placement: Mapping[str, Any]) -> str:
    return f"{region_path(placement)}/{TEMPLATES}/{placement['name']}"


def group_path(placement: Mapping[str, Any], name: str) -> str:
    return f"{request.zone_of(placement)}/{GROUPS}/{name}"


def render(asked: Submission) -> Bodies:
    """Return the bodies of all inserts: of the policy, of the template, and then of the groups that name both."""
    placement, description = asked.intent.placement, description_of(asked)
    orders = {"resource": group_path(placement, placement["name"])}
    named = {"name": placement["name"], "description": description}
    policy = None
    if policy_path(placement):
        workload = {
            "type": "HIGH_THROUGHPUT",
            "acceleratorTopology": asked.plan.slice.topology,
            "acceleratorTopologyMode": "AUTO_CONNECT",  # the other mode gives chips that are not linked
        }
        policy = {**named, "workloadPolicy": workload}
    return Bodies(
        policy,
        {**named, "properties": request.vm(asked, orders)},
        [_group(placement, name, description) for name in request.groups_of(placement)],
    )


def _group(placement: Mapping[str, Any], name: str, description: str) -> dict[str, Any]:
    policy = policy_path(placement)
    return {
        "name": name,
        "description": description,
        "baseInstanceName": f"{name}-{names.MEMBERS}",
        "targetSize": request.per_slice(placement),
        "targetSizePolicy": {"mode": "BULK"},  # all hosts or none
        "instanceTemplate": template_path(placement),
        **({"resourcePolicies": {"workloadPolicy": policy}} if policy else {}),
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},  # by default a lost host is made again
        "updatePolicy": {"type": "OPPORTUNISTIC"},
    }


def description_of(asked: Submission) -> str:
    """Return the description of everything that is created besides VMs: whose it is, of which placement, and until when
    it may wait. Each of them tells all of it, as it may be the only one that is left."""
    placement = asked.intent.placement
    place = {_ZONE: placement["zone"], _HOSTS: placement["hosts"], _MODEL: request.model_of(asked.plan)}
    labels = ownership.labels_of(asked.plan, asked.intent, asked.job_id, asked.spec_digest)
    ours = {name: value for name, value in labels.items() if name.startswith(ownership.OURS)}
    wait = valid_for(asked.plan, asked.intent)
    until = {names.UNTIL: int(asked.intent.created + asked.intent.wait + wait)} if wait else {}
    return json.dumps({_OURS: ours, **place, **until})


def described(description: str) -> Described:
    """Read what `description_of` wrote; of a description by anybody else, nothing."""
    try:
        found = json.loads(description or "{}")
        labels = {str(name): str(value) for name, value in found[_OURS].items()}
        place = str(found[_ZONE]), int(found[_HOSTS]), str(found[_MODEL])
        return Described(labels, *place, float(found.get(names.UNTIL) or 0.0))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return Described({})


def dry_run(plan: Plan, placement: Mapping[str, Any]) -> str:
    """The output of `plan`: the first attempt's create calls, with a job that does not exist yet."""
    asked = would_submit(plan, placement)
    bodies, wait = render(asked), valid_for(plan, asked.intent)
    waits = "the group waits for its hosts until it is deleted"
    if len(bodies.groups) > 1:
        waits = f"the {len(bodies.groups)} groups wait for their hosts until they are deleted"
    ends = f"after {duration(wait)} without them" if wait else "limits.provision sets no time for that"
    calls = [f"the create calls in {placement['zone']}; {waits}: {ends}"]
    if bodies.policy is not None:
        calls += [f"POST {region_path(placement)}/{POLICIES}", shown(bodies.policy)]
    template = {**bodies.template, "properties": request.readable(bodies.template["properties"])}
    calls += [f"POST {region_path(placement)}/{TEMPLATES}", shown(template)]
    for body in bodies.groups:
        calls += [f"POST {request.zone_of(placement)}/{GROUPS}", shown(body)]
    return "\n".join(calls)
