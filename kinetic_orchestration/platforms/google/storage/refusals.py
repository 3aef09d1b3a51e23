"""The meaning of Google Cloud Storage's errors: worth another try, or a sentence with advice, row by row.

A pure table of refusals that only buckets have; `api_errors` has those of all Google APIs. It does not know which verb
is tried again, nor how often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import Corrupt, Denied, StoreError, Unreachable
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.rest import retries

_SLOW_DOWN: Final = {"rateLimitExceeded", "userRateLimitExceeded"}
_CORRUPT: Final = "corrupt"
_POLICY: Final = "orgPolicyConstraintFailed"
_CODES: Final = {
    400: api_errors.INVALID,
    401: api_errors.UNAUTHENTICATED,
    403: api_errors.DENIED,
    404: api_errors.NOT_FOUND,
    409: api_errors.EXISTS,
    412: api_errors.PRECONDITION,
}


class ApiError(NamedTuple):
    """An error in Google's words. Status 0: there was no answer at all."""

    status: int
    reason: str
    message: str
    details: tuple[Mapping[str, Any], ...] = ()

    @property
    def transient(self) -> bool:
        return self.status in retries.TRANSIENT or self.reason in _SLOW_DOWN

    @property
    def in_doubt(self) -> bool:
        """True if the request may have been carried out all the same."""
        return self.transient and self.status != retries.REFUSED and self.reason not in _SLOW_DOWN

    @property
    def corrupt(self) -> bool:
        return self.reason == _CORRUPT

    @property
    def no_bucket(self) -> bool:
        return self.status == 404 and "bucket does not exist" in self.message

    @property
    def lost_the_race(self) -> bool:
        """A condition on the generation did not hold. Policies are refused with the same status."""
        return self.status == 412 and self.reason != _POLICY and not _CONSTRAINT.search(self.message)


def read_error(error: Exception) -> ApiError | None:
    """The error in Google's form; None if it is neither Google's nor a connection error."""
    import requests
    import urllib3
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError

    try:
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    except ImportError:  # before 3.0
        from google.resumable_media import DataCorruption, InvalidResponse

    if isinstance(error, GoogleAPICallError | InvalidResponse):
        return _of_response(error.response, str(getattr(error, "message", error)))
    if isinstance(error, DataCorruption):
        return ApiError(0, _CORRUPT, "what arrives is not what its checksum is of")
    # The bytes of an object are read past `requests`, from the connection below it.
    ways = (requests.RequestException, urllib3.exceptions.HTTPError, TransportError, ConnectionError, TimeoutError)
    if isinstance(error, ways):
        return ApiError(0, "", _innermost(error))
    return None


def _of_response(response: Any, message: str) -> ApiError:
    if response is None:
        return ApiError(0, "", message)
    status = int(response.status_code)
    try:
        error = response.json()["error"]
        reason = next((str(entry["reason"]) for entry in error.get("errors", ()) if entry.get("reason")), "")
        return ApiError(status, reason, str(error["message"]) or message, tuple(error.get("details", ())))
    except (ValueError, KeyError, TypeError, AttributeError):  # of an object's bytes, errors come as plain text
        return ApiError(status, "", str(response.text).strip()[:500] or message)


def _innermost(error: BaseException) -> str:
    while (deeper := error.__cause__) is not None:
        error = deeper
    return str(error) or type(error).__name__


_CONSTRAINT: Final = re.compile(r"[cC]onstraints/(?P<constraint>[a-z]+\.\w+)")

# (what status, reason and message match, the class, what helps). Groups of the match fill the sentence.
_ROWS: Final[list[tuple[re.Pattern[str], type[StoreError], str]]] = [
    (
        _CONSTRAINT,
        Denied,
        (
            "The organisation's policy constraints/{constraint} forbids it. See what it allows with gcloud "
            "org-policies describe {constraint} --effective --project=PROJECT, and use a bucket that keeps to it."
        ),
    ),
    (
        re.compile(r"[Rr]equester pays|[uU]serProjectMissing"),
        Denied,
        "Whoever uses this bucket pays for it: name the project that does with KINETIC_QUOTA_PROJECT.",
    ),
    (
        re.compile(r"userProject(AccessDenied|AccountProblem|Invalid)"),
        Denied,
        "Requests may not be counted against the quota project: name another with KINETIC_QUOTA_PROJECT.",
    ),
    (
        re.compile(r"Cloud KMS|cloudkms|cloudKms"),
        Denied,
        (
            "Cloud Storage itself may not use the bucket's default key. Let it: gcloud storage service-agent "
            "--project=PROJECT --authorize-cmek=KEY."
        ),
    ),
    (
        re.compile(r"retentionPolicyNotMet|retention policy|objectUnderActiveHold|active hold"),
        Denied,
        (
            "A store replaces and deletes its objects, so its bucket can have no retention policy and no default "
            "hold: gcloud storage buckets update gs://{bucket} --clear-retention-period "
            "--no-default-event-based-hold, or another bucket with KINETIC_STORE."
        ),
    ),
    (
        re.compile(r"(?P<permission>storage\.\w+\.\w+)"),
        Denied,
        (
            "The permission {permission} is missing. Grant it, with all others that a store needs: gcloud storage "
            "buckets add-iam-policy-binding gs://{bucket} --member={member} --role=roles/storage.objectUser."
        ),
    ),
    (
        re.compile(r"^404 .*bucket does not exist"),
        StoreError,
        (
            "There is no bucket {bucket}. Make it: gcloud storage buckets create gs://{bucket} --location=REGION "
            "--uniform-bucket-level-access, in the region of your TPUs; or name another with KINETIC_STORE."
        ),
    ),
]
_CALLER: Final = re.compile(r"[\w.+-]+@[\w.-]+\w")


def refusal(problem: ApiError, verb: str, name: str, url: str, waited: float = 0.0) -> StoreError:
    """The exception for users: the event in Google's words, then the advice."""
    happened = f"Cannot {verb} {name} (store {url})"
    words = problem.message.strip().rstrip(".") or "no reason was given"
    if problem.corrupt:
        return Corrupt(f"{happened}: {words}, however often it is asked for.")
    if problem.transient:
        answer = f"it answered {problem.status} ({words})" if problem.status else f"it could not be reached ({words})"
        return Unreachable(f"{happened}: for {waited:.0f} s {answer}. It may be better in a while; try again.")
    bucket = url.removeprefix("gs://").partition("/")[0]
    for pattern, kind, advice in _ROWS:
        if found := pattern.search(f"{problem.status} {problem.reason} {problem.message}"):
            blanks = {"bucket": bucket, "member": _member(problem.message), **found.groupdict()}
            return kind(f"{happened}: {words} ({problem.status}). {advice.format_map(blanks)}")
    code = _CODES.get(problem.status, api_errors.UNKNOWN)
    trouble = api_errors.classify(api_errors.Status(code, problem.message, problem.details))
    kind = Denied if code in (api_errors.DENIED, api_errors.UNAUTHENTICATED) else StoreError
    return kind(f"{happened}: {trouble.sentence}.")


def _member(message: str) -> str:
    caller = _CALLER.search(message)
    if caller is None:
        return "user:YOU"
    return f"{'serviceAccount' if caller[0].endswith('gserviceaccount.com') else 'user'}:{caller[0]}"
