"""Numbers in what real trainers wrote: the lines here are theirs, as they came through a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import pytest

from kinetic_orchestration.program.trainers import parsers

# MaxText 0.2.5
LOG = (
    "I1130 17:41:28.842525 140180041038720 metric_logger.py:265] completed step: 2, seconds: 0.006, TFLOP/s/device: "
    "0.015, Tokens/s/device: 20046.985, total_weights: 128, loss: 46.188, lm_loss: 46.188, perplexity: 1.1e20"
)
RECORD = (
    '{"learning/grad_norm": 1.0, "learning/indexer_loss": 0.0, "learning/loss": 46.3, "perf/step_time_seconds": %s, '
    '"perf/per_device_tflops": 9.4e-05, "perf/per_device_tflops_per_sec": %s, "perf/per_device_tokens": 128.0, '
    '"perf/per_device_tokens_per_sec": %s, "step": %s, "run_name": "R"}'
)


def test_maxtexts_metrics_are_read_by_step_and_its_throughput_is_a_median() -> None:
    parse = parsers.MaxText(["python", "-m", "x", "steps=10"])
    found: Mapping[str, float] = {}
    for step, seconds in enumerate((0.5, 0.004, 0.005, 0.1, 0.005)):
        found = parse(RECORD % (seconds, 1 / seconds, 128 / seconds, float(step))) or {}
    assert found["step_seconds"] == 0.005 and found["rate"] == 200.0
    assert found["tokens_per_second_per_device"] == pytest.approx(128 / 0.005)
    assert found["tflops_per_second_per_device"] == pytest.approx(200.0)
    assert {name: found[name] for name in ("step", "done", "steps", "loss", "grad_norm")} == {
        "step": 4, "done": 5, "steps": 10, "loss": 46.3, "grad_norm": 1.0,
    }  # fmt: skip
    assert not {"indexer_loss", "run_name", "perf/per_device_tflops"} & set(found), "what says nothing"


def test_maxtexts_log_lines_are_read_by_their_names_whatever_their_order() -> None:
    found = parsers.MaxText()(LOG) or {}
    assert (found["step"], found["done"], found["loss"]) == (2, 3, 46.188)
    assert (found["tokens_per_second_per_device"], found["step_seconds"]) == (20046.985, 0.006)
    more = LOG.replace("seconds: 0.006, ", "").replace("loss: 46.188,", "moe_lb_loss: 0.25, loss: nan,", 1)
    found = parsers.MaxText()(more) or {}
    assert found["moe_lb_loss"] == 0.25 and math.isnan(found["loss"])
    told = "I1 metric_logger.py:1] Completed eval after train step 7, loss=4.100, perplexity=60.3, total_weights=128.0"
    assert parsers.MaxText()(told) == {"step": 7, "eval/loss": 4.1, "eval/perplexity": 60.3, "eval/total_weights": 128}
    assert parsers.MaxText()("Saved a checkpoint at step 4") is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step: 20/90, loss: 0.31", {"step": 20, "steps": 90, "loss": 0.31}),
        ("epoch=1 iter=20 lr=1e-3 train_loss=.5", {"epoch": 1, "step": 20, "lr": 1e-3, "train_loss": 0.5}),
        ("[rank0] Iteration: 3 | val loss: 2.5", {"step": 3, "val loss": 2.5}),
        ("the end: train_loss=-inf", {"train_loss": -math.inf}),
        ("INFO 2026-11-30 17:41:28 port: 8080", None),
        ("step: 3", None),
        ("see http://x:80/step=3:loss", None),
        ("", None),
    ],
)
def test_pairs_of_a_torchrun_script_count_where_they_name_a_step_or_a_loss(
    line: str, found: Mapping[str, float] | None
) -> None:
    assert parsers.Torchrun()(line) == found


def test_what_hugging_faces_trainer_prints_and_its_state() -> None:  # transformers 5.24
    parse = parsers.Transformers()
    printed = "{'loss': '1.442', 'grad_norm': '2.389', 'learning_rate': '4e-05', 'epoch': '0.5'}"
    assert parse(printed) == {"loss": 1.442, "grad_norm": 2.389, "learning_rate": 4e-05, "epoch": 0.5}
    bar = " 25%|██▌       | 5/20 [00:00<00:00, 137.60it/s]"
    assert parse(bar) == {"done": 5, "steps": 20, "rate": 137.6}
    assert parse(" 10%|█ | 2/20 [00:08<01:00, 4.00s/it]") == {"done": 2, "steps": 20, "rate": 0.25}
    assert parse("100%|██████████| 2/2 [00:00<00:00, 316.91it/s]\x1b[A") is None, "the bar of its evaluation"
    assert parse("Loading weights: 100%|██████████| 290/290 [00:00<00:00, 3it/s]") is None
    state = (
        '{\n  "epoch": 2.0,\n  "global_step": 20,\n  "log_history": [\n    {\n      "epoch": 0.5,\n'
        '      "loss": 1.442194366455078,\n      "step": 5\n    },\n    {\n      "eval_loss": 1.2671432495117188,\n'
        '      "step": 10\n    }\n  ],\n  "max_steps": 20\n}\n'
    )
    parse = parsers.Transformers()
    assert [found for line in state.splitlines() if (found := parse(line))] == [
        {"epoch": 0.5, "loss": 1.442194366455078, "step": 5},
        {"eval_loss": 1.2671432495117188, "step": 10},
    ]


def test_what_lightning_shows_and_its_table() -> None:  # lightning 2.6.6
    parse = parsers.Lightning()
    bar = "Epoch 1:  70%|███████   | 7/10 [00:00<00:00, 176.79it/s, v_num=0, train_loss=0.721]"
    assert parse(bar) == {"step": 16, "done": 17, "train_loss": 0.721}
    assert parse("Epoch 1/1  ━━━━━━━━━━ 10/10 0:00:00 • 0:00:00 545.24it/s train_loss: 2.5") == {
        "step": 19, "done": 20, "train_loss": 2.5,
    }  # fmt: skip
    assert parse("Epoch 1:   0%|          | 0/10 [00:00<?, ?it/s]") is None
    assert [parse(line) for line in ("epoch,step,train_loss,val_loss", "0,1,1.75,", "0,3,,2.5")] == [
        None, {"epoch": 0, "step": 1, "train_loss": 1.75}, {"epoch": 0, "step": 3, "val_loss": 2.5},
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(parsers.READY))
@pytest.mark.parametrize(
    "line",
    ["{" * 5000, "{'" * 2000 + "}", '{"step": ' * 900, "a=" * 9000, "1" * 9000, "step=1e999 loss=1e999", "{'a': 1"],
)
def test_no_line_breaks_a_parser(name: str, line: str) -> None:
    parsers.READY[name]([])(line)


@pytest.mark.parametrize("word", ["A", "aB3/", "a.", "a-", "lr1"])
def test_a_long_word_takes_no_time_to_pass_over(word: str) -> None:
    """A picture in base64, say: the command's output waits for its parser."""
    began = time.process_time()
    assert parsers.Torchrun()(word * (60_000 // len(word)) + " step: 1 loss: 2") is None, "beyond what is looked at"
    assert parsers.Torchrun()(word * (15_000 // len(word)) + " step: 1 loss: 2") == {"step": 1, "loss": 2}
    assert time.process_time() - began < 2


def test_a_word_that_is_too_long_for_a_name_gives_none() -> None:
    assert parsers.pairs("--lr=0.1 ...loss: 2 " + "x" * 200 + "=3") == {"lr": 0.1, "loss": 2}
