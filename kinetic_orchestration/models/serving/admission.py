"""Checks that a cluster takes a set: its kinds, what it refers to, and each object as a dry run. Changes nothing.

A refusal becomes a sentence that names the object, the field and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kinetic_orchestration.errors import ManifestRefused
from kinetic_orchestration.models.serving.declaration import Serving
from kinetic_orchestration.models.serving.manifests import KSERVE, PLURALS, POOLS, ROUTES, SERVING, Key, key_of
from kinetic_orchestration.models.serving.revisions import MANAGER
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api

Object = dict[str, Any]

FIRST_WITH_SLEEP: Final = (1, 30)
UNKNOWN_VERSION: Final = answers.number_of("")
_MISSING: Final = {
    POOLS: "install the Gateway API Inference Extension (its InferencePool v1, and llm-d's router for it)",
    ROUTES: "install the Gateway API and a gateway that knows InferencePools",
    KSERVE: "install KServe 0.19 or later with its LLMInferenceService, by version v1alpha2",
}
_PLAIN: Final = "or use kind='deployment', which every cluster has"


def has_sleep(api: Api) -> bool:
    """Return True unless the cluster is older than `sleep` as an action before a container's end, which is on from
    Kubernetes 1.30 (https://github.com/kubernetes/enhancements/issues/3960). One that does not tell its version is
    taken for a newer one: an older one refuses the action before anything is changed.
    """
    try:
        told = str(api.get("/version").get("gitVersion", ""))
    except ApiError as error:
        if error.kind not in (answers.FORBIDDEN, answers.ABSENT):
            raise
        told = ""
    found = answers.number_of(told)
    return found == UNKNOWN_VERSION or found >= FIRST_WITH_SLEEP


def check(api: Api, given: Serving, objects: Sequence[Object], *, force: bool) -> None:
    """Raise ManifestRefused unless the cluster takes every object of a set. Nothing is stored."""
    for needed in dict.fromkeys((one["apiVersion"], one["kind"]) for one in objects):
        if needed[0] in _MISSING:
            _check_served(api, *needed)
    if given.kind == "inference_pool":
        _check_router(api, given)
    for one in objects:
        key = key_of(one)
        path = key.path(given.namespace)
        try:
            check_owner(given, key, _found(api, path))
            api.apply(path, one, manager=MANAGER, force=force, dry_run=True)
        except ApiError as error:
            raise refused(given, key, error) from error


def check_owner(given: Serving, key: Key, found: Mapping[str, Any] | None) -> None:
    """Raise ManifestRefused if an object of this name is not this server's: a rollback would remove it."""
    if found is not None and (found["metadata"].get("labels") or {}).get(SERVING) != given.name:
        raise ManifestRefused(
            f"there is a {key} in {given.namespace} that this package did not make, so it is left as it is: choose "
            f"another Serving(name=…), or 'kubectl delete {key.kind.lower()} {key.name} -n {given.namespace}'"
        )


def refused(given: Serving, key: Key, error: ApiError) -> ManifestRefused | ApiError:
    """Return what a refusal means; an error that is none, as it is."""
    where = f"{key} in {given.namespace}"
    if rivals := answers.rivals(error):
        held = "; ".join(f"{field} is held by {manager}" for field, manager in rivals)
        return ManifestRefused(
            f"the cluster refuses {where}, as others have set what is to change: {held}. Take these changes back, or "
            "declare the same values, or take the fields with deploy(…, force=True)"
        )
    if error.lacks_namespace:
        return ManifestRefused(
            f"there is no namespace {given.namespace} for {where}, or it is being deleted: "
            f"'kubectl create namespace {given.namespace}'"
        )
    if error.kind == answers.FORBIDDEN:
        return ManifestRefused(
            f"the cluster does not let this client write {where}: {error.words}. It takes the rights to get, create, "
            f"patch and delete {PLURALS[key.kind]}: see the page on serving"
        )
    if error.kind in (answers.INVALID, answers.UNSERVED):
        causes = "; ".join(f"{one.field}: {one.message}" for one in error.causes if one.field)
        return ManifestRefused(f"the cluster refuses the manifest of {where}: {causes or error.words}")
    return error


def _check_served(api: Api, group: str, kind: str) -> None:
    try:
        listed = api.get(f"/apis/{group}").get("resources") or ()
    except ApiError as error:
        if error.kind not in (answers.ABSENT, answers.UNSERVED):
            raise
        listed = ()
    if not any(one.get("kind") == kind for one in listed):
        raise ManifestRefused(f"the cluster has no {kind} of {group}: {_MISSING[group]}, {_PLAIN}")


def _check_router(api: Api, given: Serving) -> None:
    """Raise ManifestRefused unless the gateway and the endpoint picker are there, without which nothing is answered."""
    name, port = given.picker
    picker = _found(api, f"/api/v1/namespaces/{given.namespace}/services/{name}")
    if picker is None or not any(one.get("port") == port for one in picker["spec"].get("ports") or ()):
        raise ManifestRefused(
            f"there is no Service {name} with the port {port} in {given.namespace}, which would choose a server for "
            f"each request: install llm-d's router for the pool {given.name}, or name its Service with "
            f"Serving(endpoint_picker='NAME:PORT'), {_PLAIN}"
        )
    first, slash, second = given.gateway.partition("/")
    namespace, gateway = (first, second) if slash else (given.namespace, first)
    group, _, _ = ROUTES.partition("/")
    if _found(api, f"/apis/{ROUTES}/namespaces/{namespace}/gateways/{gateway}") is None:
        raise ManifestRefused(
            f"there is no Gateway {gateway} ({group}) in {namespace}, through which requests would come: name yours "
            f"with Serving(gateway='NAMESPACE/NAME'), {_PLAIN}"
        )


def _found(api: Api, path: str) -> Object | None:
    try:
        return api.get(path)
    except ApiError as error:
        if error.kind in (answers.ABSENT, answers.UNSERVED):
            return None
        raise
