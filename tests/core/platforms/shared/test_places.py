"""The zone and the time of the next attempt: pure, and driven here by the very sentences of the API's errors."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.values import Past
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext, Status
from kinetic_orchestration.platforms.google.tpu.backend import NO_ZONE
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.platforms.shared.places import Choice
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")
NO_CAPACITY = Status(8, "There is no more capacity in the zone; you can try in another zone")
QUOTA = Status(8, "Quota limit 'X' has been exceeded. Limit: 32 in region us-east5.")
NONE_IN_REGION = Status(8, "Quota limit 'X' has been exceeded. Limit: 0 in region us-east5.")
NO_SUCH_ZONE = Status(7, "Location us-east5-b is not found or access is unauthorized.")
RATE = Status(8, "limit 'Maximum number of CreateNode requests per minute' exceeded")
INTERNAL = Status(13, "an internal error has occurred")


@dataclass
class Walk:
    """A job that goes from place to place."""

    zones: tuple[str, ...] = ZONES
    stay: bool = False
    patience: float = 900.0
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.choices.append(places.first(self.zones, NO_ZONE))

    def meets(self, status: Status) -> Choice:
        trouble = api_errors.classify(status, CallContext("ours", self.choices[-1].place))
        return self.ends(trouble.cause, f"{self.choices[-1].place}: {trouble.sentence}")

    def ends(self, cause: str, reason: str = "") -> Choice:
        fields = self.choices[-1]._asdict()
        past = Past({**fields, "zone": fields["place"]}, cause, reason, 0.0)
        seed, refusal = f"job-{len(self.choices)}", api_errors.refusal_of(self.zones, past)
        choice = places.following(self.zones, past, seed, refusal, patience=self.patience, stay=self.stay)
        self.choices.append(choice)
        return self.choices[-1]


@pytest.mark.parametrize("status", [NO_CAPACITY, QUOTA])
def test_a_zone_with_nothing_free_is_left_at_once_for_the_next_one(status: Status) -> None:
    walk = Walk()
    assert [walk.meets(status)[:2] for _ in range(2)] == [(ZONES[1], 0.0), (ZONES[2], 0.0)]


def test_after_a_whole_round_comes_a_wait_that_grows_and_has_an_end() -> None:
    walk = Walk()
    waits = [place.wait for _ in range(24) if (place := walk.meets(NO_CAPACITY)).wait]
    assert [walk.choices[index].place for index in range(7)] == [*ZONES, *ZONES, ZONES[0]]
    assert len(waits) == 8
    for expected, wait in zip((30, 60, 120, 240, 300, 300, 300, 300), waits, strict=True):
        assert 0.74 * expected < wait < 1.26 * expected
    assert len(set(waits)) == 8, "each attempt has a jitter of its own"


def test_the_same_attempt_goes_to_the_same_place_whoever_places_it() -> None:
    assert Walk().meets(NO_CAPACITY) == Walk().meets(NO_CAPACITY)
    one, other = Walk(zones=ZONES[:1]), Walk(zones=ZONES[:1])
    assert one.meets(NO_CAPACITY).wait == other.meets(NO_CAPACITY).wait > 0


def test_a_single_zone_is_asked_again_after_a_wait() -> None:
    walk = Walk(zones=ZONES[:1])
    place = walk.meets(NO_CAPACITY)
    assert place.place == ZONES[0]
    assert 22 < place.wait < 38


def test_little_patience_with_a_zone_means_a_short_first_wait() -> None:
    assert Walk(zones=ZONES[:1], patience=2.0).meets(NO_CAPACITY).wait < 3.0


def test_a_region_where_the_project_may_have_nothing_is_dropped() -> None:
    walk = Walk()
    assert walk.meets(NONE_IN_REGION)[:2] == ("europe-west4-a", 0.0)
    for _ in range(4):
        assert walk.meets(NO_CAPACITY).place == "europe-west4-a"
    assert set(walk.choices[-1].dropped) == {"us-east5-a", "us-east5-b"}


def test_a_zone_that_does_not_exist_for_us_is_dropped_alone() -> None:
    walk = Walk(zones=("us-east5-b", "us-east5-a"))
    assert walk.meets(NO_SUCH_ZONE).place == "us-east5-a"
    assert walk.meets(NO_CAPACITY).place == "us-east5-a"


def test_a_drop_that_names_another_place_still_drops_the_zone_that_was_asked() -> None:
    walk = Walk(zones=("asia-east1-c", "us-east5-a"))
    assert walk.meets(Status(8, "Limit: 0 in region mars-north1")).place == "us-east5-a"
    assert walk.choices[-1].dropped == ("asia-east1-c",)


def test_when_all_zones_are_dropped_there_is_no_place_and_the_last_answer_is_told() -> None:
    walk = Walk(zones=ZONES[:2])
    with pytest.raises(NoPlace, match=r"us-east5-a, us-east5-b.*Limit: 0 in region us-east5"):
        walk.meets(NONE_IN_REGION)


def test_no_zone_at_all_is_no_place() -> None:
    with pytest.raises(NoPlace, match="KINETIC_ZONES"):
        places.first((), NO_ZONE)


def test_an_internal_error_is_met_twice_in_the_same_zone_and_then_somewhere_else() -> None:
    walk = Walk()
    found = [walk.meets(INTERNAL) for _ in range(4)]
    assert [choice.place for choice in found] == [ZONES[0], ZONES[0], ZONES[1], ZONES[1]]
    assert 0 < found[0].wait < found[1].wait < 15
    assert found[2].wait == 0


def test_a_stockout_after_internal_errors_goes_on_with_the_round() -> None:
    walk = Walk()
    walk.meets(INTERNAL)
    assert walk.meets(NO_CAPACITY)[:2] == (ZONES[1], 0.0)
    assert walk.choices[-1].tries == 0


def test_a_limited_rate_never_changes_the_zone() -> None:
    walk = Walk()
    for _ in range(5):
        place = walk.meets(RATE)
        assert place.place == ZONES[0]
        assert 20 < place.wait < 40


def test_a_reservation_never_leaves_its_zone() -> None:
    walk = Walk(stay=True)
    for status in (NO_CAPACITY, INTERNAL, INTERNAL, INTERNAL, QUOTA):
        assert walk.meets(status).place == ZONES[0]
    with pytest.raises(NoPlace, match="reservation"):
        walk.meets(NONE_IN_REGION)


@pytest.mark.parametrize("cause", [wire.PREEMPTION, wire.INFRASTRUCTURE, wire.USER, wire.STALL])
def test_who_had_hosts_starts_where_they_were_with_a_fresh_round(cause: str) -> None:
    walk = Walk()
    walk.meets(NO_CAPACITY)
    assert walk.ends(cause)[:2] == (ZONES[1], 0.0)
    assert walk.choices[-1].rounds == 0
    assert [walk.meets(NO_CAPACITY)[:2] for _ in range(2)] == [(ZONES[2], 0.0), (ZONES[0], 0.0)]
    assert walk.meets(NO_CAPACITY).wait > 20


def test_what_was_dropped_stays_dropped_after_a_preemption() -> None:
    walk = Walk()
    walk.meets(NONE_IN_REGION)
    walk.ends(wire.PREEMPTION)
    assert {walk.meets(NO_CAPACITY).place for _ in range(5)} == {"europe-west4-a"}


def test_a_zone_that_is_no_longer_asked_for_is_left() -> None:
    walk = Walk()
    walk.zones = ("europe-west4-a", "us-east5-b")
    assert walk.ends(wire.PREEMPTION).place == "europe-west4-a"


def test_an_expired_request_is_a_stockout_without_a_row_and_goes_to_the_next_zone() -> None:
    assert Walk().ends(wire.STOCKOUT, "nothing became free in us-east5-a while the request was valid")[:2] == (
        ZONES[1], 0.0,
    )  # fmt: skip
