"""Branch deployments: which of them Dagster+ reports as open, and which were closed since the last tick."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from kinetic_orchestration.errors import UsageError

BRANCHES_SECONDS = 20.0
LONGEST_TALE = 10  # what is named one by one in the reason of a tick
MOST_BRANCHES = 1000  # requested; if there were more, a missing one would not be known to be closed


@dataclass(frozen=True)
class Branches:
    """The sensor's record of branch deployments from one tick to the next."""

    open: set[str] = field(default_factory=set)  # when it last saw them
    missed: set[str] = field(
        default_factory=set
    )  # those of them that the last tick did not see: one odd answer is none
    closing: set[str] = field(default_factory=set)  # closed, and not all of theirs is gone

    @classmethod
    def of(cls, cursor: str | None) -> Branches:
        state = json.loads(cursor) if cursor else {}
        return cls(*(set(state.get(name, ())) for name in ("branches", "missed", "closing")))

    def to_cursor(self) -> str:
        state = {"branches": self.open, "missed": self.missed, "closing": self.closing}
        return json.dumps({name: sorted(names) for name, names in state.items() if names or name == "branches"})

    def seen(self, now: set[str], own: str) -> Branches:
        gone = self.open - now - {own}
        if not now and len(gone) > 1:
            raise UsageError(
                f"no branch deployment is said to be open, and {len(gone)} were: {some(sorted(gone))}. That is not "
                "believed, and nothing of theirs is removed, until one is open again; to remove it now: "
                "kinetic-orchestration reap, and cancel, with KINETIC_DEPLOYMENT set to its name"
            )
        missed = gone - self.missed
        return Branches(now | missed, missed, (self.closing | (gone - missed)) - now)


def some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - LONGEST_TALE} more" if len(lines) > LONGEST_TALE else ""
    return ", ".join(lines[:LONGEST_TALE]) + more


def dagster_plus_branches(url: str, token: str) -> Callable[[], list[str]]:
    """Return a function for `branches` that asks Dagster+. `url`: of the organization, such as
    https://my-org.dagster.cloud. Both may be a `dagster.EnvVar`.

    A branch deployment is open as long as its pull request is; one without a pull request is never listed.
    """

    def ask() -> list[str]:
        import urllib.error
        import urllib.request

        class Stays(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:  # the token would go along
                return None

        address = _address(url)
        request = urllib.request.Request(
            address + "/graphql",
            data=json.dumps({"query": _OPEN_BRANCHES, "variables": {"limit": MOST_BRANCHES}}).encode(),
            headers={"Content-Type": "application/json", "Dagster-Cloud-Api-Token": _secret(token)},
        )
        try:
            with urllib.request.build_opener(Stays).open(request, timeout=BRANCHES_SECONDS) as answer:
                told = json.loads(answer.read())
        except (OSError, ValueError) as error:  # a wrong token may be answered by the page to log in
            said = f"{error} {error.read(300)!r}" if isinstance(error, urllib.error.HTTPError) else str(error)
            raise UsageError(_NOT_TOLD.format(url=address, why=said)) from error
        branches = ((told.get("data") or {}).get("branchDeployments") or {}).get("nodes")
        if told.get("errors") or branches is None:
            raise UsageError(_NOT_TOLD.format(url=address, why=str(told)[:300]))
        if len(branches) >= MOST_BRANCHES:
            raise UsageError(
                f"{address} has {MOST_BRANCHES} open branch deployments or more, so it cannot be told which of them "
                "are closed: delete those that nobody needs"
            )
        return [str(entry["deploymentName"]) for entry in branches if entry["deploymentStatus"] == "ACTIVE"]

    return ask


def _resolved(given: str, what: str) -> str:
    if not isinstance(given, dg.EnvVar):
        return given.strip()
    found = (given.get_value() or "").strip()
    if not found:
        raise UsageError(f"the variable {given.env_var_name}, which has the {what} of Dagster+, is not set or empty")
    return found


def _secret(token: str) -> str:
    """A token that can be sent. No error shows any of it."""
    found = _resolved(token, "token")
    if not found or not found.isascii() or not found.isprintable():
        raise UsageError(
            f"the token for Dagster+ has {len(found)} characters and cannot be one: it is a line of printable ASCII, "
            "such as dagster.EnvVar('DAGSTER_CLOUD_API_TOKEN') reads it"
        )
    return found


def _address(url: str) -> str:
    """The address to which the token may be sent. Raises UsageError."""
    from urllib.parse import urlsplit

    found = _resolved(url, "address").rstrip("/")
    parts = urlsplit(found)
    here = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or (parts.scheme != "https" and not (parts.scheme == "http" and here)):
        raise UsageError(
            f"{found!r} is no address to which a token is sent: give that of the organization, with https, such as "
            "https://my-org.dagster.cloud"
        )
    return found


# As dagster-rest-resources asks: queries/deployment.graphql, ListBranchDeployments; the headers are those of its
# gql_client.py. What that file calls fullDeployments are the others, those of production.
_OPEN_BRANCHES = """query ListBranchDeployments($limit: Int!) {
    branchDeployments(limit: $limit, pullRequestStatus: OPEN) { nodes { deploymentName deploymentStatus } } }"""
_NOT_TOLD = (
    "{url} does not tell its branch deployments, so nothing of theirs is removed: {why}. It takes the address of the "
    "organization, such as https://my-org.dagster.cloud, and a user token, which Dagster+ makes under "
    "Organization Settings, Tokens"
)
