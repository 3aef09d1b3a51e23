"""Tests whose turn it is: the order, the shares, and who may pass whom."""

from __future__ import annotations

import math
import time

import pytest

from kinetic_orchestration.capacity.shares import records, rules
from kinetic_orchestration.capacity.shares.rules import Book, Evidence, Grant, Use, Want, decide, fate
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.protocol import wire

NOW = 1_700_000_000.0


def want(job: str, chips: int = 8, **fields: object) -> Want:
    known = {"user": "ann", "since": NOW, **fields}
    return Want(f"job-{job}", 1, "v5e", chips, **known)  # type: ignore[arg-type]


def given(book: Book) -> list[str]:
    return [grant.want.job.removeprefix("job-") for grant in book.grants]


def decided(wants: list[Want], shares: str, book: Book | None = None, now: float = NOW) -> Book:
    return decide(Book() if book is None else book, wants, parse("shares", shares), now, "t")


def test_a_higher_priority_goes_first_then_who_has_used_less_then_who_came_first() -> None:
    """Priorities, within one the smaller weighted recent use first, then first come."""
    book = Book(uses={"user:ann": Use(5000.0, NOW)})
    wants = [
        want("a"), want("b", user="bob", since=NOW + 2), want("c", user="bob", since=NOW + 1),
        want("d", since=NOW + 9, priority=1),
    ]  # fmt: skip
    assert given(decided(wants, "v5e=32", book)) == ["d", "c", "b", "a"]
    assert given(decided(wants, "v5e=8", book)) == ["d"]
    assert given(decided(wants[:3], "v5e=8", book)) == ["c"]


def test_a_larger_share_makes_the_same_use_weigh_less() -> None:
    book = Book(uses={"user:ann": Use(3000.0, NOW), "user:bob": Use(2000.0, NOW)})
    wants = [want("a"), want("b", user="bob", since=NOW - 5)]
    assert given(decided(wants, "v5e=8,user:*=16", book)) == ["b"]
    assert given(decided(wants, "v5e=8,user:*=16,user:ann=64", book)) == ["a"]


def test_two_users_take_turns_within_one_decision_because_a_turn_costs_something_at_once() -> None:
    wants = [want(f"a{n}", since=NOW) for n in range(4)] + [want(f"b{n}", user="bob", since=NOW + 1) for n in range(4)]
    assert given(decided(wants, "v5e=32")) == ["a0", "b0", "a1", "b1"]


def test_nobody_holds_more_than_a_share_and_one_whom_none_names_has_the_default_one_and_is_told() -> None:
    """Somebody whom no share names gets the default share, said so."""
    wants = [want(str(n), user="cy") for n in range(3)]
    book = decided(wants, "v5e=64,user:*=16,user:ann=32")
    assert given(book) == ["0", "1"]
    assert book.line[0].why == "for 8 of user:cy=16 by default chips (16 in use)"
    assert given(decided([want(str(n)) for n in range(5)], "v5e=64,user:*=16,user:ann=32")) == ["0", "1", "2", "3"]


def test_chips_count_by_what_they_cost() -> None:
    wants = [Want("job-1", 1, "v5p", 8, 3.5, user="ann", since=NOW), want("2"), want("3")]
    assert given(decided(wants, "total=40")) == ["1", "2"]


def test_small_ones_pass_a_big_one_only_if_they_end_before_its_turn_can_come() -> None:
    """It gets a reservation that they may pass only if their time limit ends before it."""
    running = Grant(want("run", 12, longest=1000.0), NOW)
    big = want("big", 16, user="bob")
    short, long, without = want("short", 4, longest=900.0), want("long", 4, longest=1100.0), want("endless", 4)
    book = Book(grants=(running,))
    assert given(decided([big, short], "v5e=16", book)) == ["run", "short"]
    assert given(decided([big, long], "v5e=16", book)) == ["run"]
    late = decided([big, without], "v5e=16", book)
    assert given(late) == ["run"]
    assert late.line[1].why == "for 4 of v5e=16 chips, of which the next are kept for job-big"
    [kept] = late.reserved
    assert (kept.job, kept.start) == ("job-big", NOW + 1000.0)


def test_a_big_one_is_passed_by_newcomers_who_have_used_less_only_for_so_long() -> None:
    """A big job that waits is not passed by small ones for ever, also if each of them is the first of somebody else."""
    turn = Grant(want("run", 16, user="cy", longest=600.0), NOW)
    book, big = Book(grants=(turn,), uses={"user:ann": Use(1e6, NOW)}), want("big", 16)
    for at in range(0, 7200, 300):
        newcomers = [want(f"{at + n:x}", 16, user=f"u{at + n}", since=NOW + at, longest=600.0) for n in range(3)]
        if at % 600 == 0 and at:
            book = rules.freed(book, book.grants[0].want.key, NOW + at, NOW + at)
        book = decided([big, *newcomers], "v5e=16", book, NOW + at)
        if big.key in {grant.want.key for grant in book.grants}:
            break
        assert at < rules.PATIENCE + 1200, "it waits for ever"
    assert at >= rules.PATIENCE


def test_who_has_waited_long_goes_before_others_once_and_not_with_all_that_it_has() -> None:
    wants = [want(f"a{n}") for n in range(3)] + [want(f"b{n}", user="bob", since=NOW + 9) for n in range(3)]
    book = decided(wants, "v5e=8", Book(grants=(Grant(want("run"), NOW),), uses={"user:ann": Use(1e6, NOW)}))
    later = NOW + rules.PATIENCE + 60.0
    book = decided(wants, "v5e=24", rules.freed(book, ("job-run", 1), NOW + 60.0, later), later)
    assert given(book) == ["b0", "a0", "b1"]


def test_a_user_who_waits_for_a_share_of_its_own_keeps_nothing_from_others() -> None:
    wants = [want("a", 16), want("b", 16), want("c", 4), want("d", 4, user="bob")]
    assert given(decided(wants, "v5e=64,user:*=16")) == ["a", "d"]


def test_a_turn_that_was_decided_is_never_changed() -> None:
    """Granting never preempts, and a decision is stamped when it is made."""
    first = decided([want("a", 16)], "v5e=16")
    later = decided([want("a", 16), want("b", priority=9)], "v5e=16", first, NOW + 500.0)
    assert later.grants == first.grants
    lowered = decided([want("a", 16), want("b", priority=9)], "v5e=8", first, NOW + 500.0)
    assert lowered.grants == first.grants


def test_use_fades_by_half_in_a_half_life_however_often_it_is_looked_at() -> None:
    book = Book(grants=(Grant(want("a", 10), NOW),), uses={"user:ann": Use(1e6, NOW)})
    once = rules.settled(book, NOW + rules.HALF_LIFE)
    often = book
    for part in range(1, 101):
        often = rules.settled(often, NOW + rules.HALF_LIFE * part / 100)
    expected = 5e5 + 10 * rules.HALF_LIFE / math.log(2) / 2
    assert once.uses["user:ann"].used == pytest.approx(expected)
    assert often.uses["user:ann"].used == pytest.approx(expected)


def test_what_a_turn_is_charged_ends_with_its_hosts_and_not_when_that_is_seen() -> None:
    book = Book(grants=(Grant(want("a", 10), NOW),), uses={"user:ann": Use(0.0, NOW)})
    after = rules.freed(book, ("job-a", 1), NOW + 100.0, NOW + 5000.0)
    assert after.grants == ()
    assert after.uses["user:ann"].used == pytest.approx(1000.0, rel=0.05)


def test_what_a_turn_is_charged_is_whole_although_whoever_frees_it_was_held_up_since_it_looked_at_the_clock() -> None:
    book = Book(grants=(Grant(want("a", 10), NOW),), uses={"user:ann": Use(0.0, NOW)})
    after = rules.freed(book, ("job-a", 1), NOW + 1000.0, NOW + 100.0)
    assert after.uses["user:ann"].used == pytest.approx(10_000.0, rel=0.05)


def test_a_turn_that_nobody_gives_back_is_freed_by_what_its_attempts_records_say() -> None:
    grant = Grant(want("a"), NOW)
    marked = grant._replace(leaving=NOW + 700.0)
    assert fate(grant, Evidence(), NOW + 500.0) == rules.KEEP
    assert fate(grant, Evidence(), NOW + 700.0) == rules.MARK
    assert fate(marked, Evidence(), NOW + 701.0) == rules.FREE
    assert fate(marked, Evidence(begun=True), NOW + 701.0) == rules.CLEAR
    assert fate(grant, Evidence(begun=True), NOW + 1e6) == rules.KEEP
    assert fate(grant, Evidence(begun=True, deadline=NOW + 1e3), NOW + 1e3 + 601.0) == rules.FREE
    assert fate(grant, Evidence(begun=True, over=NOW), NOW + 500.0) == rules.KEEP
    assert fate(grant, Evidence(begun=True, over=NOW), NOW + 601.0) == rules.FREE
    assert fate(grant, Evidence(begun=True, over=NOW, done=NOW), NOW + 21.0) == rules.FREE
    assert fate(grant, Evidence(begun=True, over=NOW, is_held=True), NOW + 1e6) == rules.KEEP


def test_the_use_of_a_call_by_itself_is_its_users_and_a_share_of_its_pipeline_binds_it_as_any_other() -> None:
    alone, asset = want("a", pipeline="train", alone=True), want("b", pipeline="train")
    assert (alone.whose, asset.whose) == ("user:ann", "pipeline:train")
    assert given(decided([alone, asset], "v5e=64,pipeline:train=8")) == ["a"]


def test_what_was_written_before_calls_by_themselves_had_a_pipeline_is_still_read() -> None:
    book = decided([want("a", user="ann"), want("b", 64, pipeline="train")], "v5e=8,pipeline:*=64")
    fields = wire.decode(records.bytes_of(book))
    del fields["firsts"]
    assert [len(row) for row in fields["grants"]] == [13]
    assert records.book_of(wire.encode(fields)) == book._replace(firsts={})


def test_the_book_is_read_as_it_was_written() -> None:
    wants = [want(str(n), user="ann") for n in range(9)] + [want("big", 64, user="bob", longest=60.0)]
    wants += [want(f"c{n}", pipeline="train", alone=True, user="cy") for n in range(3)]
    book = decided(wants, "v5e=64,user:*=16")._replace(holder="me", writer="w", shares="v5e=64", until=NOW)
    assert records.book_of(records.bytes_of(book)) == book


def test_a_thousand_who_wait_are_decided_about_in_a_moment() -> None:
    wants = [want(f"{n:x}", 4, user=f"u{n % 20}", since=NOW + n, longest=600.0) for n in range(1000)]
    began = time.process_time()
    book = decided(wants, "v5e=256,total=512,user:*=64")
    assert time.process_time() - began < 1.0
    assert (len(book.grants), book.waiting, len(book.line)) == (64, 936, rules.SHOWN)


def test_chips_of_places_that_are_gone_are_given_back_and_never_those_of_the_last_one() -> None:
    """Both count while they live, and no longer; the use of what is gone ends then."""
    book = decided([want("a", 32, places=2)], "v5e=32")
    (grant,) = book.grants
    later = NOW + 100.0
    gone = rules.seen_of(book, grant, Evidence(begun=True, back=1, since=NOW + 40.0), later)
    assert gone.grants[0].holds.chips == 16
    assert gone.grants[0].want == grant.want, "what was decided stays as it was"
    most = rules.settled(book, later).uses["user:ann"].used
    assert gone.uses["user:ann"].used == pytest.approx(most - 16 * 60.0, abs=2.0)
    assert given(decided([want("b", 16)], "v5e=32", book, later)) == ["a"]
    assert given(decided([want("b", 16)], "v5e=32", gone, later)) == ["a", "b"]
    both = rules.seen_of(book, grant, Evidence(begun=True, back=2, since=later), later)
    assert both.grants[0].holds.chips == 16, "one place lives"
    again = rules.seen_of(gone, gone.grants[0], Evidence(begun=True, back=0, since=later), later)
    assert again.grants[0].holds.chips == 16, "what was given back stays so"


def kept(job: str, chips: int = 8, **fields: object) -> Grant:
    return Grant(want(job, chips, keeps=True, **fields), NOW, f"t-{job}", kept=f"slice-{job}")


def test_a_slice_that_serves_nobody_holds_its_chips_and_yields_to_who_waits() -> None:
    idle = Book(grants=(kept("a"), kept("b")))
    assert rules.held(idle.grants, parse("shares", "v5e=16")) == {"v5e": 16}
    book = decided([want("c", 8)], "v5e=24", idle)
    assert [one.yields for one in book.grants] == [None, None, None], "there is room for it"
    book = decided([want("c", 8)], "v5e=16", idle)
    assert [one.yields for one in book.grants] == [("job-c", 1), None, None]
    assert rules.held(book.grants, parse("shares", "v5e=16")) == {"v5e": 16}
    book = decided([want("d", 8)], "v5e=16", book)
    assert [one.yields for one in book.grants] == [("job-c", 1), ("job-d", 1), None, None]
    assert given(decided([want("e", 8)], "v5e=16", book)) == ["a", "b", "c", "d"], "nothing is left that yields"


def test_more_than_one_yields_to_a_big_one_and_none_if_that_is_not_enough() -> None:
    idle = Book(grants=(kept("a"), kept("b"), Grant(want("runs", 8), NOW, "t-r")))
    book = decided([want("big", 16)], "v5e=24", idle)
    assert [one.yields for one in book.grants[:3]] == [("job-big", 1), ("job-big", 1), None]
    book = decided([want("big", 24)], "v5e=24", idle)
    assert [one.yields for one in book.grants] == [None, None, None]


def test_a_thousand_who_wait_are_decided_about_in_a_moment_beside_slices_that_are_not_enough_for_any_of_them() -> None:
    """Whoever decides for all has to be done before others take its place, or nobody ever is."""
    grants = [kept(f"{n:x}", 4) for n in range(64)] + [Grant(want(f"f{n:x}", 4), NOW, f"r{n}") for n in range(64)]
    wants = [want(f"e{n:x}", 300, user=f"u{n % 20}", since=NOW + n) for n in range(1000)]
    began = time.process_time()
    book = decided(wants, "v5e=512,total=2000", Book(grants=tuple(grants)))
    assert time.process_time() - began < 1.0
    assert (len(book.grants), book.waiting) == (128, 1000)
    assert not any(grant.yields for grant in book.grants)


def test_what_yields_first_is_of_the_same_size_and_counts_again_once_the_other_gives_up() -> None:
    idle = Book(grants=(kept("a", 16), kept("b", 8)))
    book = decided([want("c", 8)], "v5e=24", idle)
    assert [one.yields for one in book.grants[:2]] == [None, ("job-c", 1)]
    left = rules.freed(book, ("job-c", 1), 0.0, NOW)
    assert [one.yields for one in left.grants] == [None, None]
    small = decided([want("d", 4)], "v5e=16", Book(grants=(kept("a", 16),)))
    assert rules.held(small.grants, parse("shares", "v5e=16")) == {"v5e": 16}, "until it is gone, all of it is there"


def test_a_kept_slice_is_its_holders_until_it_was_taken_or_has_ended_for_long() -> None:
    grant = Grant(want("a", keeps=True), NOW)
    over = Evidence(begun=True, over=NOW, done=NOW, slice="s")
    at = NOW + 5000.0
    assert fate(grant, over._replace(lease="free", changed=NOW + 30.0), at) == rules.KEEP
    assert fate(grant, over._replace(lease=rules.TAKEN, changed=NOW + 30.0), NOW + 31.0) == rules.FREE
    assert fate(grant, over._replace(lease="ended", changed=at - rules.RELEASED + 1.0), at) == rules.KEEP
    assert fate(grant, over._replace(lease="ended", changed=at - rules.RELEASED - 1.0), at) == rules.FREE
    assert fate(grant, over, NOW + rules.DONE + 1.0) == rules.KEEP, "its hosts may be about to offer it"
    assert fate(Grant(want("a"), NOW), over, NOW + rules.DONE + 1.0) == rules.FREE
    seen = rules.seen_of(Book(grants=(grant,)), grant, over._replace(lease="free"), at)
    assert seen.grants[0].kept == "s"


def test_a_place_that_has_lost_its_race_has_its_chips_after_the_slice_that_won_was_taken_or_said_to_be_done() -> None:
    grant = Grant(want("a", 16, places=2, keeps=True), NOW)
    over = Evidence(begun=True, over=NOW, slice="s", lease=rules.TAKEN, changed=NOW + 30.0)
    assert fate(grant, over, NOW + 31.0) == rules.KEEP
    left = rules.seen_of(Book(grants=(grant,)), grant, over, NOW + 31.0).grants[0]
    assert (left.holds.chips, left.kept) == (8, ""), "the slice has those of whoever has taken it"
    assert fate(left, over._replace(back=1, since=NOW + 40.0), NOW + 41.0) == rules.FREE
    assert fate(left, over, NOW + rules.RELEASED + 1.0) == rules.FREE, "nobody says when the other was gone"
    done = Evidence(begun=True, over=NOW, done=NOW)
    plain = Grant(want("a", 16, places=2), NOW)
    assert fate(plain, done, NOW + rules.DONE + 1.0) == rules.KEEP
    assert fate(plain, done._replace(back=1), NOW + rules.DONE + 1.0) == rules.FREE


def test_hosts_are_gone_so_long_after_the_first_of_them_was_done_and_not_after_the_verdict() -> None:
    seen = Evidence(begun=True, over=NOW, done=NOW + 100.0)
    assert fate(Grant(want("a"), NOW), seen, NOW + 101.0) == rules.KEEP
    assert fate(Grant(want("a"), NOW), seen, NOW + 101.0 + rules.DONE) == rules.FREE


def test_a_slice_yields_only_when_no_place_of_its_race_is_left_whose_chips_nobody_could_wait_for() -> None:
    raced = kept("a", 16, places=2)
    assert given(decided([want("b", 16)], "v5e=16", Book(grants=(raced,)))) == ["a"]
    alone = raced._replace(back=8)
    book = decided([want("b", 16)], "v5e=16", Book(grants=(alone,)))
    assert book.grants[0].yields == ("job-b", 1)
    idle = Evidence(begun=True, over=NOW, slice="s", lease="free")
    late = rules.seen_of(Book(grants=(raced,)), raced, idle, NOW + rules.RELEASED + 1.0)
    assert late.grants[0].holds.chips == 8, "it keeps nobody waiting for as long as the slice is kept"


def test_whoever_takes_one_of_two_that_yield_would_hold_more_than_its_share_beside_the_other() -> None:
    """So the other one is released first: each yields for another share."""
    shares = parse("shares", "v5e=24,user:*=16")
    idle = Book(grants=(kept("a", 16), kept("b", 8, user="bob")))
    book = decided([want("c", 16, user="bob")], "v5e=24,user:*=16", idle)
    assert [one.yields for one in book.grants] == [("job-c", 1), ("job-c", 1), None]
    assert rules.held(book.grants, shares) == {"v5e": 24, "user:bob": 16, "user:ann": 16}
    taken = rules.freed(book, ("job-a", 1), NOW, NOW)
    assert rules.held(taken.grants, shares) == {"v5e": 16, "user:bob": 16}, "the greater of both, never the sum"


def test_what_is_kept_and_given_back_is_read_as_it_was_written() -> None:
    book = Book(
        grants=(
            kept("a")._replace(yields=("job-c", 2)), Grant(want("b", 32, places=2, alone=True), NOW, "t", back=16),
            Grant(want("d"), NOW, "t2"),
        ),
        shares="v5e=64",
    )  # fmt: skip
    assert records.book_of(records.bytes_of(book)).grants == book.grants
    for one in (want("a", keeps=True), want("b", places=3, alone=True), want("c")):
        assert records._want_in(records.name_of(one)) == one
