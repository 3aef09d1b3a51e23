"""One global batch is the same samples in the same order on any number of hosts, and a size that does not divide it is
refused when it is written down."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import TpuVm
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.global_batch import GlobalBatch, check_divides
from kinetic_orchestration.plan.values import Plan

pytestmark = pytest.mark.fast
SETTINGS = Settings(home=Path("/home"), store="/home/store", deployment="local", backend="local")


@pytest.mark.parametrize(("hosts", "most"), list(itertools.product((1, 2, 3, 4, 6, 12), (0, 1, 2, 5, 100))))
def test_a_batch_has_the_same_samples_in_the_same_order_however_it_is_divided(hosts: int, most: int) -> None:
    shares = [GlobalBatch.divided(24, hosts, host, most) for host in range(hosts)]
    for first in (0, 24, 31):
        steps = zip(*(share.parts(first) for share in shares), strict=True)
        assert [sample for step in steps for part in step for sample in part] == list(range(first, first + 24))
    assert not most or shares[0].per_host <= most
    rows = [share.rows(61) for share in shares]
    assert sorted(itertools.chain(*rows)) == list(range(48)), "what fills no batch is left out"
    share = shares[0]
    assert share.hosts * share.per_host * share.accumulation == 24


def test_a_division_says_what_it_is() -> None:
    assert str(GlobalBatch.divided(1024, 2, most=256)) == "global batch 1024 = 2 hosts × 256 × 2 steps of accumulation"
    assert str(GlobalBatch.divided(64, 1)) == "global batch 64 = 1 host × 64"
    assert GlobalBatch.divided(30, 1, most=7).per_host == 6, "as few steps as possible, all of one size"


def test_sizes_that_do_not_divide_a_batch_are_refused_with_those_that_do() -> None:
    check_divides(96, [("v5e-16", 4), ("v5e-8", 1)])
    with pytest.raises(UsageError) as caught:
        check_divides(36, [("v5e-16", 4), ("v5e-32", 8), ("v5e-8", 1)])
    said = str(caught.value)
    assert "cannot be divided among the hosts of v5e-32 (8 hosts); v5e-16, v5e-8 would do" in said
    assert "It can be among 1, 2, 3, 4, 6, 9, 12, 18, 36 hosts" in said


def test_a_batch_that_a_slice_cannot_divide_is_refused_when_the_options_are_written() -> None:
    check_options(Options(accelerator="v5e-16", global_batch=1024))
    with pytest.raises(UsageError, match=r"global_batch=1022 cannot be divided among the hosts of v5e-16 \(4 hosts\)"):
        check_options(Options(accelerator="v5e-16", global_batch=1022))
    with pytest.raises(UsageError, match=r"v5e-16 \(12 hosts\)"):
        check_options(Options(accelerator="v5e-16", global_batch=1024, cloud=TpuVm(num_slices=3)))
    for wrong in (-1, True, 2.5, "32"):
        with pytest.raises(UsageError, match="give the samples of one step on all hosts together"):
            check_options(Options(global_batch=wrong))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reshard is 1, and should be True or False"):
        check_options(Options(reshard=1))  # type: ignore[arg-type]


def test_a_plan_keeps_both_and_is_what_it_was_without_them() -> None:
    plain = planner.make_plan(JobSpec("train", Options(accelerator="v5e-16")), SETTINGS)
    assert not {"reshard", "global_batch"} & plain.to_json().keys()
    options = Options(accelerator="v5e-16", reshard=True, global_batch=1024)
    plan = planner.make_plan(JobSpec("train", options), SETTINGS)
    assert Plan.from_json(plan.to_json()) == plan
    assert (plan.reshard, plan.global_batch) == (True, 1024)
    shown = planner.describe(plan)
    assert "global batch 1024 = 4 hosts × 256" in shown and "restores checkpoints of other sizes" in shown
