"""Dagster+ as far as its list of deployments: a GraphQL server on loopback, with the types that Dagster's own client for
it was generated from (dagster-rest-resources: __generated__/enums.py, list_deployments.py, list_branch_deployments.py).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import graphql

TOKEN = "user:of-a-test"
SCHEMA = graphql.build_schema(
    """
    enum PullRequestStatus { OPEN CLOSED MERGED }
    enum DeploymentStatus { ACTIVE PENDING_DELETION }
    enum DagsterCloudDeploymentType { PRODUCTION BRANCH }
    enum DeploymentAgentType { HYBRID SERVERLESS }
    type DagsterCloudDeployment {
        deploymentName: String! deploymentId: Int! deploymentType: DagsterCloudDeploymentType!
        deploymentStatus: DeploymentStatus! agentType: DeploymentAgentType! isBranchDeployment: Boolean!
        organizationName: String!
    }
    type DagsterCloudDeploymentConnection { nodes: [DagsterCloudDeployment!]! }
    type Query {
        fullDeployments: [DagsterCloudDeployment!]!
        branchDeployments(limit: Int!, pullRequestStatus: PullRequestStatus): DagsterCloudDeploymentConnection!
    }
    """
)


@dataclass
class Organization:
    """Its branch deployments, each with the status of its pull request (None: it has none)."""

    branches: dict[str, str | None] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)  # those that are on their way
    answer: tuple[int, str, bytes] | None = None  # what it says instead
    headers: dict[str, str] = field(default_factory=dict)  # of each answer
    asked: int = 0
    url: str = ""

    def fullDeployments(self, _: Any) -> list[dict[str, Any]]:
        return [self._deployment("prod", 1, branch=False)]

    def branchDeployments(self, _: Any, limit: int, pullRequestStatus: str | None = None) -> dict[str, Any]:
        found = [
            self._deployment(name, number, branch=True)
            for number, (name, status) in enumerate(self.branches.items(), 2)
            if pullRequestStatus in (None, status)
        ]
        return {"nodes": found[:limit]}

    def _deployment(self, name: str, number: int, *, branch: bool) -> dict[str, Any]:
        return {
            "deploymentName": name,
            "deploymentId": number,
            "deploymentType": "BRANCH" if branch else "PRODUCTION",
            "deploymentStatus": "PENDING_DELETION" if name in self.deleted else "ACTIVE",
            "agentType": "HYBRID",
            "isBranchDeployment": branch,
            "organizationName": "my-org",
        }


@contextmanager
def dagster_plus(organization: Organization) -> Iterator[Organization]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            organization.asked += 1
            self._answer(200, "text/plain", b"one that was sent elsewhere comes with GET")

        def do_POST(self) -> None:
            organization.asked += 1
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if organization.answer is not None:
                self._answer(*organization.answer)
            elif self.path != "/graphql" or self.headers["Dagster-Cloud-Api-Token"] != TOKEN:
                self._answer(401, "text/plain", b"Unauthorized")
            else:
                result = graphql.graphql_sync(
                    SCHEMA, asked["query"], organization, variable_values=asked.get("variables")
                )
                self._answer(200, "application/json", json.dumps(result.formatted).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in organization.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    organization.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield organization
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
