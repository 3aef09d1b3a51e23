"""Makes what is missing of a set-up, in an order in which a run that is killed at any request is mended by the next.

The services come first, then the bucket with the manifest, which says what was there before; what is granted comes
last. Each item is made by one request that may be sent again: what is there by then is compared and taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kinetic_orchestration.errors import SetupError
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.platforms.google.setup import examination, requests, table
from kinetic_orchestration.platforms.google.setup.examination import ABSENT, DELETED, THERE, Found, Json, Seen
from kinetic_orchestration.platforms.google.setup.manifest import Manifest
from kinetic_orchestration.platforms.google.setup.requests import Call
from kinetic_orchestration.platforms.google.setup.session import NEW_ACCOUNT, Session
from kinetic_orchestration.platforms.google.setup.table import (
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
)

IN_A_ROW: Final = 3  # successes of reading a new account, once one has failed: servers know of it one after the other
CONFLICTS: Final = 8  # tries at a policy that others change meanwhile


def enable(session: Session, names: Sequence[str]) -> None:
    """Enable services, and wait for the end of that. They are usable a while later: calls wait for it.

    Raises:
        SetupError: They cannot be enabled, for example without a billing account.
    """
    session.say(f"enabling {', '.join(name.partition('.')[0] for name in names)}")
    operation = _made(session, requests.enable(session.project, names))
    if not operation.get("done"):
        call = requests.operation(str(operation.get("name")))
        operation = session.until(call, lambda told: bool(told.get("done")), "the APIs are enabled")
    failures = (operation.get("response") or {}).get("failures") or ()
    if operation.get("error") or failures:
        said = str((operation.get("error") or {}).get("message") or failures)[:500]
        raise SetupError(f"Google could not enable the APIs of {session.project}: {said}")
    session.new_apis.update(name.partition(".")[0] for name in names)


def make(session: Session, seen: Seen) -> Manifest:
    """Make all that is missing, but the services, and return the manifest as it is then.

    Raises:
        SetupError: Something was refused. The same command goes on.
    """
    made = seen.made
    policies = dict(seen.policies)
    place = PROJECT, made.wish.project
    if place not in policies:  # Resource Manager was off
        policies[place] = _policy(session, *place)
    found = {table.name_of(one.item): one for one in seen.found}
    for grant in made.grants:
        if (grant.where, grant.name) == place and requests.has(policies[place], grant):
            found[table.name_of(grant)] = Found(grant, THERE)
    kept = seen.manifest
    if found[table.name_of(made.bucket)].state == ABSENT:
        bucket, is_new = _make(session, made.bucket, made)
        found[table.name_of(made.bucket)] = bucket
        kept = None if is_new else examination.read_manifest(session, made.wish.project, made.bucket.name)
    kept = _keep_manifest(session, made, kept, found)
    new_account = False
    if made.account is not None and found[table.name_of(made.account)].state == ABSENT:
        _, new_account = _make(session, made.account, made)
    _make_network(session, made, found)
    for one in found.values():
        if isinstance(one.item, Role) and one.state != THERE:
            _make_role(session, one, one.item, made)
    if new_account:
        _wait_for_account(session, made)
    _grant(session, made, found, policies)
    if not seen.agent and not requests.has(policies[place], made.agent):
        session.say("Cloud TPU's own account")
        _made(session, requests.identity(made, regions.zones_of(made.wish.region)[0]))
    return kept


def _keep_manifest(session: Session, made: Setup, before: Manifest | None, found: Mapping[str, Found]) -> Manifest:
    """Write what was there before, and before anything else is made: a run that goes on counts no more as found."""
    there = frozenset(name for name, one in found.items() if one.state != ABSENT and not one.ours)
    after = (before or Manifest(())).with_wish(made.wish, there)
    if after != before:
        _made(session, requests.write_manifest(made.bucket.name, after.to_json()))
    return after


def _make(session: Session, item: Item, made: Setup) -> tuple[Found, bool]:
    """Make an item, and return it with True; what is there by now is compared, and returned with False."""
    session.say(table.name_of(item))
    answer = session.make(requests.make(item, made))
    if answer.ok:
        return Found(item, THERE, body=answer.body), True
    if answer.status != 409:
        raise session.refused(answer, requests.make(item, made))
    return _adopted(session, item, made), False


def _adopted(session: Session, item: Item, made: Setup) -> Found:
    call = requests.look(item, made)
    if isinstance(item, Account):  # perhaps made by a request whose answer was lost
        told: Json | None = _shown(session, call)
    else:
        told = session.look(call, absent=(404, 403) if isinstance(item, Bucket) else (404,))
    if told is None and isinstance(item, Bucket):
        raise SetupError(examination.foreign(item, made))
    if told is None:
        raise SetupError(f"{table.name_of(item)} was said to be there, and is not shown: run the same command again")
    return examination.compared(item, told, made)


def _made(session: Session, call: Call) -> Json:
    answer = session.make(call)
    if not answer.ok:
        raise session.refused(answer, call)
    return answer.body


def _make_network(session: Session, made: Setup, found: Mapping[str, Found]) -> None:
    """Make the network, then what is in it: all rules and the router at once."""
    for stage in ((made.network,), (made.subnetwork,), (*made.firewalls, made.router)):
        begun = []
        for item in stage:
            if item is None or found[table.name_of(item)].state != ABSENT:
                continue
            one, is_new = _make(session, item, made)
            if is_new:
                begun.append((item, one.body))
        for item, operation in begun:
            _wait(session, item, operation)


def _wait(session: Session, item: Network | Subnetwork | Firewall | Router, operation: Json) -> None:
    ended = session.ended(operation, table.name_of(item)) or {}
    if error := ended.get("error"):
        errors = (error.get("errors") or ()) if isinstance(error, Mapping) else ()
        said = "; ".join(str(one.get("message")) for one in errors) or str(error)
        raise SetupError(session.explained(f"{table.name_of(item)} was not made: {said}"))


def _make_role(session: Session, one: Found, item: Role, made: Setup) -> None:
    """Make a custom role; one that was deleted, whose id stays taken for weeks, is had back; one that lacks permissions
    gets them."""
    project, state, shown = made.wish.project, one.state, one.body
    session.say(table.name_of(item))
    if state == ABSENT:
        call = requests.make(item, made)
        answer = session.make(call)
        if answer.ok:
            return
        if answer.status != 409:
            raise session.refused(answer, call)
        again = _adopted(session, item, made)
        state, shown = again.state, again.body
    if state == DELETED:
        _made(session, requests.undelete(item, project))
    if state != THERE:
        further = [str(name) for name in shown.get("includedPermissions") or ()] if state != DELETED else []
        _made(session, requests.patch(item, project, further))


def _wait_for_account(session: Session, made: Setup) -> None:
    """Wait until a new account is shown. Once a server did not know it, several have to, one after the other."""
    assert made.account is not None
    call = requests.look(made.account, made)
    calls = session.calls
    _shown(session, call)
    if session.calls - calls > 1:
        for _ in range(IN_A_ROW - 1):
            _shown(session, call)


def _shown(session: Session, call: Call) -> Json:
    answer = session.make(call, NEW_ACCOUNT)
    if not answer.ok:
        raise session.refused(answer, call)
    return answer.body


# Grants


def _grant(session: Session, made: Setup, found: Mapping[str, Found], policies: dict[tuple[str, str], Json]) -> None:
    """Grant what is missing: one read and one write for each of project, bucket and account."""
    missing = [one.item for one in found.values() if isinstance(one.item, Grant) and one.state == ABSENT]
    for where, name in dict.fromkeys((grant.where, grant.name) for grant in missing):
        session.say(f"rights on the {where} {name}")
        grants = [grant for grant in missing if (grant.where, grant.name) == (where, name)]
        change_policy(session, where, name, grants, policies.get((where, name)))


def change_policy(
    session: Session, where: str, name: str, grants: Sequence[Grant], told: Json | None = None, *, takes: bool = False
) -> None:
    """Read a policy, change it and write it with the etag that was read, again if somebody has changed it meanwhile.

    Args:
        session: The calls.
        where: What it is on.
        name: The name of that.
        grants: What is granted, or taken back.
        told: The policy as it was read just now; it is read if None.
        takes: Take back.
    """
    change = requests.without_grants if takes else requests.with_grants
    for _ in range(CONFLICTS):
        told = _policy(session, where, name) if told is None else told
        wanted = change(told, grants)
        if wanted["bindings"] == list(told.get("bindings") or ()):
            return
        call = requests.set_policy(where, name, wanted)
        answer = session.make(call)
        if answer.ok:
            return
        if answer.status not in (409, 412):
            raise session.refused(answer, call)
        told = None
        session.pause("somebody else is changing the same policy")
    raise SetupError(
        f"The policy of {name} is changed by others all the time, {CONFLICTS} tries have failed: run the same command "
        "again"
    )


def _policy(session: Session, where: str, name: str) -> Json:
    told = session.look(requests.policy(where, name))
    if told is None:
        raise SetupError(f"The {where} {name} is not there any more: run the same command again")
    return told
