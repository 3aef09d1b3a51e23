"""The kinds of objects that the emulated API server knows, as its discovery tells them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kinetic_orchestration.testing.kubernetes.api.answers import Object

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Kind(NamedTuple):
    """One kind of objects."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    is_custom: bool = False  # defined by a CRD, so that its lists say what each item is

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Its plural, with its group: jobsets.jobset.x-k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def full_name(self) -> str:
        """Its name, with its group: JobSet.jobset.x-k8s.io."""
        return f"{self.name}.{self.group}" if self.group else self.name


_KUEUE, _RBAC = "kueue.x-k8s.io", "rbac.authorization.k8s.io"

NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False, subresources=("status",))
NODES = Kind("", "v1", "nodes", "Node", namespaced=False, subresources=("status",))
PODS = Kind("", "v1", "pods", "Pod", subresources=("status", "log", "eviction"))
EVENTS = Kind("", "v1", "events", "Event")
SECRETS = Kind("", "v1", "secrets", "Secret")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", subresources=("token",))
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", subresources=("status",))
# None of these is carried out.
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Kind("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Kind("apps", "v1", "daemonsets", "DaemonSet")
NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
INGRESSES = Kind("networking.k8s.io", "v1", "ingresses", "Ingress")
CRON_JOBS = Kind("batch", "v1", "cronjobs", "CronJob")
SERVICES = Kind("", "v1", "services", "Service")
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Kind("batch", "v1", "jobs", "Job", subresources=("status",))
JOBSETS = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", subresources=("status",), is_custom=True)
LOCAL_QUEUES = Kind(_KUEUE, "v1beta2", "localqueues", "LocalQueue", subresources=("status",), is_custom=True)
CLUSTER_QUEUES = Kind(
    _KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False, subresources=("status",), is_custom=True
)
FLAVORS = Kind(_KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False, is_custom=True)
PRIORITIES = Kind(
    _KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False, is_custom=True
)
WORKLOADS = Kind(_KUEUE, "v1beta2", "workloads", "Workload", subresources=("status",), is_custom=True)
ADMISSION_CHECKS = Kind(
    _KUEUE, "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False, subresources=("status",), is_custom=True
)
PROVISIONING_CONFIGS = Kind(
    _KUEUE, "v1beta2", "provisioningrequestconfigs", "ProvisioningRequestConfig", namespaced=False, is_custom=True
)
PROVISIONING_REQUESTS = Kind(
    "autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest", subresources=("status",),
    is_custom=True,
)  # fmt: skip
POD_TEMPLATES = Kind("", "v1", "podtemplates", "PodTemplate")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
ROLES = Kind(_RBAC, "v1", "roles", "Role")
BINDINGS = Kind(_RBAC, "v1", "rolebindings", "RoleBinding")

ALL = (
    NAMESPACES, NODES, PODS, EVENTS, SECRETS, CONFIG_MAPS, ACCOUNTS, QUOTAS, DEPLOYMENTS, JOBS, JOBSETS, LOCAL_QUEUES,
    CLUSTER_QUEUES, FLAVORS, PRIORITIES, WORKLOADS, ADMISSION_CHECKS, PROVISIONING_CONFIGS, PROVISIONING_REQUESTS,
    POD_TEMPLATES, LEASES, ROLES, BINDINGS, STATEFUL_SETS, CRON_JOBS, SERVICES, CLAIMS, DAEMON_SETS,
    NETWORK_POLICIES, INGRESSES,
)  # fmt: skip
_SHORT = {
    "namespaces": ("ns",), "nodes": ("no",), "pods": ("po",), "events": ("ev",), "configmaps": ("cm",),
    "serviceaccounts": ("sa",), "resourcequotas": ("quota",), "localqueues": ("queue", "queues", "lq"),
    "clusterqueues": ("cq",), "resourceflavors": ("flavor", "flavors", "rf"),
    "workloads": ("kwl", "kueueworkload", "kueueworkloads"),
    "deployments": ("deploy",), "statefulsets": ("sts",), "cronjobs": ("cj",), "daemonsets": ("ds",),
    "networkpolicies": ("netpol",),
    "ingresses": ("ing",), "services": ("svc",),
    "persistentvolumeclaims": ("pvc",), "admissionchecks": ("ac",), "provisioningrequestconfigs": ("prc",),
    "workloadpriorityclasses": ("wpc",),
    "provisioningrequests": ("provreq", "provreqs"),
}  # fmt: skip
VISIBILITY = "visibility.kueue.x-k8s.io"
# What is only asked, and never stored: group and version → kind by plural.
REVIEWS = {
    "authorization.k8s.io/v1": {
        "selfsubjectaccessreviews": "SelfSubjectAccessReview", "selfsubjectrulesreviews": "SelfSubjectRulesReview",
    },
    "authentication.k8s.io/v1": {"selfsubjectreviews": "SelfSubjectReview"},
}  # fmt: skip


def find(api_version: str, plural: str) -> Kind | None:
    return next((kind for kind in ALL if (kind.api_version, kind.plural) == (api_version, plural)), None)


def resources(api_version: str) -> Object | None:
    """Return what discovery tells of a group's version; None if nothing of it is served."""
    listed = [*_stored(api_version), *_asked(api_version)]
    if not listed:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}


def _stored(api_version: str) -> Iterator[Object]:
    for kind in ALL:
        if kind.api_version != api_version:
            continue
        singular = kind.name.lower()
        plain = {"namespaced": kind.namespaced, "kind": kind.name}
        short = {"shortNames": list(_SHORT[kind.plural])} if kind.plural in _SHORT else {}
        yield {"name": kind.plural, "singularName": singular, **plain, "verbs": list(VERBS), **short}
        for below in kind.subresources:
            verbs = ["create"] if below in ("eviction", "token") else ["get"] if below == "log" else ["get", "patch"]
            yield {"name": f"{kind.plural}/{below}", "singularName": "", **plain, "verbs": verbs}


def _asked(api_version: str) -> Iterator[Object]:
    for plural, name in REVIEWS.get(api_version, {}).items():
        yield {"name": plural, "singularName": name.lower(), "namespaced": False, "kind": name, "verbs": ["create"]}
    if api_version == f"{VISIBILITY}/v1beta2":
        for plural, namespaced in (("clusterqueues", False), ("localqueues", True)):
            plain = {"singularName": "", "namespaced": namespaced, "kind": "PendingWorkloadsSummary"}
            yield {"name": f"{plural}/pendingworkloads", **plain, "verbs": ["get"]}


def groups() -> Object:
    """Return what discovery tells of all groups but the core."""
    versions = sorted({kind.api_version for kind in ALL if kind.group} | REVIEWS.keys() | {f"{VISIBILITY}/v1beta2"})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(found) for found in versions]}


def group(name: str) -> Object | None:
    found = next((one for one in groups()["groups"] if one["name"] == name), None)
    return None if found is None else {"kind": "APIGroup", "apiVersion": "v1", **found}


def documents() -> Object:
    """Return where the OpenAPI document of each group's version is."""
    versions = sorted({kind.api_version for kind in ALL})
    paths = {_root(found).strip("/"): {"serverRelativeURL": f"/openapi/v3{_root(found)}"} for found in versions}
    return {"paths": paths}


def document(api_version: str) -> Object | None:
    """Return as much of the OpenAPI document of a group's version as kubectl reads: that fields are checked here. None
    if nothing of it is served."""
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: Object = {}
    for kind in ALL:
        if kind.api_version != api_version:
            continue
        about = {"group": kind.group, "version": kind.version, "kind": kind.name}
        place = "/namespaces/{namespace}" if kind.namespaced else ""
        patch = {"parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": about}
        paths[f"{_root(api_version)}{place}/{kind.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": "v1.36.3"}
    return {"openapi": "3.0.0", "info": info, "paths": paths} if paths else None


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _group(api_version: str) -> Object:
    name, _, version = api_version.partition("/")
    told = {"groupVersion": api_version, "version": version}
    return {"name": name, "versions": [told], "preferredVersion": told}
