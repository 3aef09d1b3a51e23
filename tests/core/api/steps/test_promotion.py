"""Promotion of what a job has made: its lineage comes from the job's own records. On a host it is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.on_hosts.steps import promotion as on_a_host
from kinetic_orchestration.errors import JobNotFound, PromotionRefused, Unsupported, UsageError
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("shared_home")


@kinetic.run(accelerator="cpu")
def train(data: str, flag: str = "") -> dict[str, Any]:
    host = kinetic.current()
    Path(host.output_dir, "model.keras").write_bytes(b"weights")
    for step, loss in enumerate((3.0, 2.0, 1.5)):
        host.log_metrics(step=step, loss=loss)
    host.log_metrics(step=3, broken=float("nan"))
    while flag and not os.path.exists(flag):
        time.sleep(0.01)
    return {"data": Path(data).read_text()}


@kinetic.run(accelerator="cpu")
def breaks() -> None:
    """Leave a model, and fail afterwards."""
    Path(kinetic.current().output_dir, "model.keras").write_bytes(b"half of the weights")
    raise ArithmeticError("the loss is not a number")


def test_a_model_that_a_job_made_has_the_lineage_of_the_job(tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("rows")
    job = train.run_async(kinetic.Data(str(rows)))
    job.result()
    promoted = kinetic.promote(job, tmp_path / "ranker", metrics={"accuracy": 0.9})
    told = promoted.lineage
    assert told["job"]["id"] == job.job_id and told["job"]["status"] == "SUCCEEDED" and told["job"]["name"] == "train"
    assert told["job"]["attempts"] == 1 and told["job"]["accelerator"] == "cpu"
    assert told["metrics"] == {"loss": 1.5, "accuracy": 0.9}
    assert len(told["code"]["tree"]) == 64 and len(told["code"]["call"]) == 64
    assert [piece["digest"] for piece in told["data"]] and told["cost"]["charged"] is False
    assert told["requirements"] and told["kind"] == "keras"
    assert promoted.metadata["kinetic.job"] == job.job_id and promoted.metadata["metric.accuracy"] == 0.9
    # The folder says of which job it is; nothing has to be given.
    by_folder = kinetic.promote(job.output_dir, tmp_path / "other", name="ranker")
    assert by_folder.lineage["job"] == told["job"] and by_folder.version == promoted.version
    elsewhere = tmp_path / "copied"
    elsewhere.mkdir()
    (elsewhere / "model.keras").write_bytes(Path(job.output_dir, "model.keras").read_bytes())
    assert kinetic.promote(elsewhere, tmp_path / "third", job=job.job_id).lineage["code"] == told["code"]
    assert kinetic.promote(elsewhere, tmp_path / "fourth").lineage["job"] is None
    with pytest.raises(JobNotFound):
        kinetic.promote(elsewhere, tmp_path / "fifth", job="job-0000000000000000")
    with pytest.raises(UsageError, match="give a JobHandle or the id"):
        kinetic.promote(elsewhere, tmp_path / "fifth", job=7)  # type: ignore[arg-type]


def test_the_model_of_a_job_that_goes_on_or_was_cancelled_is_not_promoted(tmp_path: Path) -> None:
    rows, flag = tmp_path / "rows.txt", tmp_path / "flag"
    rows.write_text("rows")
    job = train.run_async(kinetic.Data(str(rows)), str(flag))
    try:
        wait_until(Path(job.output_dir, "model.keras").exists, "the model")
        with pytest.raises(UsageError, match="has not ended"):
            kinetic.promote(job, tmp_path / "ranker")
    finally:
        job.cancel()
    with pytest.raises(PromotionRefused, match=f"{job.job_id}, which made it, has ended as cancelled"):
        kinetic.promote(job, tmp_path / "ranker")
    assert not (tmp_path / "ranker").exists()


def test_the_model_of_a_failed_job_is_promoted_only_by_who_says_so(tmp_path: Path) -> None:
    job, asked = breaks.run_async(), list[kinetic.Candidate]()
    with pytest.raises(ArithmeticError):
        job.result()

    def is_fine(found: kinetic.Candidate) -> bool:
        asked.append(found)
        return True

    ways: list[tuple[Any, dict[str, Any]]] = [(job, {}), (job.output_dir, {}), (job, {"dry_run": True})]
    for model, more in ways:
        with pytest.raises(PromotionRefused, match=f"{job.job_id}, which made it, has ended as failed") as refused:
            kinetic.promote(model, tmp_path / "ranker", check=is_fine, **more)
        assert "allow_failed=True" in str(refused.value) and f"logs {job.job_id}" in str(refused.value)
    assert not asked and not (tmp_path / "ranker").exists()
    promoted = kinetic.promote(job, tmp_path / "ranker", allow_failed=True)
    assert promoted.lineage["job"]["status"] == "FAILED" and promoted.metadata["kinetic.job_status"] == "FAILED"
    # The version says so wherever it is promoted on to.
    with pytest.raises(PromotionRefused, match="has ended as failed"):
        kinetic.promote(promoted.uri, tmp_path / "production")
    assert kinetic.promote(promoted.uri, tmp_path / "production", allow_failed=True).version == promoted.version


def test_on_a_host_without_the_package_it_is_refused() -> None:
    for use in (on_a_host.promote, on_a_host.move_alias, on_a_host.MLflow, on_a_host.Vertex):
        with pytest.raises(Unsupported, match="is not for use on this host"):
            use("x")  # type: ignore[operator]
