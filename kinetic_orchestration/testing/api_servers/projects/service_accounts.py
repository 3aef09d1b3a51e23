"""Service accounts of Google: who may act as one by its policy, and the tokens that whoever may is given.

As much of IAM and of its credentials API as Workload Identity needs. It does not know how it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass
class _Account:
    unique_id: str
    seen: float  # from when on everybody knows of it
    about: Json
    policy: Policy = field(default_factory=Policy)


class ServiceAccounts:
    """All accounts that somebody has made, each with its policy.

    Args:
        clock: Tells the time.
        sign: Makes an identity token of claims.
        spread: Returns how long it takes until a new account is known everywhere.
    """

    def __init__(
        self, clock: Callable[[], float], sign: Callable[[Json], str], spread: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock = clock
        self._sign = sign
        self._spread = spread
        self._accounts: dict[str, _Account] = {}
        self._made = 0
        self._missed = 0
        self.forgetful: list[Callable[[str, str], None]] = []
        """Called with the email and the id of an account that is deleted, by all that have policies."""

    def add(self, project: str, name: str, about: Json | None = None) -> str:
        """Make an account, and return its email. Raises Refusal."""
        if not _ID.fullmatch(name):
            raise refusals.invalid(f"The account ID \"{name}\" does not match the pattern '{_ID.pattern}'.")
        email = f"{name}@{project}.iam.gserviceaccount.com"
        if email in self._accounts:
            raise Refusal(6, f"Service account {name} already exists within project projects/{project}.")
        self._made += 1  # an account of a name that was there before is another one
        told = {key: value for key, value in (about or {}).items() if key in ("displayName", "description")}
        self._accounts[email] = _Account(
            str(project_number(f"{email} {self._made}")), self._clock() + self._spread(), told
        )
        return email

    def remove(self, email: str) -> None:
        """Delete an account. What it was granted is of nobody from then on. Raises Refusal."""
        unique_id = self._known(email).unique_id
        del self._accounts[email]
        for forget in self.forgetful:
            forget(email, unique_id)

    def is_known(self, email: str) -> bool:
        """Tell whether policies can name an account by now."""
        found = self._accounts.get(email)
        return found is not None and found.seen <= self._clock()

    def grant(self, email: str, role: str, *members: str) -> None:
        """Bind members to a role on an account. Raises Refusal."""
        found = self._accounts[email]
        found.policy = found.policy.with_grant(role, members)

    def told(self, email: str, *, made: bool = False) -> Json:
        """Return an account as the API has it. `made`: it is answered to whoever has just made it."""
        found = self._accounts[email] if made else self._known(email)
        project = email.partition("@")[2].partition(".")[0]
        return {
            "name": f"projects/{project}/serviceAccounts/{email}", "projectId": project, "email": email,
            "uniqueId": found.unique_id, "oauth2ClientId": found.unique_id, **found.about,
        }  # fmt: skip

    def policy(self, email: str) -> Json:
        return self._known(email).policy.to_json()

    def set_policy(self, email: str, told: Json) -> Json:
        found = self._known(email)
        if told.get("etag", "") not in ("", found.policy.to_json()["etag"]):
            raise refusals.concurrent_policy_changes()
        try:
            found.policy = Policy.of_json(told)
        except ValueError as error:
            raise refusals.invalid(str(error)) from None
        return self.policy(email)

    def access_token(self, email: str, caller: Caller) -> Json:
        self._demand(_ACCESS, email, caller)
        return {"accessToken": account_token(email), "expireTime": stamp(self._clock() + _HOUR)}

    def identity_token(self, email: str, body: Json, caller: Caller) -> Json:
        self._demand(_IDENTITY, email, caller)
        now = int(self._clock())
        number = self._accounts[email].unique_id
        claims = {"iss": ISSUER, "aud": str(body.get("audience", "")), "azp": number, "sub": number}
        whose = {"email": email, "email_verified": True} if body.get("includeEmail") else {}
        return {"token": self._sign({**claims, **whose, "iat": now, "exp": now + _HOUR})}

    def _known(self, email: str) -> _Account:
        """Return an account. One that not everybody knows of yet is refused in the words of either server."""
        found = self._accounts.get(email)
        if found is None:
            raise Refusal(5, "Unknown service account")
        if found.seen > self._clock():
            self._missed += 1
            denied = "Permission 'iam.serviceAccounts.get' denied on resource (or it may not exist)."
            raise Refusal(7, denied) if self._missed % 2 else Refusal(5, "Unknown service account")
        return found

    def _demand(self, permission: str, email: str, caller: Caller) -> None:
        known = self._accounts.get(email)
        if known is None or (caller.members and not known.policy.grants(permission, caller.members)):
            raise Refusal(7, f"Permission '{permission}' denied on resource (or it may not exist).")
