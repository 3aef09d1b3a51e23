"""The clusters of GKE, found by their names through the container API, with the tokens of Google's credentials.

It knows how a cluster's API is reached, and not what is asked there.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from kinetic_orchestration.errors import BackendError, KineticError, UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import google
from kinetic_orchestration.platforms.shared.cluster_access import (
    EVERYTHING,
    Access,
    Binding,
    Cluster,
    ClusterGone,
    Policy,
    Pool,
)
from kinetic_orchestration.protocol import wire

SERVICE = "container"
GOING = "STOPPING"
_ABSENT = 404
_RENEWAL = (
    "Google's API does not have the new one yet: 'gcloud container clusters describe {name} --project={project} "
    "--location={location}' shows the one that it has, and whether a rotation is under way"
)
_refreshing = threading.Lock()


class GkeClusters:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._acting = credentials.as_now()
        self._locations: dict[str, str] = {}  # of the clusters that these settings lead to, by name

    def place(self, cluster: str, namespace: str) -> str:
        if not cluster:
            raise UsageError(
                "the gke backend needs a cluster: name it with cluster= or KINETIC_CLUSTER; 'gcloud container clusters "
                "list' shows those of the project (Keras Kinetic's default is kinetic-cluster)"
            )
        return f"{cluster}/{namespace or 'default'}"

    def emulated(self, cluster: str) -> bool:
        return bool(self._settings.emulator)

    def mark(self, cluster: str) -> str:
        if cluster not in self._locations:
            try:
                self.access(cluster)
            except KineticError:
                return ""
        return self._locations[cluster]

    def access(self, cluster: str, project: str = "", mark: str = "") -> Access:
        """Return the cluster's DNS endpoint if it admits traffic from outside, else its address with its own
        authority. A mark is a location."""
        project = project or self._settings.project
        found = self._find(cluster, project, mark)
        outside = found.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
        if outside.get("allowExternalTraffic") and outside.get("endpoint"):
            server, authority = str(outside["endpoint"]), ""
        else:
            server = str(found.get("endpoint", ""))
            authority = base64.b64decode(found.get("masterAuth", {}).get("clusterCaCertificate", "")).decode()
        location, name = str(found.get("location", "")), str(found.get("name", ""))
        if project == self._settings.project and not mark:
            self._locations[cluster] = location
        return Access(
            f"https://{server}",
            f"the cluster {name} of {project} in {location}",
            authority=authority,
            token=self._token,
            find=partial(self.access, cluster, project, location),  # its address and authority may have changed
            cluster=Cluster(project, location, name),
            mark=location,
            renewal=_RENEWAL.format(name=name, project=project, location=location),
            pools=_pools(found),
            identities=str(found.get("workloadIdentityConfig", {}).get("workloadPool", "")),
            policy=self._policy,
            provisions=_provisions(found),
        )

    def _find(self, cluster: str, project: str, location: str) -> Mapping[str, Any]:
        """Return the cluster NAME or LOCATION/NAME of a project, as Google has it. `location`: "" if not known."""
        of_name, _, name = cluster.rpartition("/")
        with self._acting(), google(self._settings) as api:
            answer = api.call("GET", SERVICE, f"v1/projects/{project}/locations/-/clusters")
        if not answer.ok:
            trouble = api_errors.classify(answer.status_of(), CallContext(project, ""))
            raise BackendError(
                f"the clusters of {project} could not be listed: {trouble.sentence}. It takes the role "
                f"roles/container.clusterViewer on the project",
                trouble.cause,
            )
        listed = [one for one in answer.body.get("clusters", ()) if isinstance(one, dict)]
        named = [one for one in listed if one.get("name") == name]
        if location := location or of_name:
            named = [one for one in named if one.get("location") == location]
        zones = self._settings.zones if not location else ()
        near = {*zones, *map(region_of, zones)}
        chosen = [one for one in named if one.get("location") in near] if zones else named
        if len(chosen) == 1 and chosen[0].get("status") != GOING:
            return chosen[0]
        # A location that did not answer may have it.
        is_gone = not named and not answer.body.get("missingZones")
        told = _not_one(cluster, project, listed, named, chosen)
        raise (ClusterGone if is_gone else BackendError)(told, wire.CONFIGURATION)

    def _policy(self, resource: str) -> Policy:
        """Return the policy of a service account, by its email, or of gs://BUCKET."""
        with self._acting(), google(self._settings) as api:
            if resource.startswith("gs://"):
                path = f"storage/v1/b/{quote(resource.removeprefix('gs://'), safe='')}/iam"
                answer = api.call("GET", "storage", path, params={"optionsRequestedPolicyVersion": "3"})
            else:
                path = f"v1/projects/-/serviceAccounts/{quote(resource, safe='@')}:getIamPolicy"
                answer = api.call("POST", "iam", path, params={"options.requestedPolicyVersion": "3"})
        if answer.ok:
            return Policy(tuple(map(_binding, answer.body.get("bindings", ()))))
        return (
            Policy(absent=True) if answer.status == _ABSENT else Policy(unread=answer.status_of().message.rstrip("."))
        )

    def _token(self, fresh: bool) -> str:
        """Return an access token of this process's identity, which lasts for an hour."""
        from google.auth import exceptions
        from google.auth.transport.requests import Request

        with self._acting():
            identity = credentials.credentials(self._settings)
        with _refreshing:
            if (fresh or not identity.valid) and identity is not credentials.anonymous():
                try:
                    identity.refresh(Request())
                except exceptions.RefreshError as error:
                    raise credentials.refused(error) from error
                except exceptions.TransportError as error:
                    raise BackendError(f"Google gave no new token: {error}", wire.INTERNAL) from error
        return str(identity.token or "")


def _binding(told: Mapping[str, Any]) -> Binding:
    return Binding(str(told.get("role", "")), tuple(map(str, told.get("members", ()))), bool(told.get("condition")))


def _provisions(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return for what a cluster makes pools of nodes: Autopilot for all, auto-provisioning for what has a limit."""
    if found.get("autopilot", {}).get("enabled"):
        return (EVERYTHING,)
    scaling = found.get("autoscaling", {})
    limits = scaling.get("resourceLimits", ()) if scaling.get("enableNodeAutoprovisioning") else ()
    return tuple(str(limit.get("resourceType", "")) for limit in limits)


_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


def _pools(found: Mapping[str, Any]) -> tuple[Pool, ...] | None:
    """Return the pools of a cluster; None if pods get a ComputeClass that they do not name, which makes others."""
    if found.get("autoscaling", {}).get("defaultComputeClassConfig", {}).get("enabled"):
        return None
    zones = tuple(map(str, found.get("locations", ())))
    there = (one for one in found.get("nodePools", ()) if one.get("status") != GOING)
    return tuple(_pool(one, zones) for one in there)


def _pool(one: Mapping[str, Any], zones: tuple[str, ...]) -> Pool:
    config, scaling = one.get("config", {}), one.get("autoscaling", {})
    zones = tuple(map(str, one.get("locations", ()))) or zones
    gpus = [(str(gpu.get("acceleratorType", "")), int(gpu.get("acceleratorCount", 0))) for gpu in
            config.get("accelerators", ())]  # fmt: skip
    taints = [
        (str(taint.get("key", "")), str(taint.get("value", "")), _EFFECTS.get(taint.get("effect"), ""))
        for taint in config.get("taints", ())
    ]

    def nodes(which: str) -> int:
        """Return the bound of all zones together, which the API has for all of them or for each."""
        total = int(scaling.get(f"total{which}NodeCount", 0))
        return total or int(scaling.get(f"{which[0].lower()}{which[1:]}NodeCount", 0)) * max(len(zones), 1)

    return Pool(
        name=str(one.get("name", "")),
        machine=str(config.get("machineType", "")),
        gpus=tuple(gpus),
        topology=str(one.get("placementPolicy", {}).get("tpuTopology", "")),
        policy=str(one.get("placementPolicy", {}).get("policyName", "")),
        zones=zones,
        labels=tuple((str(key), str(value)) for key, value in config.get("labels", {}).items()),
        taints=tuple(taints),
        spot=bool(config.get("spot")),
        flex_start=bool(config.get("flexStart")),
        queued_provisioning=bool(one.get("queuedProvisioning", {}).get("enabled")),
        reservations=tuple(map(str, config.get("reservationAffinity", {}).get("values", ()))),
        scales=bool(scaling.get("enabled")),
        least=nodes("Min"),
        most=nodes("Max"),
        lasts=float(str(config.get("maxRunDuration", "")).removesuffix("s") or 0.0),
        metadata_server=config.get("workloadMetadataConfig", {}).get("mode") == "GKE_METADATA",
    )


def _not_one(
    cluster: str,
    project: str,
    listed: list[dict[str, Any]],
    named: list[dict[str, Any]],
    chosen: list[dict[str, Any]],
) -> str:
    where = ", ".join(sorted(str(one.get("location", "")) for one in named))
    if len(chosen) > 1:
        return (
            f"{project} has several clusters named {cluster}, in {where}: name one as LOCATION/{cluster} with cluster= "
            "or KINETIC_CLUSTER, or its location with KINETIC_ZONE"
        )
    if chosen:
        return f"the cluster {cluster} of {project} is being deleted (STOPPING): name another one"
    if named:
        return (
            f"{project} has a cluster {cluster} in {where}, and none where KINETIC_ZONE or KINETIC_ZONES lead: name "
            f"it as LOCATION/{cluster} with cluster= or KINETIC_CLUSTER, or change the zone"
        )
    there = ", ".join(sorted(str(one.get("name", "")) for one in listed)) or "none"
    return f"{project} has no cluster {cluster}; it has {there}. Name one with cluster= or KINETIC_CLUSTER"
