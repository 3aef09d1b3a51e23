"""Service accounts of Google: who may act as one by its policy, and the tokens that whoever may is given.

As much of IAM and of its credentials API as Workload Identity needs. It does not know how it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.policies import Policy, account_token
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.api_servers.signing import ISSUER
from kinetic_orchestration.testing.model.faults import Caller
from kinetic_orchestration.testing.model.state.machine import project_number
from kinetic_orchestration.testing.model.state.resources import Json, stamp

USER = "roles/iam.workloadIdentityUser"
_HOUR = 3600
_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
_ACCESS, _IDENTITY = "iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken"


class ServiceAccounts:
    """All accounts that somebody has made, each with its policy.

    Args:
        clock: Tells the time.
        sign: Makes an identity token of claims.
    """

    def __init__(self, clock: Callable[[], float], sign: Callable[[Json], str]) -> None:
        self._clock = clock
        self._sign = sign
        self._policies: dict[str, Policy] = {}

    def add(self, project: str, name: str) -> str:
        """Make an account, and return its email. Raises Refusal."""
        if not _ID.fullmatch(name):
            raise refusals.invalid(f"The account ID \"{name}\" does not match the pattern '{_ID.pattern}'.")
        email = f"{name}@{project}.iam.gserviceaccount.com"
        if email in self._policies:
            raise Refusal(6, f"Service account {name} already exists within project projects/{project}.")
        self._policies[email] = Policy()
        return email

    def grant(self, email: str, role: str, *members: str) -> None:
        """Bind members to a role on an account. Raises Refusal."""
        self._policies[email] = self._policy(email).with_grant(role, members)

    def told(self, email: str) -> Json:
        self._policy(email)
        project = email.partition("@")[2].partition(".")[0]
        return {
            "name": f"projects/{project}/serviceAccounts/{email}", "projectId": project, "email": email,
            "uniqueId": str(project_number(email)), "oauth2ClientId": str(project_number(email)),
        }  # fmt: skip

    def policy(self, email: str) -> Json:
        return self._policy(email).to_json()

    def set_policy(self, email: str, told: Json) -> Json:
        self._policy(email)
        try:
            self._policies[email] = Policy.of_json(told)
        except ValueError as error:
            raise refusals.invalid(str(error)) from None
        return self.policy(email)

    def access_token(self, email: str, caller: Caller) -> Json:
        self._demand(_ACCESS, email, caller)
        return {"accessToken": account_token(email), "expireTime": stamp(self._clock() + _HOUR)}

    def identity_token(self, email: str, body: Json, caller: Caller) -> Json:
        self._demand(_IDENTITY, email, caller)
        now = int(self._clock())
        number = str(project_number(email))
        claims = {"iss": ISSUER, "aud": str(body.get("audience", "")), "azp": number, "sub": number}
        whose = {"email": email, "email_verified": True} if body.get("includeEmail") else {}
        return {"token": self._sign({**claims, **whose, "iat": now, "exp": now + _HOUR})}

    def _policy(self, email: str) -> Policy:
        if email not in self._policies:
            raise Refusal(5, "Unknown service account")
        return self._policies[email]

    def _demand(self, permission: str, email: str, caller: Caller) -> None:
        known = self._policies.get(email)
        if known is None or (caller.members and not known.grants(permission, caller.members)):
            raise Refusal(7, f"Permission '{permission}' denied on resource (or it may not exist).")
