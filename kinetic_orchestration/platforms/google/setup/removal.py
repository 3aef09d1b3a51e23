"""Takes back what `kinor init` has made: only what says so itself, or what the manifest knows was not there before.

Rights go before the accounts that have them, since else they stay as those of a deleted account; the router with its
NAT before the network; the bucket last, as it has the manifest, and only if all else has gone and nothing else is in
it. APIs stay enabled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kinetic_orchestration.errors import SetupError
from kinetic_orchestration.platforms.google.setup import examination, making, requests, table
from kinetic_orchestration.platforms.google.setup.examination import THERE, Found, Json
from kinetic_orchestration.platforms.google.setup.manifest import Manifest
from kinetic_orchestration.platforms.google.setup.requests import Call
from kinetic_orchestration.platforms.google.setup.session import IN_USE, Session
from kinetic_orchestration.platforms.google.setup.table import (
    MANIFEST,
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

MOST_PAGES: Final = 1000
_ORDER = (Grant, Router, Firewall, Subnetwork, Network, Role, Account, Bucket)


@dataclass(frozen=True)
class Removal:
    """The things that are taken back, and those that stay.

    Attributes:
        made: The set-up.
        goes: What goes, in this order.
        stays: What stays, each with the reason.
    """

    made: Setup
    goes: tuple[Item, ...]
    stays: tuple[tuple[str, str], ...]
    manifest: Manifest | None = None


def plan(session: Session, wish: Wish, off: tuple[str, ...]) -> Removal:
    """Look at what is there, and decide what goes.

    Args:
        session: The calls.
        wish: The answers of whoever has set up, as far as they are known without the manifest.
        off: Services that are not enabled, by which nothing is looked for.

    Raises:
        SetupError: Something cannot be seen.
    """
    hidden = {name.partition(".")[0] for name in off}
    kept = _manifest(session, wish, hidden)
    wishes = kept.wishes if kept is not None else (wish,)
    _demand_idle(session, {table.setup(one).machines for one in wishes}, hidden)
    setups = [table.setup(one) for one in wishes]
    # Routers and subnetworks of several regions have the same name.
    items = {
        (table.name_of(item), getattr(item, "region", "")): (item, made)
        for made in setups
        for item in table.items(made)
    }
    goes: list[Item] = []
    stays: list[tuple[str, str]] = []
    policies = _Policies(session, hidden)
    for (name, _), (item, made) in items.items():
        before = kept is not None and name in kept.found
        if isinstance(item, Grant):
            was_there = "it was there before kinor init" if before else None
            reason = was_there if policies.has(item) else ""
        else:
            reason = _stays(session, item, made, before=before, hidden=hidden)
        if reason is None:
            goes.append(item)
        elif reason:
            stays.append((name, reason))
    goes.sort(key=lambda item: _ORDER.index(type(item)))
    return Removal(table.setup(wishes[0]), tuple(goes), tuple(stays), kept)


def _demand_idle(session: Session, accounts: set[str], hidden: set[str]) -> None:
    """Refuse while a machine acts as one of these accounts: without its rights it could not delete itself."""
    running: list[str] = []
    for call in requests.machines(session.project):
        for told in () if call.service in hidden else _pages(session, call):
            nodes = [(one.get("name"), [one.get("serviceAccount") or {}]) for one in told.get("nodes") or ()]
            scopes = (told.get("items") or {}).values()
            instances = [one for scope in scopes for one in scope.get("instances") or ()]
            of_compute = [(one.get("name"), one.get("serviceAccounts") or ()) for one in instances]
            for name, who in (*nodes, *of_compute):
                if any(one.get("email") in accounts for one in who):
                    running.append(str(name).rpartition("/")[2])
    if running:
        raise SetupError(
            f"{len(running)} machines of jobs still run in {session.project} ({', '.join(running[:3])}), and could not "
            "delete themselves without their rights: nothing was taken back. `kinor jobs` and `kinor cancel ID` end "
            "jobs, `kinor reap` deletes what they left; then the same command again"
        )


def _pages(session: Session, call: Call) -> Iterator[Json]:
    """Yield the pages of a list. Raises SetupError if the caller may not see it: nobody knows what runs then."""
    for _ in range(MOST_PAGES):
        told = session.look(call, absent=(404,)) or {}
        yield told
        if not (token := told.get("nextPageToken")):
            return
        call = call._replace(params={**call.params, "pageToken": str(token)})
    raise SetupError(f"{session.project} has more machines than {MOST_PAGES} pages show: nothing was taken back")


def _manifest(session: Session, wish: Wish, hidden: set[str]) -> Manifest | None:
    if "storage" in hidden or session.look(requests.look(table.setup(wish).bucket, table.setup(wish))) is None:
        return None
    return examination.read_manifest(session, wish.project, wish.bucket)


def _stays(session: Session, item: Item, made: Setup, *, before: bool, hidden: set[str]) -> str | None:
    """Return why an item stays, "" if it is not there, or None if it goes."""
    call = requests.look(item, made)
    if call.service in hidden:
        return f"the API {call.service} is off, by which it would be looked for"
    told = session.look(call)
    if told is None or (isinstance(item, Role) and told.get("deleted")):
        return ""
    if before or not Found(item, THERE, body=told).ours:
        return "it was there before kinor init"
    names = _objects(session, item) if isinstance(item, Bucket) else []
    return (
        f"it is not empty ({names[0]} is in it): gcloud storage rm --recursive gs://{made.bucket.name}"
        if names
        else None
    )


class _Policies:
    """The policies of a project, its bucket and its account, each read once."""

    def __init__(self, session: Session, hidden: set[str]) -> None:
        self._session = session
        self._hidden = hidden
        self._read: dict[tuple[str, str], Json | None] = {}

    def has(self, grant: Grant) -> bool:
        place = grant.where, grant.name
        if place not in self._read:
            call = requests.policy(*place)
            self._read[place] = None if call.service in self._hidden else self._session.look(call)
        told = self._read[place]
        return told is not None and requests.has(told, grant)


def _objects(session: Session, bucket: Bucket) -> list[str]:
    told = session.look(requests.objects(bucket.name)) or {}
    names = [str(one.get("name")) for one in told.get("items") or () if isinstance(one, Mapping)]
    return [name for name in names if name != MANIFEST]


def remove(session: Session, removal: Removal) -> tuple[tuple[str, str], ...]:
    """Take back what goes, and return what has stayed all the same, each with the reason.

    Raises:
        SetupError: Google refused something; what was taken back stays so, and the same command goes on.
    """
    made = removal.made
    stays: list[tuple[str, str]] = []
    grants = [item for item in removal.goes if isinstance(item, Grant)]
    for where, name in dict.fromkeys((grant.where, grant.name) for grant in grants):
        session.say(f"rights on the {where} {name}")
        own = [grant for grant in grants if (grant.where, grant.name) == (where, name)]
        making.change_policy(session, where, name, own, takes=True)
    for item in removal.goes:
        if isinstance(item, Grant):
            continue
        if isinstance(item, Bucket) and stays:
            stays.append((table.name_of(item), "it has the manifest, by which the same command goes on"))
            continue
        session.say(table.name_of(item))
        if isinstance(item, Bucket):
            session.look(requests.delete_manifest(item.name))
        if reason := _removed(session, item, made):
            stays.append((table.name_of(item), reason))
    if removal.manifest is not None and made.bucket not in removal.goes and not stays:
        session.look(requests.delete_manifest(made.bucket.name))  # once all else has gone that it knows of
    return tuple(stays)


def _removed(session: Session, item: Item, made: Setup) -> str:
    """Delete an item. Returns "", or why Google keeps it."""
    call = requests.remove(item, made)
    answer = session.make(call)
    if answer.status == 404:
        return ""
    if not answer.ok and (answer.status == 409 or IN_USE in str(answer.body)):
        return " ".join(answer.status_of().message.split())
    if not answer.ok:
        raise session.refused(answer, call)
    if call.service == "compute":
        ended = session.ended(answer.body, table.name_of(item)) or {}
        if error := ended.get("error"):
            return str(error)[:500]
    return ""
