"""The table of all that a set-up is made of: what `kinor init` makes, and what is rendered for gcloud and Terraform.

`setup` turns the answers of whoever sets up (`Wish`) into one frozen `Setup`. REST bodies, gcloud lines and the
Terraform module are made from it and from nothing else. Pure: it knows no API and no state of any project.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import regions

MARK: Final = "Made by kinor init"  # how descriptions begin: by it `kinor deinit` knows its own
LABEL: Final = ("kinetic-setup", "init")  # of what has labels, for the same
MANIFEST: Final = "kinetic-setup.json"  # an object at the top of the bucket, where no machine's account may write
FOLDER: Final = "kinetic"  # of the store in the bucket, to which rights on objects are narrowed
SECRETS: Final = "kinetic-"  # how names of captured secrets begin
PROJECT, BUCKET, ACCOUNT = "project", "bucket", "account"  # what a role is granted on
IAP_SOURCES: Final = (
    "35.235.240.0/20"  # from which IAP's tunnels come: https://cloud.google.com/iap/docs/using-tcp-forwarding
)
RANGE: Final = "10.128.0.0/20"
NETWORK: Final = "kinetic"
MACHINES: Final = "kinetic-vm"


class Condition(NamedTuple):
    """A condition of a grant; all three parts are its identity."""

    title: str
    description: str
    expression: str


class Api(NamedTuple):
    service: str  # tpu.googleapis.com
    why: str


class Bucket(NamedTuple):
    """The store's bucket. Soft delete is off: else every beat that is overwritten is kept for days, and billed."""

    name: str
    location: str
    labels: tuple[tuple[str, str], ...] = (LABEL,)
    soft_delete_seconds: int = 0
    uniform_access: bool = True
    public_access: str = "enforced"  # its prevention


class Account(NamedTuple):
    """The service account of the machines."""

    id: str
    email: str
    title: str
    description: str


class Role(NamedTuple):
    """A custom role of the project."""

    id: str
    title: str
    description: str
    permissions: tuple[str, ...]


class Grant(NamedTuple):
    """A role for one member on the project, on the bucket, or on the account of the machines."""

    where: str  # PROJECT, BUCKET or ACCOUNT
    name: str  # the project's id, the bucket's name, or the account's email
    role: str  # roles/NAME or projects/ID/roles/NAME
    member: str
    condition: Condition | None = None


class Network(NamedTuple):
    """A network in custom mode, which has no rules by itself: hosts of one slice cannot meet without one."""

    name: str
    description: str


class Subnetwork(NamedTuple):
    name: str
    network: str
    region: str
    range: str
    description: str
    private_access: bool = True  # Google's APIs are reached without an external address


class Allowed(NamedTuple):
    protocol: str
    ports: tuple[str, ...] = ()


class Firewall(NamedTuple):
    name: str
    network: str
    description: str
    sources: tuple[str, ...]
    allowed: tuple[Allowed, ...]


class Router(NamedTuple):
    """A router with NAT for all subnetworks of its region: hosts without external addresses reach package indexes."""

    name: str
    network: str
    region: str
    nat: str
    description: str


@dataclass(frozen=True, slots=True)
class Wish:
    """The answers of whoever sets up.

    Attributes:
        project: The project's id.
        number: Its number, as IAM has it in the names of secrets. A rendering may give a reference in its place.
        region: Where bucket and subnetwork are.
        bucket: The bucket's name; "": by the project.
        network: The network of the VMs; it is made if `own_network` is True.
        own_network: A network is part of the set-up.
        range: The addresses of its subnetwork.
        account: The email of an account that exists already, for the machines; "": one is made.
        submitters: Members of policies who submit jobs and are no owners: user:EMAIL, group:…, serviceAccount:….
        shell: Submitters may open shells on running hosts, through IAP.
    """

    project: str
    number: str
    region: str
    bucket: str = ""
    network: str = "default"
    own_network: bool = False
    range: str = RANGE
    account: str = ""
    submitters: tuple[str, ...] = ()
    shell: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a set-up is made of. Account and network, and what is in it, are None or empty where what exists is
    used."""

    wish: Wish
    apis: tuple[Api, ...]
    bucket: Bucket
    account: Account | None
    machines: str  # the email of the account of the machines
    network: Network | None
    subnetwork: Subnetwork | None
    firewalls: tuple[Firewall, ...]
    router: Router | None
    roles: tuple[Role, ...]
    grants: tuple[Grant, ...]

    @property
    def store(self) -> str:
        return f"gs://{self.bucket.name}/{FOLDER}"

    @property
    def agent(self) -> Grant:
        """The role of Cloud TPU's own account, which Google makes and grants by itself when it is asked for."""
        email = f"service-{self.wish.number}@gcp-sa-tpu.iam.gserviceaccount.com"
        return Grant(PROJECT, self.wish.project, "roles/tpu.serviceAgent", f"serviceAccount:{email}")


Item = Bucket | Account | Network | Subnetwork | Firewall | Router | Role | Grant


def items(made: Setup) -> tuple[Item, ...]:
    """Return all of a set-up but its APIs, in the order in which it is made."""
    single = (made.bucket, made.account, made.network, made.subnetwork)
    there = tuple(item for item in single if item is not None)
    return (*there, *made.firewalls, *((made.router,) if made.router else ()), *made.roles, *made.grants)


def name_of(item: Item) -> str:
    """Return what plans, messages and the manifest call an item: no two items of a set-up have the same."""
    if isinstance(item, Grant):
        condition = f" if {item.condition.title}" if item.condition else ""
        return f"{item.role} for {item.member} on {item.where} {item.name}{condition}"
    if isinstance(item, Account):
        return f"service account {item.email}"
    if isinstance(item, Role):
        return f"role {item.id}"
    return f"{type(item).__name__.lower()} {item.name}"


SLICE = ("tpu.nodes.get", "tpu.nodes.list", "tpu.nodes.delete")
SUBMIT = (
    *("tpu.nodes.create", "tpu.nodes.get", "tpu.nodes.list", "tpu.nodes.delete"),
    *("tpu.operations.get", "tpu.locations.list", "resourcemanager.projects.get"),
    # Checked on the project, so that a condition on names never holds for them.
    *("secretmanager.secrets.create", "secretmanager.secrets.list"),
)
OWN_SECRETS = (
    *("secretmanager.secrets.get", "secretmanager.secrets.update", "secretmanager.secrets.delete"),
    "secretmanager.versions.add",
)
SHELL = ("tpu.nodes.get", "tpu.nodes.update")  # the latter writes the ssh key

_APIS: Final = (
    ("serviceusage", "which APIs are enabled"),
    ("cloudresourcemanager", "who may do what in the project"),
    ("iam", "service accounts and roles"),
    ("compute", "networks of the VMs"),
    ("tpu", "TPU VMs"),
    ("storage", "the bucket"),
    ("secretmanager", "captured credentials, and secrets= of jobs"),
)


def setup(wish: Wish) -> Setup:
    """Return all that a set-up by these answers is made of.

    Raises:
        UsageError: An answer cannot be used; the message says what to write instead.
    """
    wish = checked(wish)
    project, region = wish.project, wish.region
    machines = wish.account or f"{MACHINES}@{project}.iam.gserviceaccount.com"
    account = Account(MACHINES, machines, "Kinetic machines", f"{MARK}: the machines of jobs act as it")
    shells = (("iap", "shells on running hosts"),) if wish.shell else ()
    return Setup(
        wish=wish,
        apis=tuple(Api(f"{name}.googleapis.com", why) for name, why in (*_APIS, *shells)),
        bucket=Bucket(wish.bucket, region),
        account=None if wish.account else account,
        machines=machines,
        network=Network(wish.network, f"{MARK}: for the machines of jobs") if wish.own_network else None,
        subnetwork=Subnetwork(wish.network, wish.network, region, wish.range, f"{MARK}: for the machines of jobs")
        if wish.own_network
        else None,
        firewalls=tuple(_firewalls(wish)) if wish.own_network else (),
        router=Router(wish.network, wish.network, region, f"{wish.network}-nat", f"{MARK}: to package indexes")
        if wish.own_network
        else None,
        roles=tuple(_roles(wish)),
        grants=(
            *_of_machines(wish, machines),
            *(grant for who in wish.submitters for grant in _of(who, wish, machines)),
        ),
    )


def _firewalls(wish: Wish) -> Iterator[Firewall]:
    every = (Allowed("tcp"), Allowed("udp"), Allowed("icmp"))
    name = wish.network
    yield Firewall(f"{name}-internal", name, f"{MARK}: hosts of a slice reach each other", (wish.range,), every)
    if wish.shell:
        ssh = (Allowed("tcp", ("22",)),)
        yield Firewall(f"{name}-iap", name, f"{MARK}: shells through IAP", (IAP_SOURCES,), ssh)


def _roles(wish: Wish) -> Iterator[Role]:
    yield Role("kineticSlice", "Delete a slice", f"{MARK}: machines delete their own slice", SLICE)
    if wish.submitters:
        yield Role("kineticSubmit", "Make and delete slices", f"{MARK}: whoever submits jobs", SUBMIT)
        yield Role("kineticOwnSecrets", "Keep and delete secrets of jobs", f"{MARK}: whoever submits jobs", OWN_SECRETS)
        if wish.shell:
            yield Role("kineticShell", "Reach hosts of jobs", f"{MARK}: shells on running hosts", SHELL)


def _of_machines(wish: Wish, machines: str) -> Iterator[Grant]:
    member, project = f"serviceAccount:{machines}", wish.project
    yield Grant(BUCKET, wish.bucket, "roles/storage.objectUser", member, objects(wish))
    yield Grant(PROJECT, project, custom(project, "kineticSlice"), member)
    yield Grant(PROJECT, project, "roles/secretmanager.secretAccessor", member, secrets(wish))


def _of(member: str, wish: Wish, machines: str) -> Iterator[Grant]:
    """The rights of a submitter: each as narrow as Google allows. Those on TPUs cannot be narrowed."""
    project = wish.project
    yield Grant(BUCKET, wish.bucket, "roles/storage.objectUser", member, objects(wish))
    yield Grant(BUCKET, wish.bucket, "roles/storage.legacyBucketReader", member)  # where the bucket lies
    yield Grant(PROJECT, project, custom(project, "kineticSubmit"), member)
    yield Grant(PROJECT, project, "roles/serviceusage.serviceUsageConsumer", member)
    yield Grant(PROJECT, project, custom(project, "kineticOwnSecrets"), member, secrets(wish))
    yield Grant(ACCOUNT, machines, "roles/iam.serviceAccountUser", member)
    if wish.shell:
        yield Grant(PROJECT, project, custom(project, "kineticShell"), member)
        yield Grant(PROJECT, project, "roles/iap.tunnelResourceAccessor", member, PORT_22)


def custom(project: str, role: str) -> str:
    return f"projects/{project}/roles/{role}"


def secrets(wish: Wish) -> Condition:
    """The condition on names of secrets, which have the project's number and never its id."""
    return Condition(
        "kinetic-secrets", f"{MARK}: secrets of jobs",
        f'resource.name.startsWith("projects/{wish.number}/secrets/{SECRETS}")',
    )  # fmt: skip


def objects(wish: Wish) -> Condition:
    """The condition on objects of the store. Listing is checked on the bucket, hence the second half."""
    return Condition(
        "kinetic-store", f"{MARK}: objects of the store",
        f'resource.name.startsWith("projects/_/buckets/{wish.bucket}/objects/{FOLDER}/") || '
        f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{FOLDER}/")',
    )  # fmt: skip


PORT_22: Final = Condition("kinetic-ssh", f"{MARK}: ssh alone", "destination.port == 22")


_PROJECT: Final = re.compile(r"([a-z][a-z0-9.-]{0,61}:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]")
_NETWORK: Final = re.compile(r"[a-z]([-a-z0-9]{0,54}[a-z0-9])?")
_EMAIL: Final = r"[A-Za-z0-9][A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]*@[A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9]"
_ACCOUNT: Final = re.compile(r"[a-z0-9][a-z0-9-]*@[a-z0-9.-]+\.gserviceaccount\.com")
_MEMBER: Final = re.compile(rf"(user|group|serviceAccount):{_EMAIL}|principal(Set)?://iam\.googleapis\.com/[\w./:-]+")


def checked(wish: Wish) -> Wish:
    """Return the answers, with the bucket's name. Raises UsageError for one that cannot be used."""
    if not _PROJECT.fullmatch(wish.project):
        raise UsageError(
            f"{wish.project!r} is no project's id: 6 to 30 small letters, digits and hyphens, as `gcloud projects "
            "list` shows them; not its number, and not its display name"
        )
    if not regions.is_region(wish.region):
        near = (
            f", such as {regions.region_of(wish.region)!r}" if regions.is_region(regions.region_of(wish.region)) else ""
        )
        raise UsageError(f"{wish.region!r} is no region: name one that has your TPUs{near or ', such as us-west4'}")
    wish = replace(
        wish, bucket=wish.bucket or default_bucket(wish.project), submitters=tuple(dict.fromkeys(wish.submitters))
    )
    if not _BUCKET.fullmatch(wish.bucket) or wish.bucket.startswith("goog"):
        raise UsageError(
            f"no bucket can be called {wish.bucket!r}: 3 to 63 small letters, digits, hyphens and underscores. Name it "
            "with --bucket"
        )
    if not _NETWORK.fullmatch(wish.network):
        raise UsageError(f"no network can be called {wish.network!r}: small letters, digits and hyphens")
    _check_range(wish.range)
    if wish.account and not _ACCOUNT.fullmatch(wish.account):
        raise UsageError(
            f"{wish.account!r} is no service account: give its email, NAME@PROJECT.iam.gserviceaccount.com"
        )
    for member in wish.submitters:
        if not _MEMBER.fullmatch(member):
            raise UsageError(
                f"{member!r} is no member of a policy: write user:EMAIL, group:EMAIL or serviceAccount:EMAIL. "
                "Everybody (allUsers) is never given rights here"
            )
    return wish


def _check_range(given: str) -> None:
    try:
        network = ipaddress.IPv4Network(given)
    except ValueError as error:
        raise UsageError(f"{given!r} is no range of addresses ({error}): write one such as {RANGE}") from None
    if not network.is_private or not 8 <= network.prefixlen <= 29:
        raise UsageError(f"{given!r} cannot be the range of a subnetwork: a private one of /8 to /29, such as {RANGE}")


def default_bucket(project: str) -> str:
    """The bucket's name, which is unique in the world, by the project: a colon of its domain cannot be in it."""
    return f"{re.sub('[^a-z0-9-]', '-', project)}-kinetic"


def other_bucket(number: str) -> str:
    """A name for the bucket if somebody else has the usual one: by the project's number, which nobody else has."""
    return f"kinetic-{number}"
