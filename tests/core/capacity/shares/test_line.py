"""Places in the line, through a real store: a folder, whose clock the tests move."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from kinetic_orchestration.capacity.shares import line, records
from kinetic_orchestration.capacity.shares.line import Line, give_back
from kinetic_orchestration.capacity.shares.rules import DONE, ENTRY, Book, Grant, Use, Want
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire.lease import FREE, Lease
from tests.support.waiting_lines import Counted, lines, rates

SHARES = parse("shares", "v5e=4")


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(open_local(tmp_path, "test"))


def test_who_waits_is_told_its_place_what_it_waits_for_and_who_is_before_it(store: Counted) -> None:
    """Waiting is not a failure and says its place in the line."""
    first, second, third = lines(store, 3, "v5e=4")
    assert first.turn().granted
    assert second.turn().says == "1st in line for 4 of v5e=4 chips (4 in use)"
    third.turn()
    store.ahead += line.LEASE
    second.turn()
    store.ahead += line.SOON
    assert third.turn().says == "2nd in line for 4 of v5e=4 chips (4 in use); job-1 (u1) before it"


def test_a_turn_that_is_given_back_is_the_next_ones(store: Counted) -> None:
    first, second = lines(store, 2, "v5e=4")
    assert first.turn().granted
    assert first.turn().granted
    assert not second.turn().granted
    store.ahead += 60.0
    give_back(store, first.want.key)
    assert records.read(store).book.grants == ()
    assert records.read(store).book.uses["user:u0"].used > 4 * ENTRY
    assert second.turn().granted
    give_back(store, second.want.key)
    give_back(store, second.want.key)
    assert list(store.list(names.WANTS)) == []


def test_a_holder_that_died_is_followed_by_another(store: Counted) -> None:
    first, second, third = lines(store, 3, "v5e=4")
    first.turn()
    second.turn()
    assert records.read(store).book.holder
    third.turn()
    give_back(store, first.want.key)  # nobody asks for `second` again
    for _ in range(40):
        store.ahead += line.SOON
        if third.turn().granted or records.read(store).book.grant(second.want.key):
            break
    assert records.read(store).book.grants


def test_the_shares_of_the_latest_launch_count(store: Counted) -> None:
    [first] = lines(store, 1, "v5e=4")
    first.turn()
    more = Line(store, Want("job-f", 1, "v5e", 4, user="u", since=store.now()), parse("shares", "v5e=8"), 2.0)
    assert more.turn().granted
    late = Line(store, Want("job-e", 1, "v5e", 4, user="u", since=store.now()), parse("shares", "v5e=64"), 1.0)
    assert late.turn().says == "1st in line for 4 of v5e=8 chips (8 in use)"


def test_a_book_of_times_to_come_keeps_nobody_from_deciding(store: Counted) -> None:
    """Anybody who can write to the store can write a book, with a clock of its own."""
    never = store.now() + 1e9
    used = {"user:u0": Use(8.0, never)}
    gone = Grant(Want("job-f", 1, "v5e", 4, user="u"), never)
    there = Book(grants=(gone,), uses=used, holder="x", until=never, stated=never, shares="v5e=1")
    store.create(names.BOOK, records.bytes_of(there))
    (first,) = lines(store, 1, "v5e=4")
    assert first.turn().granted
    book = records.read(store).book
    assert (book.shares, book.stated) == ("v5e=4", 1.0)
    assert book.grants[0].at <= store.now()


@pytest.mark.parametrize("damage", [b"{", b"[]", None])
def test_a_book_that_is_lost_is_made_again_so_that_no_share_is_exceeded_and_nobody_is_stuck(
    store: Counted, damage: bytes | None
) -> None:
    """Never above the share, never stuck."""
    runs, has_not_begun, waits = lines(store, 3, "v5e=8")
    assert runs.turn().granted
    assert has_not_begun.turn().granted
    store.create(names.intent(*runs.want.key), wire.encode({"allowed": 3600.0}))
    store.create(names.intent(*has_not_begun.want.key), wire.encode({"allowed": 3600.0}))
    assert runs.use().granted
    assert not waits.turn().granted
    if damage is None:
        store.delete(names.BOOK)
    else:
        store.put(names.BOOK, damage)
    store.ahead += line.LEASE + line.SOON
    if damage is None:
        assert has_not_begun.turn().granted or waits.turn().granted
    else:
        with pytest.warns(UserWarning, match=r"damaged, and is made again from the records of 1"):
            assert has_not_begun.turn().granted or waits.turn().granted
        kept = store.read(f"{names.BOOK}.damaged")
        assert kept.data == damage
    assert records.read(store).book.grants[0].want.key == runs.want.key
    assert len(records.read(store).book.grants) == 2
    assert runs.turn().granted
    give_back(store, runs.want.key)
    for _ in range(10):
        store.ahead += line.LEASE + line.SOON
        if has_not_begun.turn().granted and waits.turn().granted:
            break
    assert {one.want.key for one in records.read(store).book.grants} == {has_not_begun.want.key, waits.want.key}


def has_ended(store: Counted, want: Want, name: str, placement: dict[str, object] | None = None) -> None:
    """An attempt has begun, and ended well just now."""
    store.create(names.intent(*want.key), wire.encode({
        "attempt": 1, "boot": "b", "placement": placement or {"name": name}, "allowed": 0.0,
    }))  # fmt: skip
    store.create(names.verdict(*want.key), wire.Verdict(wire.COMMITTED, "host", 0.0).encode())


def offers(store: Counted, want: Want, name: str) -> None:
    """Its hosts offer their slice."""
    made = (want.job, 1)
    offer = Lease(name, 0, FREE, "0" * 64, {"name": name}, *made, *made, store.now() + 900.0, "host")
    store.create(names.lease(name), offer.encode())


def waits_for_a_slice(store: Counted) -> tuple[Line, Line]:
    """One that has kept its slice, and one that has its turn in spite of that."""
    left, next_ = (
        Line(store, Want(f"job-{one}", 1, "v5e", 4, user="u", since=store.now(), keeps=True), SHARES, 1.0)
        for one in "ab"
    )
    assert left.use().granted
    has_ended(store, left.want, "slice-a")
    offers(store, left.want, "slice-a")
    store.ahead += line.CHECK + 1.0
    assert next_.turn().granted
    assert next_.use().after == ("slice-a",)
    return left, next_


@pytest.mark.parametrize("damage", [b"{", None])
def test_what_yields_to_a_turn_is_known_after_the_book_was_lost_so_that_no_share_is_exceeded(
    store: Counted, damage: bytes | None
) -> None:
    left, next_ = waits_for_a_slice(store)
    if damage is None:
        store.delete(names.BOOK)
    else:
        store.put(names.BOOK, damage)
    again = Line(store, next_.want, SHARES, 1.0)  # another process of the attempt
    with pytest.warns(UserWarning, match="made again") if damage else nullcontext():
        turn = again.turn()
    assert turn.granted
    assert turn.yielding == (("slice-a", left.want.key),)
    assert next_.use().after == ("slice-a",)


def test_a_lease_that_nobody_can_read_still_has_its_chips_until_its_hosts_have_ended(store: Counted) -> None:
    left, next_ = waits_for_a_slice(store)
    store.put(names.lease("slice-a"), b"{")
    store.ahead += line.LEASE + line.SOON
    assert not lines(store, 1, "v5e=4")[0].turn().granted, "it decides for all"
    assert next_.use().after == ("slice-a",)
    assert records.read(store).book.grant(left.want.key) is not None


def test_the_turn_of_a_slice_that_was_taken_stays_while_a_place_of_its_race_is_there(store: Counted) -> None:
    want = Want("job-a", 1, "v5e", 8, user="u", since=store.now(), places=2, keeps=True)
    assert Line(store, want, parse("shares", "v5e=8"), 1.0).use().granted
    has_ended(store, want, "slice-a", {"name": "slice-a", "rival": 0, "rivals": [{"name": "slice-b", "rival": 1}]})
    store.create(names.won(*want.key), wire.encode({"rival": 0, "writer": "host"}))
    line.leave_slice(store, want.key)
    assert records.read(store).book.grant(want.key) is not None
    store.create(names.gone(*want.key, 1), wire.encode({}))
    line.leave_slice(store, want.key)
    assert records.read(store).book.grant(want.key) is not None, "its hosts have only just asked for their deletion"
    store.ahead += DONE + 1.0
    line.leave_slice(store, want.key)
    assert records.read(store).book.grant(want.key) is None
    line.leave_slice(store, want.key)


def test_chips_of_a_loser_are_free_soon_after_its_own_hosts_have_asked_for_their_deletion(store: Counted) -> None:
    want = Want("job-a", 1, "v5e", 8, user="u", since=store.now(), places=2)
    assert Line(store, want, parse("shares", "v5e=8"), 1.0).use().granted
    placement = {"name": "slice-a", "rival": 0, "rivals": [{"name": "slice-b", "rival": 1}]}
    intent = {"attempt": 1, "boot": "b", "placement": placement, "allowed": 0.0}
    store.create(names.intent(*want.key), wire.encode(intent))
    store.create(names.won(*want.key), wire.encode({"rival": 0, "writer": "host"}))
    store.create(names.gone(*want.key, 1), wire.encode({}))
    assert records.evidence(store, [want])[want.key].back == 0
    store.ahead += DONE + 1.0
    assert records.evidence(store, [want])[want.key].back == 1


def test_a_name_that_says_no_wish_is_nobodys(store: Counted) -> None:
    for odd in (
        "x",
        "v5e,4,1,0,0,u,",
        "v5e,4,nan,0,0,u,,1,",
        "v5e,-4,1,0,0,u,,1,",
        "v5e,4,1,0,inf,u,,1,",
        "v5e,4,1,0,0,u,,1,v6e",
    ):
        store.put(f"{names.wants('job-1', 1)}{odd}", b"")
    store.put(f"{names.WANTS}nobody/1/v5e,4,1,0,0,u,,1,", b"")
    assert records.wants(store) == {}


@pytest.mark.slow
def test_a_thousand_waiting_jobs_ask_a_bounded_number_of_times_a_minute_and_rarer_the_further_back(
    tmp_path: Path,
) -> None:
    """1,000 waiting jobs with shares at a bounded number of requests a minute for each, fewer the further back in
    line."""
    found = rates(tmp_path)
    assert found.behind > 900
    assert found.front <= 15
    assert found.middle <= 4
    assert found.back <= 2.5
    assert found.holder <= 80
    assert found.writes <= 25
