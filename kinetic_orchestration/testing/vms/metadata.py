"""The metadata of an emulated VM: its own configuration, its account's tokens, and the events that it is told of.

It shows what it is given and knows neither processes nor the Cloud TPU API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.metadata_server import Answer, Loop, MetadataServer, Refused, token_answer

# the real server's answer while nothing is planned
_NO_MAINTENANCE = '{ "error": "no notifications have been received yet, try again later" }'


class VmMetadata(MetadataServer):
    """The metadata server of one VM. Its identity tokens authenticate results.

    Attributes:
        preempted, maintenance_event, upcoming_maintenance: Its notices, for `change`.
    """

    def __init__(
        self,
        loop: Loop,
        machine: Machine,
        access: Access,
        *,
        token: Callable[[str, int], str],
        sign_identity: Callable[[str, Machine], str],
    ) -> None:
        self.machine = machine
        self.attributes: dict[str, str] = machine.attributes()
        self.guest_attributes: dict[str, dict[str, str]] = {}
        self.preempted = False
        self.maintenance_event = "NONE"
        self.upcoming_maintenance: Mapping[str, str] | None = None
        self._token = token
        self._sign_identity = sign_identity
        super().__init__(loop, access)

    def tree(self) -> dict[str, Any]:
        machine = self.machine
        project = f"projects/{machine.project_number}"
        account = {"aliases": ["default"], "email": machine.account, "scopes": list(machine.scopes)}
        instance = {
            **machine.told(),
            "attributes": dict(self.attributes),
            "description": "",
            "guest-attributes": {space: dict(keys) for space, keys in self.guest_attributes.items()},
            "hostname": machine.hostname,
            "id": machine.instance_id,
            "maintenance-event": self.maintenance_event,
            "name": machine.name,
            "preempted": str(self.preempted).upper(),
            "service-accounts": {machine.account: account, "default": account} if machine.account else {},
            "zone": f"{project}/zones/{machine.zone}",
        }
        if self.upcoming_maintenance is not None:
            instance["upcoming-maintenance"] = dict(self.upcoming_maintenance)
        numbers = {"attributes": {}, "numeric-project-id": machine.project_number, "project-id": machine.project}
        return {"instance": instance, "project": numbers, "universe": {"universe-domain": "googleapis.com"}}

    def account(self) -> str:
        return self.machine.account

    def token(self) -> Answer:
        if not self.machine.account:
            raise Refused(404)
        if not self.machine.scopes:
            raise Refused(403)
        return token_answer(self._token(self.machine.node, self.machine.worker))

    def identity(self, audience: str) -> Answer:
        return Answer(200, self._sign_identity(audience, self.machine), "text/html")

    def find(self, words: list[str]) -> Answer | None:
        self._check(words)
        if words == ["instance", "upcoming-maintenance"] and self.upcoming_maintenance is None:
            return Answer(503, _NO_MAINTENANCE, "application/json")
        return None

    def write(self, method: str, words: list[str], body: bytes) -> Answer:
        self._check(words)
        if words[:2] != ["instance", "guest-attributes"]:
            raise Refused(405)
        if len(words) != 4:
            raise Refused(400)
        keys = self.guest_attributes.setdefault(words[2], {})
        if method == "PUT":
            keys[words[3]] = body.decode("utf-8", "replace")
        elif keys.pop(words[3], None) is None:
            raise Refused(404)
        self.change()
        return Answer(200, "")

    def _check(self, words: list[str]) -> None:
        if "/".join(words) in self.machine.silent:
            raise Refused(503)
