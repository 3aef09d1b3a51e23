"""Finds what of a set-up is there, is missing, or differs from the table so that it cannot be used: reads alone.

Nothing is read by an API that is not enabled: what it would show counts as missing, until its creation says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import SetupError
from kinetic_orchestration.platforms.google.rest.client import Answer
from kinetic_orchestration.platforms.google.setup import manifest as manifests
from kinetic_orchestration.platforms.google.setup import requests, table
from kinetic_orchestration.platforms.google.setup.manifest import Manifest
from kinetic_orchestration.platforms.google.setup.session import GCLOUD, Session, sentence
from kinetic_orchestration.platforms.google.setup.table import (
    ACCOUNT,
    BUCKET,
    MARK,
    PROJECT,
    Account,
    Bucket,
    Firewall,
    Grant,
    Item,
    Network,
    Role,
    Router,
    Setup,
    Subnetwork,
    Wish,
)

Json = Mapping[str, Any]
THERE, ABSENT, DELETED, LACKING = "there", "missing", "deleted", "lacks something"
DEFAULT: Final = "default"
RESOURCES: Final = "cloudresourcemanager.googleapis.com"


class Found(NamedTuple):
    """An item as it is. `state`: LACKING is what `kinor init` adds to. `notes`: what differs and is left as it is."""

    item: Item
    state: str
    notes: tuple[str, ...] = ()
    body: Json = MappingProxyType({})

    @property
    def ours(self) -> bool:
        """Return True if it says that it was made by `kinor init`."""
        if isinstance(self.item, Bucket):
            key, value = table.LABEL
            return bool((self.body.get("labels") or {}).get(key) == value)
        return str(self.body.get("description", "")).startswith(MARK)


@dataclass(frozen=True)
class Seen:
    """A project as it is beside a set-up.

    Attributes:
        made: The set-up.
        off: The services of it that are not enabled.
        found: Each item as it is, in the order of the table.
        policies: Those that were read, by what they are on.
        agent: Cloud TPU's own account has its role.
        manifest: What an earlier run has kept; None if there was none.
    """

    made: Setup
    off: tuple[str, ...]
    found: tuple[Found, ...]
    policies: Mapping[tuple[str, str], Json] = field(default_factory=dict)
    agent: bool = False
    manifest: Manifest | None = None

    @property
    def missing(self) -> tuple[Found, ...]:
        return tuple(one for one in self.found if one.state != THERE)

    @property
    def is_whole(self) -> bool:
        """Return True if nothing is left to be made."""
        kept = self.manifest is not None and self.manifest.covers(self.made.wish)
        return not self.off and not self.missing and self.agent and kept

    @property
    def notes(self) -> Iterator[str]:
        for one in self.found:
            for note in one.notes:
                yield f"{table.name_of(one.item)}: {note}"


# What whoever sets up needs, once: (permission, the role that has it, what it is for).
ADMINISTRATOR: Final = (
    ("serviceusage.services.enable", "roles/serviceusage.serviceUsageAdmin", "apis"),
    ("iam.serviceAccounts.create", "roles/iam.serviceAccountAdmin", Account),
    ("iam.roles.create", "roles/iam.roleAdmin", Role),
    ("resourcemanager.projects.setIamPolicy", "roles/resourcemanager.projectIamAdmin", PROJECT),
    ("iam.serviceAccounts.setIamPolicy", "roles/iam.serviceAccountAdmin", ACCOUNT),
    ("storage.buckets.create", "roles/storage.admin", Bucket),
    ("storage.buckets.setIamPolicy", "roles/storage.admin", BUCKET),
    ("compute.networks.create", "roles/compute.networkAdmin", Network),
    ("compute.subnetworks.create", "roles/compute.networkAdmin", Subnetwork),
    ("compute.routers.create", "roles/compute.networkAdmin", Router),
    ("compute.firewalls.create", "roles/compute.securityAdmin", Firewall),
)


def administrator_roles() -> tuple[str, ...]:
    """The roles of whoever sets up a project; an owner has them all."""
    return tuple(dict.fromkeys(role for _, role, _ in ADMINISTRATOR))


class Project(NamedTuple):
    """A project by its services."""

    number: str
    off: tuple[str, ...]


def project(session: Session, names: Sequence[str]) -> Project:
    """Ask which services a project has, and so for its number: by the one API that new projects have enabled.

    Raises:
        SetupError: There is no such project, or the caller may not see it.
    """
    call = requests.services(session.project, names)
    answer = session.ask(call)
    if not answer.ok:
        raise SetupError(_unseen(answer, call, session.project))
    shown = [one for one in answer.body.get("services", ()) if isinstance(one, Mapping)]
    number = next((str(one.get("parent", "")).removeprefix("projects/") for one in shown), "")
    if not number.isdecimal():
        raise SetupError(f"Service Usage does not name the number of {session.project}: {str(answer.body)[:200]}")
    enabled = {str((one.get("config") or {}).get("name")) for one in shown if one.get("state") == "ENABLED"}
    enabled |= {str(one.get("name", "")).rpartition("/")[2] for one in shown if one.get("state") == "ENABLED"}
    return Project(number, tuple(name for name in names if name not in enabled))


def _unseen(answer: Answer, call: requests.Call, project: str) -> str:
    said = sentence(answer, call, project)
    if answer.status not in (403, 404) or "has not been used" in said or GCLOUD in said:
        return said
    return (
        f"There is no project {project}, or these credentials may not see it: `gcloud projects list` shows those that "
        f"they may, and `gcloud projects create {project}` makes one. Whoever sets a project up is its owner, or has "
        f"{', '.join(administrator_roles())} ({said})"
    )


def with_network(session: Session, wish: Wish, off: Sequence[str]) -> Wish:
    """Return the answers with a network: the one named; by default the project's own `default`, or one that is made
    where an organisation has its projects made without.

    Raises:
        SetupError: The network that is named, and is not to be made, is not there.
    """
    if wish.own_network or "compute.googleapis.com" in off:
        return wish
    made = table.setup(wish)
    if session.look(requests.network(made)) is not None:
        return wish
    if wish.network == DEFAULT:
        return replace(wish, network=table.NETWORK, own_network=True)
    raise SetupError(
        f"The project {wish.project} has no network {wish.network}: name one that it has, or let it be made with "
        f"--own-network. `gcloud compute networks list --project={wish.project}` shows them"
    )


def examine(session: Session, made: Setup, off: Sequence[str] = ()) -> Seen:
    """Look at all of a set-up.

    Args:
        session: The calls.
        made: The set-up.
        off: Services that are not enabled, by which nothing is looked for.

    Raises:
        SetupError: Something of that name is there and cannot be used, or cannot be seen.
    """
    hidden = {name.partition(".")[0] for name in off}
    found: dict[str, Found] = {}
    for item in table.items(made):
        if not isinstance(item, Grant):
            found[table.name_of(item)] = _found(session, item, made, found, hidden)
    policies = _policies(session, made, found, hidden)
    for grant in made.grants:
        told = policies.get((grant.where, grant.name))
        state = THERE if told is not None and requests.has(told, grant) else ABSENT
        found[table.name_of(grant)] = Found(grant, state)
    kept = None
    if found[table.name_of(made.bucket)].state == THERE:
        kept = read_manifest(session, made.wish.project, made.bucket.name)
    agent = requests.has(policies.get((PROJECT, made.wish.project), {}), made.agent)
    return Seen(made, tuple(off), tuple(found.values()), policies, agent, kept)


def widened(seen: Seen, made: Setup) -> Seen:
    """Return what is known for a set-up with more items, none of which was looked for: their creation tells."""
    known = {table.name_of(one.item): one for one in seen.found}
    names = {table.name_of(item): item for item in table.items(made)}
    return replace(seen, made=made, found=tuple(known.get(name, Found(item, ABSENT)) for name, item in names.items()))


def read_manifest(session: Session, project: str, bucket: str) -> Manifest | None:
    """Return the manifest in a bucket; None if there is none. Raises SetupError."""
    call = requests.manifest(bucket)
    answer = session.ask(call)
    if answer.status == 404:
        return None
    if not answer.ok:
        said = session.refused(answer, call)
        raise SetupError(f"the manifest of an earlier run, gs://{bucket}/{table.MANIFEST}: {said}")
    return manifests.read(answer.body, project, bucket)


def _found(session: Session, item: Item, made: Setup, found: Mapping[str, Found], hidden: set[str]) -> Found:
    call = requests.look(item, made)
    network = next((one for one in found.values() if isinstance(one.item, Network)), None)
    if call.service in hidden or (network is not None and network.state == ABSENT and call.service == "compute"):
        return Found(item, ABSENT)  # what is in a network is not there before it
    told = _shown(session, item, made, call)
    return Found(item, ABSENT) if told is None else compared(item, told, made)


def _shown(session: Session, item: Item, made: Setup, call: requests.Call) -> Json | None:
    if not isinstance(item, Bucket):
        return session.look(call)
    answer = session.ask(call)
    if answer.ok:
        return answer.body
    if answer.status == 404:
        return None
    if answer.status == 403 and "storage.buckets.get" in str(answer.body):
        raise SetupError(foreign(item, made))
    raise session.refused(answer, call)


def foreign(bucket: Bucket, made: Setup) -> str:
    """Return what to do about a bucket's name that somebody else has: it is unique in the world."""
    other = table.other_bucket(made.wish.number)
    return (
        f"The bucket gs://{bucket.name} is somebody else's, or you may not see it: names of buckets are unique in the "
        f"world. Take another with --bucket, for example --bucket {other}, which has your project's number"
    )


def compared(item: Item, told: Json, made: Setup) -> Found:
    """Hold what is there against the table.

    Raises:
        SetupError: It cannot be used as it is.
    """
    stops: list[str] = []
    notes: list[str] = []
    state = THERE
    if isinstance(item, Bucket):
        stops, notes = _bucket(item, told, made)
    elif isinstance(item, Account):
        stops = [f"it is disabled: gcloud iam service-accounts enable {item.email}"] if told.get("disabled") else []
    elif isinstance(item, Role):
        if told.get("deleted"):
            state = DELETED
        elif set(item.permissions) - set(told.get("includedPermissions") or ()):
            state = LACKING
    else:
        stops, notes = _in_network(item, told)
    if stops:
        raise SetupError(f"{table.name_of(item)} is there, and cannot be used: {'; '.join(stops)}")
    return Found(item, state, tuple(notes), told)


def _bucket(item: Bucket, told: Json, made: Setup) -> tuple[list[str], list[str]]:
    stops, notes = [], []
    number = str(told.get("projectNumber") or "")
    if number and number != made.wish.number:
        stops.append(
            f"it is of another project ({number}). Take another with --bucket {table.other_bucket(made.wish.number)}"
        )
    if told.get("retentionPolicy"):
        stops.append(
            "it has a retention policy, and a store replaces and deletes its objects: gcloud storage buckets update "
            f"gs://{item.name} --clear-retention-period, or another --bucket"
        )
    if told.get("defaultEventBasedHold"):
        stops.append(
            f"it holds new objects: gcloud storage buckets update gs://{item.name} --no-default-event-based-hold"
        )
    access = told.get("iamConfiguration") or {}
    if not (access.get("uniformBucketLevelAccess") or {}).get("enabled"):
        stops.append(
            "rights on it cannot be narrowed without uniform access: gcloud storage buckets update "
            f"gs://{item.name} --uniform-bucket-level-access"
        )
    if access.get("publicAccessPrevention") != item.public_access:
        notes.append(
            f"it can be made public: gcloud storage buckets update gs://{item.name} --public-access-prevention"
        )
    kept = str((told.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or "0")
    if kept != "0":
        notes.append(
            f"what is overwritten is kept for {kept} s and billed, each heartbeat of a job: gcloud storage buckets "
            f"update gs://{item.name} --clear-soft-delete"
        )
    where = str(told.get("location") or "")
    if where.lower() != item.location:
        notes.append(f"it is in {where}, and not in {item.location}: data is billed for hosts elsewhere")
    return stops, notes


def _in_network(item: Item, told: Json) -> tuple[list[str], list[str]]:
    if isinstance(item, Network):
        if told.get("autoCreateSubnetworks"):
            return [f"it makes its subnetworks by itself: use it as it is, with --network {item.name} alone"], []
        return [], []
    assert isinstance(item, Subnetwork | Firewall | Router)
    if str(told.get("network") or "").rpartition("/")[2] != item.network:
        return [f"it is in another network, {told.get('network')}: name yours otherwise with --network"], []
    if isinstance(item, Subnetwork):
        notes = []
        if not told.get("privateIpGoogleAccess"):
            notes.append(
                "hosts without external addresses do not reach Google's APIs: gcloud compute networks subnets update "
                f"{item.name} --region={item.region} --enable-private-ip-google-access"
            )
        if told.get("ipCidrRange") != item.range:
            notes.append(f"its range is {told.get('ipCidrRange')}, and the firewall is for {item.range}: --range")
        return [], notes
    if isinstance(item, Firewall):
        return [], _differs(item, told)
    return [], [] if told.get("nats") else [
        f"it has no NAT: gcloud compute routers nats create {item.nat} --router={item.name}"
    ]


def _differs(item: Firewall, told: Json) -> list[str]:
    allowed = {(str(one.get("IPProtocol")), *(one.get("ports") or ())) for one in told.get("allowed") or ()}
    wanted = {(one.protocol, *one.ports) for one in item.allowed}
    sources = set(told.get("sourceRanges") or ())
    if told.get("disabled"):
        return [f"it is disabled: gcloud compute firewall-rules update {item.name} --no-disabled"]
    if set(item.sources) <= sources and (wanted <= allowed or ("all",) in allowed):
        return []
    return [f"it does not allow {', '.join(one.protocol for one in item.allowed)} from {', '.join(item.sources)}"]


def _policies(
    session: Session, made: Setup, found: Mapping[str, Found], hidden: set[str]
) -> dict[tuple[str, str], Json]:
    """Read the policies of what is there."""
    account = made.account
    there = {
        PROJECT: True,
        BUCKET: found[table.name_of(made.bucket)].state == THERE,
        ACCOUNT: account is None or found[table.name_of(account)].state == THERE,
    }
    read: dict[tuple[str, str], Json] = {}
    for where, name in dict.fromkeys((one.where, one.name) for one in made.grants):
        call = requests.policy(where, name)
        if there[where] and call.service not in hidden:
            told = session.look(call)
            if told is None:
                raise SetupError(f"There is no service account {name}: name one that exists with --service-account")
            read[where, name] = told
    return read


def lacking(session: Session, seen: Seen) -> tuple[tuple[str, str], ...]:
    """Ask which permissions for what is to be made the caller has not on the project, each with its role. What somebody
    may do on one bucket or one account alone is not seen so: only a refusal of the call itself tells."""
    kinds: set[object] = {type(one.item) for one in seen.missing}
    kinds |= {one.item.where for one in seen.missing if isinstance(one.item, Grant)}
    kinds |= {"apis"} if seen.off else set()
    wanted = {permission: role for permission, role, what in ADMINISTRATOR if what in kinds}
    if not wanted or (RESOURCES in seen.off and RESOURCES.partition(".")[0] not in session.new_apis):
        return ()
    answer = session.ask(requests.permissions(session.project, list(wanted)))
    if not answer.ok:
        return ()  # each call says what it lacks
    granted = answer.body.get("permissions") or ()
    return tuple((permission, role) for permission, role in wanted.items() if permission not in granted)


def refusal(missing: Sequence[tuple[str, str]], project: str) -> SetupError:
    """The error of whoever lacks rights: nothing was made."""
    grants = "\n".join(
        f"  gcloud projects add-iam-policy-binding {project} --member=user:YOU --role={role} --condition=None"
        for role in dict.fromkeys(role for _, role in missing)
    )
    return SetupError(
        f"These credentials may not set up {project}, and nothing was made: {', '.join(name for name, _ in missing)} "
        f"missing. An owner runs this command, or grants, once:\n{grants}"
    )
