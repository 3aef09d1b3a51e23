"""The calls of a set-up: what passes by itself is waited for, what does not is told as a sentence with the way round.

Sources of what passes: terraform-provider-google, google/transport/error_retry_predicates.go and
google/services/resourcemanager/resource_google_service_account.go. It does not know what is made in which order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import SetupError
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import Answer, Google
from kinetic_orchestration.platforms.google.setup.requests import Call, wait

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
PATIENCE: Final = 300.0  # seconds for what passes by itself: Google says "some minutes" of APIs and of rights
IN_USE: Final = "resourceInUseByAnotherResource"
GCLOUD: Final = "764086051850"  # the project of people's logins, if calls name none
BILLING: Final = "https://console.cloud.google.com/billing/linkedaccount?project={project}"

Say = Callable[[str], None]


class Passing(NamedTuple):
    """An error that passes by itself."""

    statuses: tuple[int, ...]
    says: str  # a pattern in the whole answer
    why: str


PASSING: Final = (
    Passing(
        (400,), r"Another activation or deactivation is in progress|160009", "another activation of APIs is under way"
    ),
    Passing((400,), r"[Ss]ervice account .* does not exist", "the account is not known everywhere yet"),
    Passing((400,), r"Role \(.*\) does not exist", "the role is not known everywhere yet"),
    Passing((400,), r"resourceNotReady", "the network is not ready yet"),
    Passing((403,), r"CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "other operations of the project are under way"),
    Passing((403,), r"per minute", "the rate of calls is limited"),
)
"""Whatever is asked for, once something was made."""
NEW_API: Final = Passing(
    (403,), r"has not been used in project|SERVICE_DISABLED", "an API that was enabled is not usable everywhere yet"
)
NEW_ACCOUNT: Final = Passing((403, 404), r"", "the account is not known everywhere yet")

# The constraints that stop a set-up, and the way round.
WAYS: Final[Mapping[str, str]] = {
    "gcp.resourceLocations": "name a region that it allows with --region",
    "iam.allowedPolicyMemberDomains": "name users and groups of the organisation itself with --submitter; somebody "
    "from outside submits as a member of such a group",
    "iam.managed.allowedPolicyMembers": "name users and groups of the organisation itself with --submitter",
    "iam.disableServiceAccountCreation": "have an account made for you, and name it with --service-account",
    "iam.managed.disableServiceAccountCreation": "have an account made for you, and name it with --service-account",
    "gcp.restrictServiceUsage": "have the API added to the allowed services",
    "compute.restrictCloudNATUsage": "name a network that has a way to package indexes with --network, or stage tools "
    "(kinor stage-tools --offline)",
    "compute.restrictSharedVpcSubnetworks": "name a network that is allowed with --network",
    "storage.uniformBucketLevelAccess": "name a bucket with uniform access with --bucket",
    "storage.publicAccessPrevention": "name a bucket that nobody outside can read with --bucket",
}
_CONSTRAINT: Final = re.compile(r"constraints?/?'? ?(?:constraints/)?([a-z]+(?:\.[a-z]+)?\.[a-zA-Z]+)")


class Session:
    """The calls of one set-up.

    Args:
        api: The session with Google.
        project: The project's id.
        say: Told what is waited for.
    """

    def __init__(self, api: Google, project: str, say: Say = lambda _: None) -> None:
        self._api = api
        self.project = project
        self.say = say
        self.new_apis: set[str] = set()  # that were enabled just now: the first words of their host names
        self.calls = 0

    def ask(self, call: Call) -> Answer:
        """Make one call, and return its answer, whatever it is."""
        self.calls += 1
        within = 150.0 if call.path.endswith("/wait") else 0.0
        return self._api.call(
            call.method, call.service, call.path, call.body, dict(call.params) or None, within, repeats=True
        )

    def look(self, call: Call, *, absent: tuple[int, ...] = (404,)) -> Mapping[str, Any] | None:
        """Return what is there; None if nothing is. Raises SetupError."""
        answer = self._settled(call, ())
        if answer.ok:
            return answer.body
        if answer.status in absent:
            return None
        raise self.refused(answer, call)

    def make(self, call: Call, *further: Passing) -> Answer:
        """Make or remove something, and return the answer, which may be that it is there (409), is not there (404), has
        changed meanwhile (412), or is in use. Raises SetupError for all others."""
        answer = self._settled(call, (*PASSING, *further))
        if answer.ok or answer.status in (404, 409, 412) or IN_USE in str(answer.body):
            return answer
        raise self.refused(answer, call)

    def _settled(self, call: Call, passing: tuple[Passing, ...]) -> Answer:
        if call.service in self.new_apis:
            passing = (*passing, NEW_API)
        deadline, pause, told = time.monotonic() + PATIENCE, FIRST_PAUSE, ""
        while True:
            answer = self.ask(call)
            met = next((one for one in passing if _is(one, answer)), None)
            if answer.ok or met is None or time.monotonic() + pause > deadline:
                return answer
            if told != met.why:
                self.say(f"waiting: {met.why}")
                told = met.why
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def until(self, call: Call, is_done: Callable[[Mapping[str, Any]], bool], what: str) -> Mapping[str, Any]:
        """Ask until something is done, at first a moment later. Raises SetupError after some minutes."""
        deadline, pause = time.monotonic() + PATIENCE, FIRST_PAUSE
        self.say(f"waiting: {what}")
        while time.monotonic() < deadline:
            time.sleep(pause)
            found = self.look(call)
            if found is not None and is_done(found):
                return found
            pause = min(2 * pause, LONGEST_PAUSE)
        raise SetupError(f"{what} is not done after {PATIENCE:g} s: run the same command again, which goes on")

    def ended(self, operation: Mapping[str, Any], what: str) -> Mapping[str, Any] | None:
        """Wait for an operation of the Compute API, which answers when it has ended or after two minutes; None if it is
        not known any more. Raises SetupError after some minutes.
        """
        deadline = time.monotonic() + PATIENCE
        found: Mapping[str, Any] | None = operation
        while found is not None and found.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise SetupError(f"{what} is not done after {PATIENCE:g} s: run the same command again, which goes on")
            answer = self.make(call := wait(str(found.get("selfLink"))))
            if not answer.ok and answer.status != 404:
                raise self.refused(answer, call)
            found = answer.body if answer.ok else None
        return found

    def pause(self, why: str) -> None:
        """Wait a moment, and say why."""
        self.say(f"waiting: {why}")
        time.sleep(FIRST_PAUSE)

    def explained(self, said: str) -> str:
        """Return what an operation says, with the way round if a policy of the organisation is behind it."""
        found = _CONSTRAINT.search(said)
        return said if found is None else _stopped(found[1], said)

    def refused(self, answer: Answer, call: Call) -> SetupError:
        return SetupError(sentence(answer, call, self.project))


def _is(passing: Passing, answer: Answer) -> bool:
    return answer.status in passing.statuses and re.search(passing.says, str(answer.body)) is not None


def sentence(answer: Answer, call: Call, project: str) -> str:
    """Return what an answer means for a set-up: what happened, and what to do."""
    status, text = answer.status_of(), str(answer.body)
    said = " ".join(status.message.split()).rstrip(".")
    if re.search(r"UREQ_PROJECT_BILLING|[Bb]illing account for project|BILLING_DISABLED|accountDisabled", text):
        return (
            f"The project {project} has no billing account that is open, so its APIs cannot be enabled. Link one at "
            f"{BILLING.format(project=project)} and run the same command again ({said})"
        )
    if "permitted customer" in text:
        return _stopped("iam.allowedPolicyMemberDomains", said)
    if (found := _CONSTRAINT.search(text)) is not None:
        return _stopped(found[1], said)
    if GCLOUD in text:
        return (
            f"Google counts these calls against gcloud's own project {GCLOUD}, which has no such API, and not against "
            f"{project}: gcloud auth application-default set-quota-project {project} ({said})"
        )
    context = CallContext(project, service=call.service)
    return api_errors.classify(status, context).sentence


def _stopped(constraint: str, said: str) -> str:
    way = WAYS.get(constraint) or api_errors.CONSTRAINTS.get(constraint, "").format(
        options="TpuVm", service="the API", images="the image's project"
    )
    way = way or "ask whoever administers the organisation for an exception"
    return f"The organisation's policy constraints/{constraint} stops this: {way} ({said})"
