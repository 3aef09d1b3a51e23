"""Checks before a job is submitted that Google Cloud will let it run: credentials, permissions, resources.

Every failed check names the command or the role that fixes it. A submitter checks once in ten minutes (`require`),
`doctor` on every call (`examine`). The account of the VMs is another's: a host checks itself that it may delete its
slice, before it runs anything.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, KineticError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import Answer, Google, google
from kinetic_orchestration.platforms.google.storage.location import bucket_of, location_of
from kinetic_orchestration.platforms.google.storage.requests import impatient
from kinetic_orchestration.platforms.google.storage.store import open_gcs
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.protocol.system.parallel import side_by_side

LASTS = 600.0
PATIENCE = 4.0  # for a bucket, while a user waits for a diagnosis
PROBE = "probes/"

# A submitter's permissions; one that may create a slice must be able to remove it. The Cloud TPU API asks for those
# of nodes on queued resources, too (https://cloud.google.com/iam/docs/roles-permissions/tpu has no others).
PERMISSIONS = ("tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list")
ACT_AS = "iam.serviceAccounts.actAs"
ACCOUNT_USER = "roles/iam.serviceAccountUser"
SECRETS = (
    "secretmanager.secrets.create",
    "secretmanager.secrets.get",
    "secretmanager.secrets.delete",
    "secretmanager.versions.add",
)


Check = Callable[[Settings, Google], Finding]

_passed: dict[tuple[Any, ...], float] = {}
_lock = threading.Lock()


def require(settings: Settings, checks: Sequence[Check] = (), about: tuple[Any, ...] = ()) -> None:
    """Refuse to submit what cannot be made, or could not be removed again. What passed is asked again a while later.

    Args:
        settings: Those in force.
        checks: Those of the API that creates the VMs; by default, Cloud TPU's.
        about: What those checks depend on besides the settings.
    """
    place = settings.project, settings.store, settings.deployment, settings.emulator
    key = (os.getpid(), *place, settings.impersonate, settings.quota_project, settings.service_account, about)
    with _lock:
        if time.monotonic() - _passed.get(key, -LASTS) < LASTS:
            return
    failed = [finding for finding in _needed(settings, checks) if finding.state == FAILED]
    if failed:
        text = "\n".join(f"  {line}" for line in _told(failed))
        raise BackendError(
            f"Google Cloud is not ready for this job, and nothing was submitted:\n{text}", "configuration"
        )
    with _lock:
        _passed[key] = time.monotonic()


def _told(failed: Sequence[Finding]) -> Iterator[str]:
    """Say what failed, in one sentence for all that the same fix helps against."""
    for fix in dict.fromkeys(finding.fix for finding in failed):
        alike = [finding for finding in failed if finding.fix == fix]
        for same in [alike] if fix else [[finding] for finding in alike]:
            yield f"{', '.join(finding.name for finding in same)}: {same[0].found}. {fix}".rstrip()


def examine(settings: Settings, checks: Sequence[Check] = (), further: Sequence[Check] = ()) -> Iterator[Finding]:
    """Run all checks, even after a failure: those of `require`, then informative ones.

    Args:
        settings: Those in force.
        checks: Those of the API that creates the VMs; by default, Cloud TPU's.
        further: Informative ones about that API; by default, about Cloud TPU's.
    """
    found = list(_needed(settings, checks, PATIENCE))
    yield from found
    if any(finding.name in ("credentials", "project") and finding.state == FAILED for finding in found):
        return
    with google(settings) as api:
        informative = (_zones, _secrets, *(further or (_quota, _keys)))
        yield from _concurrently([partial(check, settings, api) for check in informative])


def _needed(settings: Settings, own: Sequence[Check], patience: float | None = None) -> Iterator[Finding]:
    who = _credentials(settings)
    yield who
    if who.state == FAILED:
        return
    if not settings.project:
        yield Finding("project", FAILED, "no project is named", "Set KINETIC_PROJECT, or project=")
        return
    try:
        with google(settings) as api:
            checks = [partial(check, settings, api) for check in (*(own or (_tpu_api, _permissions)), _act_as)]
            yield from _concurrently([*checks, partial(_bucket, settings, patience)])
    except CredentialsError as error:  # they exist, but give no token
        yield Finding("credentials", FAILED, "they give no token", str(error))


def _concurrently(checks: Sequence[Callable[[], Finding]]) -> list[Finding]:
    """Run checks concurrently, as each takes a round trip or more; with the current credentials of this process."""
    acting = credentials.as_now()

    def within(check: Callable[[], Finding]) -> Finding:
        with acting():
            return check()

    return side_by_side(within, checks, len(checks))


def _credentials(settings: Settings) -> Finding:
    try:
        identity = credentials.credentials(settings)
    except KineticError as error:
        return Finding("credentials", FAILED, "there are none", str(error))
    kind = type(identity).__module__.removeprefix("google.")
    who = getattr(identity, "service_account_email", "") or kind
    return Finding("credentials", OK, "none are needed by the emulator" if settings.emulator else str(who))


def _tpu_api(settings: Settings, api: Google) -> Finding:
    answer = api.call("GET", "tpu", f"v2/projects/{settings.project}/locations", params={"pageSize": "1000"})
    if not answer.ok:
        return _refused("Cloud TPU API", answer, settings)
    there = [str(entry.get("locationId", "")) for entry in answer.body.get("locations", ())]
    if absent := ", ".join(zone for zone in settings.zones if zone not in there):
        found = f"{absent}: not among the {len(there)} zones that {settings.project} may use"
        return Finding(
            "Cloud TPU API", WARNING, found, "Name others with KINETIC_ZONES: gcloud compute tpus locations list"
        )
    return Finding("Cloud TPU API", OK, f"enabled in {settings.project}, {len(there)} zones")


def _permissions(settings: Settings, api: Google) -> Finding:
    answer = test_permissions(settings, api, PERMISSIONS)
    if not answer.ok:
        return unchecked("permissions", answer, settings)
    missing = missing_of(answer, PERMISSIONS)
    if not missing:
        return Finding("permissions", OK, "TPU VMs may be made, seen and deleted")
    lack = "they could be made and not be deleted" if "tpu.nodes.delete" in missing else "TPU VMs cannot be managed"
    fix = f"Grant them: {api_errors.grant('roles/tpu.admin', settings.project)}"
    return Finding("permissions", FAILED, f"{', '.join(missing)} missing in {settings.project}: {lack}", fix)


def _act_as(settings: Settings, api: Google) -> Finding:
    """Check the permission to act as the VMs' account, on the project or on the account itself."""
    account = settings.service_account
    answer = test_permissions(settings, api, (ACT_AS,))
    if answer.ok and not missing_of(answer, (ACT_AS,)):
        return Finding("service account", OK, f"VMs may run as {account or 'the default account of Compute Engine'}")
    if not account:
        if not answer.ok:  # of which "permissions" tells, too
            return unchecked("service account", answer, settings, "iam")._replace(state=WARNING)
        fix = f"Name one with KINETIC_SERVICE_ACCOUNT, or {api_errors.grant(ACCOUNT_USER, settings.project)}"
        return Finding("service account", WARNING, f"{ACT_AS} is not granted on the whole project", fix)
    path = f"v1/projects/-/serviceAccounts/{account}:testIamPermissions"
    own = api.call("POST", "iam", path, {"permissions": [ACT_AS]})
    if own.ok and not missing_of(own, (ACT_AS,)):
        return Finding("service account", OK, f"VMs may run as {account}")
    if not answer.ok and not own.ok:
        return unchecked("service account", answer, settings, "iam")._replace(state=WARNING)
    fix = (
        f"Grant it: gcloud iam service-accounts add-iam-policy-binding {account} --member=user:YOU "
        f"--role={ACCOUNT_USER}"
    )
    return Finding("service account", FAILED if own.ok else WARNING, f"{ACT_AS} on {account} is missing", fix)


def _bucket(settings: Settings, patience: float | None) -> Finding:
    """Check the bucket as a job uses it: an object is written and removed again."""
    name = f"{PROBE}{secrets.token_hex(8)}"
    try:
        with impatient(patience) if patience is not None else nullcontext():
            store = open_gcs(settings.store, settings.deployment)
        store.put(name, b"may this be written?")
        store.delete(name)
    except KineticError as error:
        return Finding("bucket", FAILED, f"{settings.store} cannot be used", str(error))
    return Finding("bucket", OK, f"{store.url} can be written and cleaned")


def _zones(settings: Settings, api: Google) -> Finding:
    """Check if data crosses regions between the bucket and the hosts."""
    del api  # the location is requested once in a process, at its first use
    try:
        bucket = location_of(settings)
    except BackendError as error:
        if settings.zones:
            return Finding("egress", OK, f"not known: where the bucket {bucket_of(settings)} lies cannot be read")
        return Finding("egress", FAILED, "no zones are named, and those near the bucket are not known", str(error))
    if not settings.zones:
        return Finding("egress", OK, f"none by default: jobs run in zones of the bucket's {bucket}")
    text = regions.egress(settings.zones, bucket)
    if all(map(bucket.holds, settings.zones)):
        return Finding("egress", OK, text)
    return Finding("egress", WARNING, text, "Name zones of the bucket's location alone, or take a bucket in theirs")


def _secrets(settings: Settings, api: Google) -> Finding:
    answer = test_permissions(settings, api, SECRETS)
    if not answer.ok:
        return unchecked("Secret Manager", answer, settings, "secretmanager")
    missing = missing_of(answer, SECRETS)
    if missing and SECRETS[0] not in missing:  # a project does not show the grants of a condition on their names
        found = f"secrets may be made; that {', '.join(missing)} are granted for kinetic-* cannot be asked beforehand"
        return Finding("Secret Manager", OK, found)
    if missing:
        grant = api_errors.grant("roles/secretmanager.admin", settings.project)
        fix = f"Only jobs that capture credentials need it: {grant}"
        return Finding("Secret Manager", WARNING, f"{', '.join(missing)} missing", fix)
    return Finding("Secret Manager", OK, "captured credentials can be kept for hosts")


def _quota(settings: Settings, api: Google) -> Finding:
    """Report the quotas that the caller may read; only the create call checks them."""
    path = f"v1beta1/projects/{settings.project}/services/tpu.googleapis.com/consumerQuotaMetrics"
    answer = api.call("GET", "serviceusage", path, params={"view": "BASIC", "pageSize": "200"})
    if not answer.ok:
        return Finding("quota", OK, "not readable from here: a slice beyond it is refused at its create call, by name")
    some = sorted(_limits(answer.body.get("metrics", ())))
    if not some:
        fix = "Ask for some at console.cloud.google.com/iam-admin/quotas (service: Cloud TPU API)"
        return Finding("quota", WARNING, "no TPU quota above 0 in any place", fix)
    shown = ", ".join(some[:8])
    return Finding("quota", OK, shown if len(some) <= 8 else f"{shown} and {len(some) - 8} more")


def _limits(metrics: Any) -> Iterator[str]:
    for metric in metrics:
        for limit in metric.get("consumerQuotaLimits", ()):
            for bucket in limit.get("quotaBuckets", ()):
                where = bucket.get("dimensions") or {}
                place = where.get("zone") or where.get("region")
                if place and int(bucket.get("effectiveLimit", "0")) > 0:
                    yield f"{metric.get('displayName', metric.get('metric', ''))} {bucket['effectiveLimit']} in {place}"


def _keys(settings: Settings, api: Google) -> Finding:
    """Report the encryption keys: a bucket's own key is used for all objects written there."""
    bucket = settings.store.removeprefix("gs://").partition("/")[0]
    answer = api.call("GET", "storage", f"storage/v1/b/{bucket}", params={"fields": "encryption,location"})
    key = (answer.body.get("encryption") or {}).get("defaultKmsKeyName", "") if answer.ok else ""
    said = f"objects are encrypted with the bucket's key {key}" if key else "objects are encrypted with Google's keys"
    boot = "the Cloud TPU API has no field for a key of the VMs' boot disks"
    return Finding("encryption", OK, f"{said}; {boot}")


def test_permissions(settings: Settings, api: Google, permissions: Sequence[str]) -> Answer:
    """Ask which permissions the caller has on the project."""
    path = f"v1/projects/{settings.project}:testIamPermissions"
    return api.call("POST", "cloudresourcemanager", path, {"permissions": list(permissions)})


def missing_of(answer: Answer, permissions: Sequence[str]) -> list[str]:
    """Return those that the caller has not."""
    granted = answer.body.get("permissions", ())
    return [permission for permission in permissions if permission not in granted]


def _refused(name: str, answer: Answer, settings: Settings, service: str = "tpu") -> Finding:
    trouble = api_errors.classify(answer.status_of(), CallContext(settings.project, service=service))
    said, _, advice = trouble.sentence.partition("): ")
    return Finding(name, FAILED, f"{said})" if advice else said, advice[:1].upper() + advice[1:])


def unchecked(name: str, answer: Answer, settings: Settings, service: str = "tpu") -> Finding:
    """The finding of a check that neither succeeded nor was denied; `service` is the API that it is about."""
    refused = _refused(name, answer, settings, service)
    fatal = api_errors.classify(answer.status_of(), CallContext(settings.project))
    enable = "cloudresourcemanager" in refused.fix or fatal.action != api_errors.FATAL
    return refused._replace(state=WARNING if enable else FAILED)
