"""The other Google APIs that a TPU pipeline meets: Secret Manager, the Billing Catalog, of Kubernetes Engine what
clusters and pools of nodes there are, and beside them those by which a project is set up (`projects`).

As much of each as one job needs, over REST, from and to JSON. Permissions, faults and the ledger are the cloud's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kinetic_orchestration.testing.api_rules import filters, refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.api_servers import billing_skus, model_registry
from kinetic_orchestration.testing.api_servers.api_keys import ApiKeys
from kinetic_orchestration.testing.api_servers.model_registry import ModelRegistry
from kinetic_orchestration.testing.api_servers.projects.apis import ROUTES, ProjectApis
from kinetic_orchestration.testing.api_servers.projects.requests import Request, Route, route
from kinetic_orchestration.testing.api_servers.projects.service_accounts import ServiceAccounts
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.faults import Caller
from kinetic_orchestration.testing.model.state.resources import Json, after, moment, page_token, seconds, stamp

SECRETS = "secretmanager.googleapis.com"
_BILLING = "cloudbilling.googleapis.com"
_CONTAINER = "container.googleapis.com"
_SKUS = 5000  # a page
_PAGE = 100
_NUMBER = re.compile(r"[0-9]{1,9}")
_DURATION = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s")
_SECRET_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")
_PAYLOAD_LIMIT = 64 << 10


Handler = Callable[[Mapping[str, str], Json, Caller], Json]


@dataclass
class _Secret:
    name: str
    body: Json
    created: float
    versions: list[bytes | None] = field(default_factory=list)
    expires: float = 0.0

    def to_json(self) -> Json:
        shown = {key: value for key, value in self.body.items() if key not in ("name", "ttl", "createTime")}
        return {"name": self.name, "createTime": stamp(self.created), **shown} | (
            {"expireTime": stamp(self.expires)} if self.expires else {}
        )


class OtherApis:
    def __init__(self, cloud: Cloud, clock: Callable[[], float], sign: Callable[[Json], str]) -> None:
        self._cloud = cloud
        self._clock = clock
        self.accounts = ServiceAccounts(clock, sign, lambda: cloud.timing.spread)
        self.projects = ProjectApis(cloud, self.accounts)
        self.keys = ApiKeys()
        self.models = ModelRegistry()
        self._secrets: dict[str, _Secret] = {}
        self._clusters: dict[str, tuple[Json, Callable[[], Json]]] = {}
        self.skus = billing_skus.skus()
        """Holds what the Billing Catalog of Compute Engine says."""

    def handler(self, method: str, path: str) -> Handler | None:
        """The handler of a request, or None if no API here serves it. The handler raises Refusal, or LostAnswer after
        acting."""
        for owner, routes in ((self, _ROUTES), (self.projects, ROUTES)):
            for one in routes:
                found = one.path.fullmatch(path) if one.method == method else None
                if found is not None:
                    project = found.groupdict().get("project", "")  # a catalogue belongs to no project
                    name = path.split("/", 2)[2].partition(":")[0]
                    return partial(self._go, owner, one, project, name)
        return None

    def _go(
        self, owner: object, of: Route, project: str, name: str, query: Mapping[str, str], body: Json, caller: Caller
    ) -> Json:
        asked = Request(project, name, query, body, caller)
        with self._cloud.meeting(of.verb, "", asked.name, asked.caller), self._cloud.changed:
            self._cloud.demand_service(of.service, asked.project or asked.caller.project)
            if of.permission:
                self._cloud.demand(of.permission, asked.name, asked.caller)
            return of.act(owner, asked)

    def add_secret(self, project: str, secret_id: str, value: str | bytes) -> str:
        """Add a secret that was made manually before the test; it is not reported as left over."""
        name = f"projects/{project}/secrets/{secret_id}"
        data = value.encode() if isinstance(value, str) else value
        with self._cloud.changed:
            secret = _Secret(name, {"replication": {"automatic": {}}}, self._clock(), [data])
            self._secrets[name] = secret
        return name

    def add_cluster(self, project: str, location: str, cluster: Json, seen: Callable[[], Json] | None = None) -> None:
        """Add a cluster as the API has it, or replace the one of that name. `seen`: Returns fields that change; the
        pools among them are in addition to its own."""
        name = f"projects/{project}/locations/{location}/clusters/{cluster['name']}"
        link = f"https://container.googleapis.com/v1/{name}"
        with self._cloud.changed:
            told = {"status": "RUNNING", "location": location, "selfLink": link, **cluster}
            self._clusters[name] = told, seen or dict

    def secrets(self) -> list[str]:
        with self._cloud.changed:
            return list(self._secrets)

    # Kubernetes Engine

    def _list_clusters(self, asked: Request) -> Json:
        place = asked.name.removesuffix("/clusters")
        found = [
            self._cluster(name)
            for name in self._clusters
            if name.startswith(f"{place}/" if not place.endswith("/-") else place[:-1])
        ]
        return {"clusters": found} if found else {}

    def _get_cluster(self, asked: Request) -> Json:
        return self._cluster(asked.name)

    def _list_pools(self, asked: Request) -> Json:
        pools = self._cluster(asked.name.removesuffix("/nodePools")).get("nodePools")
        return {"nodePools": pools} if pools else {}

    def _get_pool(self, asked: Request) -> Json:
        cluster, _, pool = asked.name.partition("/nodePools/")
        found = next((one for one in self._cluster(cluster).get("nodePools", ()) if one["name"] == pool), None)
        if found is None:
            raise Refusal(5, f"Not found: {asked.name}.")
        return dict(found)

    def _cluster(self, name: str) -> Json:
        """Return a cluster as it is now."""
        if name not in self._clusters:
            raise Refusal(5, f"Not found: {name}.")
        told, seen = self._clusters[name]
        now = seen()
        pools = [*told.get("nodePools", ()), *now.pop("nodePools", ())]
        return {**told, **now, "nodePools": pools} if pools else {**told, **now}

    # Secret Manager

    def _create_secret(self, asked: Request) -> Json:
        ident = asked.query.get("secretId", "")
        if not _SECRET_ID.fullmatch(ident):
            raise refusals.invalid(f"Secret IDs must be made of letters, digits, - and _, not '{ident}'.")
        if "replication" not in asked.body:
            raise refusals.invalid("The request was invalid: secret.replication must be provided.")
        name = f"projects/{asked.project}/secrets/{ident}"
        if name in self._secrets:
            raise Refusal(6, f"Secret [{name}] already exists.")
        secret = _Secret(name, asked.body, self._clock(), expires=self._expiry(asked.body))
        self._secrets[name] = secret
        self._cloud.ledger.created("secret", name)
        self._expire(secret)
        return secret.to_json()

    def _update_secret(self, asked: Request) -> Json:
        secret = self._the(asked.name)
        body = {key: value for key, value in secret.body.items() if key not in asked.update}
        body |= {key: asked.body[key] for key in asked.update if key in asked.body}
        secret.expires = self._expiry(body) or secret.expires
        secret.body = body
        self._expire(secret)
        return secret.to_json()

    def _expiry(self, body: Json) -> float:
        """Check a secret's body and return the time at which it expires; 0: never."""
        for key in ("replication", "labels", "annotations"):
            if not isinstance(body.get(key, {}), dict):
                raise refusals.typed(f"secret.{key}", "an object", body[key])
        for key in ("labels", "annotations"):
            for index, value in enumerate(body.get(key, {}).values()):
                if not isinstance(value, str):
                    raise refusals.typed(f"secret.{key}[{index}].value", "TYPE_STRING", value)
        ttl, until = body.get("ttl"), body.get("expireTime")
        try:
            if ttl is not None:
                if not _DURATION.fullmatch(str(ttl)):
                    raise ValueError
                return self._clock() + seconds(str(ttl))
            return 0.0 if until is None else moment(str(until))
        except (ValueError, OverflowError):
            key, kind = ("ttl", "Duration") if ttl is not None else ("expire_time", "Timestamp")
            raise refusals.typed(f"secret.{key}", f"type.googleapis.com/google.protobuf.{kind}", ttl or until) from None

    def _expire(self, secret: _Secret) -> None:
        expires = secret.expires

        def gone() -> None:
            if secret.expires == expires and self._secrets.get(secret.name) is secret:
                self._remove(secret.name)

        if expires:
            self._cloud.at(expires, gone)

    def _get_secret(self, asked: Request) -> Json:
        return self._the(asked.name).to_json()

    def _list_secrets(self, asked: Request) -> Json:
        prefix, last = f"projects/{asked.project}/secrets/", after(asked.query.get("pageToken", ""))
        names = sorted(name for name in self._secrets if name.startswith(prefix) and name > last)
        return _page("secrets", [self._secrets[name].to_json() for name in names], asked)

    def _delete_secret(self, asked: Request) -> Json:
        self._remove(self._the(asked.name).name)
        return {}

    def _remove(self, name: str) -> None:
        del self._secrets[name]
        self._cloud.ledger.deleted("secret", name)

    def _add_version(self, asked: Request) -> Json:
        secret = self._the(asked.name)
        payload = asked.body.get("payload", {})
        given = payload.get("data", "") if isinstance(payload, dict) else payload
        try:
            data = base64.b64decode(given, validate=True)
        except (ValueError, TypeError):
            raise refusals.typed("payload.data", "TYPE_BYTES", "Base64 decoding failed") from None
        if not data or len(data) > _PAYLOAD_LIMIT:
            raise refusals.invalid(f"The secret payload must have 1 to {_PAYLOAD_LIMIT} bytes.")
        secret.versions.append(data)
        return self._version(secret, len(secret.versions))

    def _access_version(self, asked: Request) -> Json:
        secret, number = self._the_version(asked.name)
        data = secret.versions[number - 1]
        shown = f"{secret.name}/versions/{number}"
        if data is None:
            raise Refusal(9, f"Secret Version [{shown}] is in DESTROYED state.")
        return {"name": shown, "payload": {"data": base64.b64encode(data).decode()}}

    def _get_version(self, asked: Request) -> Json:
        return self._version(*self._the_version(asked.name))

    def _list_versions(self, asked: Request) -> Json:
        secret = self._the(asked.name.removesuffix("/versions"))
        last = after(asked.query.get("pageToken", "")).rpartition("/")[2]
        newest = int(last) - 1 if _NUMBER.fullmatch(last) else len(secret.versions)
        return _page("versions", [self._version(secret, number) for number in range(newest, 0, -1)], asked)

    def _destroy_version(self, asked: Request) -> Json:
        secret, number = self._the_version(asked.name)
        secret.versions[number - 1] = None
        return self._version(secret, number)

    def _the(self, name: str) -> _Secret:
        if name not in self._secrets:
            raise Refusal(5, f"Secret [{name}] not found.")
        return self._secrets[name]

    def _the_version(self, name: str) -> tuple[_Secret, int]:
        secret_name, _, version = name.partition("/versions/")
        secret = self._the(secret_name)
        number = len(secret.versions) if version == "latest" else int(version) if _NUMBER.fullmatch(version) else 0
        if not 1 <= number <= len(secret.versions):
            raise Refusal(5, f"Secret Version [{name}] not found or has no versions.")
        return secret, number

    @staticmethod
    def _version(secret: _Secret, number: int) -> Json:
        state = "DESTROYED" if secret.versions[number - 1] is None else "ENABLED"
        return {"name": f"{secret.name}/versions/{number}", "createTime": stamp(secret.created), "state": state}

    # Vertex AI

    def _upload_model(self, asked: Request) -> Json:
        return self.models.upload(asked.name, asked.body)

    def _get_operation(self, asked: Request) -> Json:
        return self.models.operation(asked.name)

    def _list_models(self, asked: Request) -> Json:
        return self.models.list_versions(asked.name, asked.query)

    def _merge_aliases(self, asked: Request) -> Json:
        return self.models.merge_aliases(asked.name, asked.body)

    # Billing Catalog

    def _list_skus(self, asked: Request) -> Json:
        if asked.name.split("/")[1] != billing_skus.SERVICE:
            raise Refusal(5, f"Service {asked.name.split('/')[1]} not found.")
        token = after(asked.query.get("pageToken", ""))
        if not _NUMBER.fullmatch(token or "0"):
            raise refusals.invalid("Invalid page token")
        at = int(token or 0)
        end = at + min(asked.page_size or _SKUS, _SKUS)
        found: Json = {"skus": self.skus[at:end], "nextPageToken": ""}
        return found | ({"nextPageToken": page_token(str(end))} if end < len(self.skus) else {})


def _page(field: str, items: list[Json], asked: Request) -> Json:
    """The next page of those `items` that pass the filter."""
    items = filters.chosen(items, asked.query.get("filter", ""))
    page = items[: asked.page_size or _PAGE]
    found: Json = {field: page} if page else {}
    if len(page) < len(items):
        found["nextPageToken"] = page_token(page[-1]["name"])
    return found


def _route(
    line: str, verb: str, permission: str, act: Callable[[OtherApis, Request], Json], service: str = SECRETS
) -> Route:
    return route(line, verb, permission, act, service)


_ROUTES = (
    _route("POST /v1/projects/P/secrets", "CreateSecret", "secretmanager.secrets.create", OtherApis._create_secret),
    _route("GET /v1/projects/P/secrets", "ListSecrets", "secretmanager.secrets.list", OtherApis._list_secrets),
    _route("GET /v1/projects/P/secrets/S", "GetSecret", "secretmanager.secrets.get", OtherApis._get_secret),
    _route("PATCH /v1/projects/P/secrets/S", "UpdateSecret", "secretmanager.secrets.update", OtherApis._update_secret),
    _route(
        "DELETE /v1/projects/P/secrets/S",
        "DeleteSecret", "secretmanager.secrets.delete", OtherApis._delete_secret,
    ),
    _route(
        "POST /v1/projects/P/secrets/S:addVersion",
        "AddSecretVersion", "secretmanager.versions.add", OtherApis._add_version,
    ),
    _route(
        "GET /v1/projects/P/secrets/S/versions",
        "ListSecretVersions", "secretmanager.versions.list", OtherApis._list_versions,
    ),
    _route(
        "GET /v1/projects/P/secrets/S/versions/V",
        "GetSecretVersion", "secretmanager.versions.get", OtherApis._get_version,
    ),
    _route(
        "GET /v1/projects/P/secrets/S/versions/V:access",
        "AccessSecretVersion", "secretmanager.versions.access", OtherApis._access_version,
    ),
    _route(
        "POST /v1/projects/P/secrets/S/versions/V:destroy",
        "DestroySecretVersion", "secretmanager.versions.destroy", OtherApis._destroy_version,
    ),
    _route(
        "GET /v1/projects/P/locations/L/clusters",
        "ListClusters", "container.clusters.list", OtherApis._list_clusters, _CONTAINER,
    ),
    _route(
        "GET /v1/projects/P/locations/L/clusters/C",
        "GetCluster", "container.clusters.get", OtherApis._get_cluster, _CONTAINER,
    ),
    _route(
        "GET /v1/projects/P/locations/L/clusters/C/nodePools",
        "ListNodePools", "container.clusters.get", OtherApis._list_pools, _CONTAINER,
    ),
    _route(
        "GET /v1/projects/P/locations/L/clusters/C/nodePools/N",
        "GetNodePool", "container.clusters.get", OtherApis._get_pool, _CONTAINER,
    ),
    _route(
        "POST /v1/projects/P/locations/L/models:upload",
        "UploadModel", "aiplatform.models.upload", OtherApis._upload_model, model_registry.SERVICE,
    ),
    _route(
        "GET /v1/projects/P/locations/L/models/M/operations/S",
        "GetOperation", "", OtherApis._get_operation, model_registry.SERVICE,
    ),
    _route(
        "GET /v1/projects/P/locations/L/models/M:listVersions",
        "ListModelVersions", "aiplatform.models.list", OtherApis._list_models, model_registry.SERVICE,
    ),
    _route(
        "POST /v1/projects/P/locations/L/models/M:mergeVersionAliases",
        "MergeVersionAliases", "aiplatform.models.update", OtherApis._merge_aliases, model_registry.SERVICE,
    ),
    _route("GET /v1/services/S/skus", "ListSkus", "", OtherApis._list_skus, _BILLING),
)  # fmt: skip
