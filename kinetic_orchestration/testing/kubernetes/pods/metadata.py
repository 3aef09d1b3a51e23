"""GKE's metadata server of a pod: the identity of its Kubernetes service account, its project, and nothing of the VM.

As on GKE, an account without an annotation is itself, by a token of the cluster's workload identity pool; one that is
annotated with a service account of Google stands for that, if IAM gives it a token. It knows neither pods nor policies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.api_rules.policies import subject_token
from kinetic_orchestration.testing.model.state.machine import project_number
from kinetic_orchestration.testing.vms.metadata_server import Answer, Loop, MetadataServer, token_answer

ANNOTATION = "iam.gke.io/gcp-service-account"
POOL = ".svc.id.goog"  # how the name of a pool ends, after that of its project
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email"]
_PATIENCE = 10.0  # seconds for an answer of IAM

# The words of the real server: https://github.com/camunda/camunda/issues/31106.
_NO_TOKEN = """\
Unable to generate {kind} token; IAM returned {status} {phrase}: {said}
This error could be caused by a missing IAM policy binding on the target IAM service account.
For more information, refer to the Workload Identity documentation:
\thttps://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity#authenticating_to

"""
# https://github.com/matheuscscp/gke-metadata-server, internal/server/gke_apis.go
_NOT_ANNOTATED = """\
Your Kubernetes service account ({account}) is not annotated with a target Google service account, which is a \
requirement for retrieving Identity Tokens using Workload Identity.
Please add the iam.gke.io/gcp-service-account=[GSA_NAME]@[PROJECT_ID] annotation to your Kubernetes service account.
Refer to https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity
"""
_PHRASES = {403: "Forbidden", 404: "Not Found"}


@dataclass(frozen=True)
class Identity:
    """The identity of a pod.

    Attributes:
        pool: Of its cluster's identities: PROJECT.svc.id.goog.
        namespace: Its own.
        account: Its Kubernetes service account.
        google: The service account of Google that this one is annotated with; "": none.
        cloud: Where the emulated Google Cloud is asked, IAM among its APIs; "": there is none.
    """

    pool: str
    namespace: str
    account: str
    google: str
    cloud: str

    @property
    def project(self) -> str:
        return self.pool.removesuffix(POOL)

    @property
    def token(self) -> str:
        """An access token of the Kubernetes service account itself."""
        return subject_token(self.pool, project_number(self.project), self.namespace, self.account)


class PodMetadata(MetadataServer):
    """The metadata server as one pod meets it. It takes connections `after` some seconds."""

    program = "GKE Metadata Server"

    def __init__(self, loop: Loop, access: Access, identity: Identity, *, after: float = 0.0) -> None:
        self._identity = identity
        super().__init__(loop, access, after=after)

    def tree(self) -> dict[str, Any]:
        account = {"aliases": ["default"], "email": self.account(), "scopes": _SCOPES}
        project = self._identity.project
        return {
            "instance": {"service-accounts": {self.account(): account, "default": account}},
            "project": {"numeric-project-id": project_number(project), "project-id": project},
        }

    def account(self) -> str:
        return self._identity.google or self._identity.pool

    def token(self) -> Answer:
        if not self._identity.google:
            return token_answer(self._identity.token)
        found = self._of_iam("access", "generateAccessToken", {"scope": _SCOPES})
        return found if isinstance(found, Answer) else token_answer(str(found["accessToken"]))

    def identity(self, audience: str) -> Answer:
        mine = self._identity
        if not mine.google:
            return Answer(404, _NOT_ANNOTATED.format(account=f"{mine.namespace}/{mine.account}"), "text/plain")
        found = self._of_iam("identity", "generateIdToken", {"audience": audience, "includeEmail": True})
        return found if isinstance(found, Answer) else Answer(200, str(found["token"]), "text/html")

    def _of_iam(self, kind: str, method: str, body: dict[str, Any]) -> dict[str, Any] | Answer:
        """Return what IAM gives the Kubernetes service account of Google's one, or the answer that says why not."""
        mine = self._identity
        url = f"{mine.cloud}/v1/projects/-/serviceAccounts/{quote(mine.google, safe='@')}:{method}"
        headers = {"Authorization": f"Bearer {mine.token}", "Content-Type": "application/json"}
        reply = bootstrap.exchange("POST", url, json.dumps(body).encode(), headers, _PATIENCE)
        if reply.status == 200:
            found: dict[str, Any] = reply.json()
            return found
        phrase = _PHRASES.get(reply.status, "Error")
        said = _NO_TOKEN.format(kind=kind, status=reply.status, phrase=phrase, said=reply.reason())
        return Answer(reply.status if reply.status in _PHRASES else 500, said, "text/plain")
