"""Google's own Python client makes a slice of two TPU hosts at the emulated Compute Engine, and deletes it in order.

Every exchange is held against Google's discovery document of Compute Engine by the recorder of all tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kinetic_orchestration.testing import Emulator
from tests.support.instances import TPU_ZONE as ZONE
from tests.support.instances import group_body, policy_body, template_body
from tests.support.waits import wait_until

REGION = ZONE.rpartition("-")[0]
SCRIPT = """#!/bin/sh
python3 -c '
import os, urllib.request
for key in ("accelerator-type", "agent-worker-number", "worker-network-endpoints", "tpu-env"):
    url = "http://%s/computeMetadata/v1/instance/attributes/%s" % (os.environ["GCE_METADATA_HOST"], key)
    print(urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})).read().decode())
'
echo end
"""


class Google:
    """The clients of one emulator, as a program of Google's users has them."""

    def __init__(self, cloud: Emulator) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import compute_v1

        options = {"credentials": AnonymousCredentials(), "client_options": ClientOptions(api_endpoint=cloud.rest.url)}
        self.v1: Any = compute_v1
        self.policies = compute_v1.ResourcePoliciesClient(**options)
        self.templates = compute_v1.RegionInstanceTemplatesClient(**options)
        self.everywhere = compute_v1.InstanceTemplatesClient(**options)
        self.groups = compute_v1.InstanceGroupManagersClient(**options)
        self.of_regions = compute_v1.RegionInstanceGroupManagersClient(**options)
        self.instances = compute_v1.InstancesClient(**options)
        self.operations = {
            "zone": compute_v1.ZoneOperationsClient(**options),
            "region": compute_v1.RegionOperationsClient(**options),
            "global": compute_v1.GlobalOperationsClient(**options),
        }
        self.in_zone = {"project": "p", "zone": ZONE}
        self.in_region = {"project": "p", "region": REGION}

    def sent(self, kind: str, body: dict[str, object]) -> Any:
        return getattr(self.v1, kind).from_json(json.dumps(body))

    def done(self, asked: Any) -> None:
        """Wait for an operation by the client of where it is."""
        place = next((one for one in ("zone", "region") if getattr(asked, one)), "global")
        where = {"zone": self.in_zone, "region": self.in_region, "global": {"project": "p"}}[place]
        found = self.operations[place].wait(**where, operation=asked.name)
        assert (found.status, found.error.errors[:]) == (self.v1.Operation.Status.DONE, [])

    def parts(self) -> None:
        policy = self.sent("ResourcePolicy", policy_body())
        self.done(self.policies.insert_unary(**self.in_region, resource_policy_resource=policy))
        template = self.sent("InstanceTemplate", template_body(script=SCRIPT))
        self.done(self.templates.insert_unary(**self.in_region, instance_template_resource=template))

    def managed(self) -> list[Any]:
        return list(self.groups.list_managed_instances(**self.in_zone, instance_group_manager="ko-w"))

    def topology(self) -> str:
        found = self.groups.get(**self.in_zone, instance_group_manager="ko-w")
        return str(found.status.applied_accelerator_topologies[0].state)

    def insist(self, delete: Callable[[], Any]) -> None:
        """Delete what may be in use for a while."""
        from google.api_core.exceptions import BadRequest

        end = time.monotonic() + 20
        while True:
            try:
                self.done(delete())
                return
            except BadRequest as error:
                if "is already being used by" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def clear(self) -> None:
        self.insist(lambda: self.templates.delete_unary(**self.in_region, instance_template="ko-t"))
        self.insist(lambda: self.policies.delete_unary(**self.in_region, resource_policy="ko-p"))


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(provision_seconds=0.02) as cloud:
        cloud.compute.retry_seconds = 0.05
        yield cloud


@pytest.fixture(scope="module")
def clients(cloud: Emulator) -> Google:
    return Google(cloud)


@pytest.fixture
def google(cloud: Emulator, clients: Google) -> Iterator[Google]:
    yield clients
    cloud.clear_faults()
    cloud.sweep()
    cloud.wait_until_empty()


def test_google_s_client_makes_a_slice_of_policy_template_and_group_and_deletes_it_in_order(
    google: Google, cloud: Emulator
) -> None:
    google.parts()
    group = google.sent("InstanceGroupManager", group_body())
    google.done(google.groups.insert_unary(**google.in_zone, instance_group_manager_resource=group))
    assert [one.name for one in google.managed()] == ["ko-w-001", "ko-w-002"]
    wait_until(lambda: google.topology() == "ACTIVE")
    assert [one.instance_status for one in google.managed()] == ["RUNNING"] * 2

    def log(name: str) -> str:
        return str(google.instances.get_serial_port_output(**google.in_zone, instance=name).contents)

    wait_until(lambda: all("startup-script: end" in log(one.name) for one in google.managed()))
    told = log("ko-w-002")
    for line in ("v7x-16", "1", "127.0.0.1,127.0.0.1", "TOPOLOGY: '2x2x2'", "HOST_BOUNDS: '1,1,2'", "WORKER_ID: '1'"):
        assert f"startup-script: {line}\n" in told
    scopes = dict(google.groups.aggregated_list(request={"project": "p"}))
    assert [one.name for one in scopes[f"zones/{ZONE}"].instance_group_managers] == ["ko-w"]
    policies = dict(google.policies.aggregated_list(request={"project": "p", "filter": "name:ko-"}))
    assert [one.name for one in policies[f"regions/{REGION}"].resource_policies] == ["ko-p"]
    templates = dict(google.everywhere.aggregated_list(request={"project": "p", "filter": "name:ko-"}))
    assert [one.name for one in templates[f"regions/{REGION}"].instance_templates] == ["ko-t"]
    google.done(google.groups.delete_unary(**google.in_zone, instance_group_manager="ko-w"))
    assert not list(google.instances.list(**google.in_zone))
    google.clear()
    assert not cloud.leaks() or cloud.settled()


def test_google_s_client_sees_why_a_group_waits(google: Google, cloud: Emulator) -> None:
    cloud.compute.stockout(ZONE)
    google.parts()
    group = google.sent("InstanceGroupManager", group_body())
    google.done(google.groups.insert_unary(**google.in_zone, instance_group_manager_resource=group))
    wait_until(lambda: all(one.last_attempt.errors.errors for one in google.managed()))
    [error] = google.managed()[0].last_attempt.errors.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    shown = google.groups.get(**google.in_zone, instance_group_manager="ko-w").status
    assert shown.bulk_instance_operation.in_progress and not shown.is_stable
    google.done(google.groups.delete_unary(**google.in_zone, instance_group_manager="ko-w"))


@pytest.mark.slow
@pytest.mark.turn
def test_google_s_client_makes_a_group_of_a_region_with_a_global_template(google: Google) -> None:
    google.parts()
    template = google.sent("InstanceTemplate", template_body())
    google.done(google.everywhere.insert_unary(project="p", instance_template_resource=template))
    sent = group_body(
        instanceTemplate="projects/p/global/instanceTemplates/ko-t",
        distributionPolicy={"zones": [{"zone": f"zones/{ZONE}"}], "targetShape": "ANY_SINGLE_ZONE"},
        updatePolicy={"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
    )
    group = google.sent("InstanceGroupManager", sent)
    google.done(google.of_regions.insert_unary(**google.in_region, instance_group_manager_resource=group))
    listed = google.of_regions.list_managed_instances(**google.in_region, instance_group_manager="ko-w")
    assert [one.name for one in listed] == ["ko-w-001", "ko-w-002"]
    google.done(google.of_regions.delete_unary(**google.in_region, instance_group_manager="ko-w"))
    google.insist(lambda: google.everywhere.delete_unary(project="p", instance_template="ko-t"))
    google.clear()
