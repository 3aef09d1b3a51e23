"""Shares of chips, as they are written and as they bind a job."""

from __future__ import annotations

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.chip_shares import bounds, parse, refusal, text_of, weight
from kinetic_orchestration.plan.hardware import accelerators

TEXT = "v5e=64,total=256,user:*=32,pipeline:retrain=128,user:ann/v5e=16"


def test_shares_are_read_and_written_in_one_form() -> None:
    assert text_of(parse("KINETIC_CHIPS", f" {TEXT} ,")) == TEXT
    assert parse("KINETIC_CHIPS", "") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v9=3", "'v9' is no accelerator. It can be total or one of v2"),
        ("user:ann/v9=3", "'v9' is no accelerator"),
        ("v5e=-3", "a share is a number of chips above 0"),
        ("v5e=0", "a share is a number of chips above 0"),
        ("v5e=many", "a share is a number of chips above 0"),
        ("v5e=inf", "a share is a number of chips above 0"),
        ("v5e", "write shares as v5e=64"),
        ("=3", "write shares as v5e=64"),
        ("team:a=3", "write shares as v5e=64"),
        ("user:=3", "write shares as v5e=64"),
        ("user:Ann=3", "as the labels of its jobs have it"),
        ("v5e=3,v5e=4", "two shares of the same: v5e=3 and v5e=4"),
    ],
)
def test_what_is_no_share_is_refused_when_it_is_read(text: str, told: str) -> None:
    with pytest.raises(UsageError, match="KINETIC_CHIPS") as refused:
        parse("KINETIC_CHIPS", text)
    assert told in str(refused.value)


def test_each_share_binds_whom_it_names_and_the_default_one_everybody_else() -> None:
    shares = parse("KINETIC_CHIPS", TEXT)

    def of(user: str, pipeline: str, generation: str = "v5e") -> list[str]:
        return [str(bound) for bound in bounds(shares, generation, 8, 1.0, user, pipeline)]

    assert of("bob", "") == ["v5e=64", "total=256", "user:bob=32"]
    assert of("ann", "retrain") == ["v5e=64", "total=256", "pipeline:retrain=128", "user:ann/v5e=16", "user:ann=32"]
    assert of("ann", "report", "v5p") == ["total=256", "user:ann=32"]


def test_a_chip_counts_by_its_list_price_else_by_its_peak_else_as_one() -> None:
    counted = {name: weight(accelerators.parse(name)) for name in ("v5e-8", "v5p-8", "h100", "v2-4", "t4")}
    assert counted["v5e-8"] == 1.0
    assert counted["v5p-8"] == 3.5
    assert counted["v2-4"] == pytest.approx(46 / 197, abs=0.001)
    assert counted["h100"] > 3
    assert counted["t4"] > 0


def test_a_job_that_no_share_can_ever_hold_is_refused_with_both_numbers() -> None:
    """A share that no job can ever fit in."""
    shares = parse("KINETIC_CHIPS", "v5e=64,user:*=8")
    told = refusal("KINETIC_CHIPS", shares, "v5e-16", bounds(shares, "v5e", 16, 1.0, "bob", ""))
    assert told.startswith(
        "v5e-16 takes 16 chips of the share user:bob=8 (the default, as no share names it), and so could never run."
    )
    assert refusal("KINETIC_CHIPS", shares, "v5e-8", bounds(shares, "v5e", 8, 1.0, "bob", "")) == ""
