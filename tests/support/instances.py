"""Bodies of `instances.insert`, for tests of the emulated Compute Engine."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
ZONE = "us-central1-a"
PATH = f"projects/p/zones/{ZONE}/instances"
NVIDIA = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def body(
    name: str = "ko-a", machine: str = "g2-standard-4", *, zone: str = ZONE, image: str = f"{IMAGES}/{NVIDIA}",
    disk: str = "pd-balanced", gib: int = 50, script: str = "", scopes: list[str] | None = None, **more: Any,
) -> Json:  # fmt: skip
    """The request for one VM; `scheduling` is added to that of every test, and other fields take the place of theirs."""
    scheduling = {"onHostMaintenance": "TERMINATE", "automaticRestart": False, **more.pop("scheduling", {})}
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine}",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": image,
                    "diskSizeGb": str(gib),
                    "diskType": f"zones/{zone}/diskTypes/{disk}",
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default", "nicType": "GVNIC"}],
        "scheduling": scheduling,
        "serviceAccounts": [{"email": "default", "scopes": [SCOPE] if scopes is None else scopes}],
        "labels": {"ko-managed": "true"},
        "metadata": {"items": [{"key": "startup-script", "value": script}] if script else []},
        **more,
    }


TPU_ZONE = "us-central1-c"
_REGION = "projects/p/regions/us-central1"


def policy_body(name: str = "ko-p", topology: str = "2x2x2") -> Json:
    """The request for the workload policy of a slice."""
    mode = "AUTO_CONNECT"
    workload = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology, "acceleratorTopologyMode": mode}
    return {"name": name, "workloadPolicy": workload}


def template_body(
    name: str = "ko-t", machine: str = "tpu7x-standard-4t", *, script: str = "", **scheduling: Any
) -> Json:
    """The request for the template of a slice's hosts; `scheduling` is added to that of every test."""
    image = f"{IMAGES}/ubuntu-accel-2404-amd64-tpu-tpu7x"
    sent = body(machine=machine, image=image, disk="hyperdisk-balanced", script=script, scheduling=scheduling)
    del sent["name"]
    sent["machineType"] = machine
    sent["disks"][0]["initializeParams"]["diskType"] = "hyperdisk-balanced"
    sent["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    return {"name": name, "properties": sent}


def group_body(name: str = "ko-w", *, size: int = 2, repairs: bool = False, **more: Any) -> Json:
    """The request for a group in bulk mode, of that policy and that template."""
    return {
        "name": name,
        "baseInstanceName": f"{name}-###[1]",
        "instanceTemplate": f"{_REGION}/instanceTemplates/ko-t",
        "targetSize": size,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {"workloadPolicy": f"{_REGION}/resourcePolicies/ko-p"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR" if repairs else "DO_NOTHING"},
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        **more,
    }
