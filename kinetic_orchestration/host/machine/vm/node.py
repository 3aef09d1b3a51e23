"""A host of a Cloud TPU slice: a worker of a TPU node, whose addresses and rights the Cloud TPU API knows."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unauthorized
from kinetic_orchestration.host.machine.vm.vm import (
    Vm,
    account_name,
    addresses_of_slices,
    addresses_when_all_there,
    missing_rights,
)
from kinetic_orchestration.protocol import names

PERMISSIONS = ("tpu.nodes.delete",)  # of queued resources, too: roles/tpu.admin has no others


class TpuNode(Vm):
    """A worker of a TPU node."""

    def _addresses(self, slices: int) -> list[str]:
        """Return those of this slice from its metadata, of others from the Cloud TPU API."""
        nodes = names.numbered(self._at.resource.replace("/queuedResources/", "/nodes/"), slices)
        return addresses_of_slices(
            self._at, slices, lambda numbers, each: [_addresses_of(nodes[number], each) for number in numbers]
        )

    def _check_rights(self, project: str) -> str:
        url = f"{bootstrap.endpoint('cloudresourcemanager')}/v1/projects/{project}:testIamPermissions"
        missing, unknown = missing_rights(url, PERMISSIONS)
        if missing:
            account = account_name()
            raise Unauthorized(
                f"the service account {account} lacks {' and '.join(missing)} in {project}, so that nobody on this "
                "slice could delete it and it might cost money for ever. Nothing was run. Grant it the role: gcloud "
                f"projects add-iam-policy-binding {project} --member=serviceAccount:{account} --role=roles/tpu.admin"
            )
        return unknown


def _addresses_of(node: str, workers: int) -> list[str]:
    """Return the addresses of a node's workers. Waits while the node has not all of them yet."""

    def read(found: Any) -> list[str]:
        return [str(endpoint.get("ipAddress", "")) for endpoint in found.get("networkEndpoints", ())]

    def denied(reason: str) -> str:
        return (
            f"where the hosts of {node} are could not be read: {reason}. The service account {account_name()} needs "
            "the role roles/tpu.viewer, and roles/tpu.admin to delete its slice"
        )

    return addresses_when_all_there(f"{bootstrap.endpoint('tpu')}/v2/{node}", workers, read, denied)
