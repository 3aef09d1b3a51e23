"""Tests what is compared with what an evaluation has to reach, on results as lm-eval 0.4.13 writes them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.program.inference.servers.evaluation.scores import (
    Bounds,
    Score,
    below,
    by_name,
    checked_bounds,
    scores_in,
)

RESULTS = {
    "results": {
        "sums": {
            "name": "sums", "alias": "sums", "sample_len": 8, "exact_match,strict": 0.25,
            "exact_match_stderr,strict": 0.1, "exact_match,loose": 0.5, "exact_match_stderr,loose": "N/A",
        },
        "colours": {"alias": " - colours", "acc,none": 0.75, "acc_stderr,none": 0.05, "word_perplexity,none": 12.5},
    },
    "n-samples": {"sums": {"original": 80, "effective": 8}, "colours": {"original": 4, "effective": 4}},
}  # fmt: skip


def found() -> tuple[Score, ...]:
    return scores_in(json.loads(json.dumps(RESULTS)))


def test_each_metric_of_each_task_is_a_score_with_its_filter_error_and_samples() -> None:
    assert found() == (
        Score("colours", "acc", "none", 0.75, 0.05, 4),
        Score("colours", "word_perplexity", "none", 12.5, None, 4),
        Score("sums", "exact_match", "loose", 0.5, None, 8),
        Score("sums", "exact_match", "strict", 0.25, 0.1, 8),
    )


@pytest.mark.parametrize(
    ("at_least", "at_most", "reasons"),
    [
        ({"colours": {"acc": 0.75}}, {}, []),
        ({"colours": {"acc": 0.76}}, {}, ["colours: acc is 0.75, and at least 0.76 is required"]),
        ({}, {"colours": {"word_perplexity": 12.0}}, ["colours: word_perplexity is 12.5, and at most 12 is required"]),
        ({"sums": {"exact_match,loose": 0.5}}, {}, []),
        (
            {"sums": {"exact_match": 0.1}}, {},
            ["sums: exact_match has several filters: name one, exact_match,loose or exact_match,strict"],
        ),
        ({"sums": {"f1": 0.1}}, {}, ["sums: there is no f1; it has exact_match,loose and exact_match,strict"]),
        ({"words": {"acc": 0.1}}, {}, ["words: there is no such task among the results: colours and sums"]),
    ],
)  # fmt: skip
def test_what_is_too_low_too_high_missing_or_ambiguous_is_a_reason(
    at_least: Any, at_most: Any, reasons: list[str]
) -> None:
    assert below(found(), checked_bounds(at_least, at_most)) == tuple(reasons)


def test_a_score_that_is_no_number_passes_nothing() -> None:
    [score] = scores_in({"results": {"t": {"acc,none": math.nan}}})
    bounds = checked_bounds({"t": {"acc": 0.0}}, {"t": {"acc": 1.0}})
    assert below([score], bounds) == (
        "t: acc is nan, and at least 0 is required", "t: acc is nan, and at most 1 is required",
    )  # fmt: skip


@pytest.mark.parametrize("given", [{"t": 0.5}, {"t": {"acc": "high"}}, {"t": {}}, [("t", 1)], {"t": {"acc": math.nan}}])
def test_bounds_of_another_shape_are_refused_by_what_was_given(given: Any) -> None:
    with pytest.raises(UsageError, match=r"at_least.*\{\"gsm8k\": \{\"exact_match\": 0\.5\}\}"):
        checked_bounds(given, None)


def test_no_bounds_are_passed_by_any_score() -> None:
    assert checked_bounds(None, None) == Bounds()
    assert below(found(), Bounds()) == ()


@pytest.mark.parametrize(
    "document", [{}, {"results": []}, {"results": {"t": 3}}, {"results": {"t": {"acc,none": "x"}}}]
)
def test_results_without_a_score_are_none(document: Any) -> None:
    assert scores_in(document) == ()


def test_scores_have_names_of_their_own_also_with_several_filters() -> None:
    assert by_name(found()) == {
        "colours/acc": 0.75, "colours/word_perplexity": 12.5, "sums/exact_match,loose": 0.5,
        "sums/exact_match,strict": 0.25,
    }  # fmt: skip
