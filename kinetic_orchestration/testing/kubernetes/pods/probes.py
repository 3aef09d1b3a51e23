"""The probes of a container that ask by HTTP. A pod's address is one that nobody has: it is asked on this machine.

Pods have addresses of their own (10.244.A.B), as a cluster wants it, and their processes listen on the address of
loopback that belongs to each (127.244.A.B), if they listen on their pod's at all.
"""

from __future__ import annotations

import http.client

from kinetic_orchestration.testing.kubernetes.api.answers import Object

_LONGEST = 1.0  # seconds for an answer: all pods of a pool are asked by one thread
_OF_PODS, _OF_LOOPBACK = "10.", "127."


def on_this_machine(address: str) -> str:
    """Return where the processes of a pod listen."""
    return _OF_LOOPBACK + address.removeprefix(_OF_PODS) if address.startswith(_OF_PODS) else address


class Probes:
    """The probes of one run of a container.

    Args:
        container: As its pod has it.
        now: When it started.

    Attributes:
        started: Its startup probe has succeeded, or it has none.
        ready: Its readiness probe says so, or it has none.
        failed: Which probe wants it ended: Startup or Liveness; "": none.
        said: What that one heard the last time.
    """

    def __init__(self, container: Object, now: float) -> None:
        self._container = container
        self._due = {
            name: now + self._of(name).get("initialDelaySeconds", 0) for name in ("startup", "readiness", "liveness")
        }
        self._misses = dict.fromkeys(self._due, 0)
        self.started = not self._of("startup")
        self.ready = self.started and not self._of("readiness")
        self.failed = self.said = ""

    def step(self, address: str, now: float) -> None:
        """Ask what is due. `address`: the pod's."""
        if not self.started:
            self.started = self._asked("startup", address, now)
            self.ready = self.started and not self._of("readiness")
            return
        if self._of("readiness") and now >= self._due["readiness"]:
            answers = self._asked("readiness", address, now)
            misses, most = self._misses["readiness"], self._of("readiness").get("failureThreshold", 3)
            self.ready = answers or (self.ready and misses < most)
        if self._of("liveness"):
            self._asked("liveness", address, now)

    def _of(self, name: str) -> Object:
        probe: Object = self._container.get(f"{name}Probe") or {}
        return probe if "httpGet" in probe else {}

    def _asked(self, name: str, address: str, now: float) -> bool:
        probe = self._of(name)
        if now < self._due[name]:
            return False
        self._due[name] = now + probe.get("periodSeconds", 10)
        answers = self._answers(probe, address)
        self._misses[name] = 0 if answers else self._misses[name] + 1
        if name != "readiness" and self._misses[name] >= probe.get("failureThreshold", 3):
            self.failed = name.capitalize()
        return answers

    def _answers(self, probe: Object, address: str) -> bool:
        asked = probe["httpGet"]
        port = asked["port"]
        if isinstance(port, str):
            port = next(
                (one["containerPort"] for one in self._container.get("ports", ()) if one.get("name") == port), 0
            )
        patience = min(_LONGEST, probe.get("timeoutSeconds", 1))
        connection = http.client.HTTPConnection(on_this_machine(address), port, timeout=patience)
        try:
            connection.request("GET", asked.get("path", "/"))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            self.said = str(error)
            return False
        finally:
            connection.close()
        self.said = f"HTTP probe failed with statuscode: {status}"
        return 200 <= status < 400
