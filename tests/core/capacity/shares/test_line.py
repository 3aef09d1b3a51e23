"""Places in the line, through a real store: a folder, whose clock the tests move."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_orchestration.capacity.shares import line, records
from kinetic_orchestration.capacity.shares.line import Line, give_back
from kinetic_orchestration.capacity.shares.rules import ENTRY, Book, Grant, Use, Want
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.protocol import names, wire
from tests.support.waiting_lines import Counted, lines, rates


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
