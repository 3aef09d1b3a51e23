"""A job's host on this machine, entered by the commands, as processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import kinetic_orchestration as kinetic
from tests.support.entered import forwarded, kinor, page, program_of
from tests.support.ports import held_port
from tests.support.waits import wait_until


def test_a_host_of_this_machine_is_entered_and_what_it_serves_is_told_in_json(home: Path, tmp_path: Path) -> None:
    gate, ports = tmp_path / "gate", tmp_path / "port"
    job = kinetic.run(accelerator="cpu")(program_of(tmp_path / "project").serves).run_async(str(gate), str(ports))
    wait_until(lambda: (tmp_path / "port-0").exists() and (tmp_path / "port-0").read_text())
    port = (tmp_path / "port-0").read_text()

    script = 'read line; echo "$KINETIC_JOB_ID $KINETIC_HOST_INDEX $line $1"; echo wrong >&2; exit 7'
    shown = kinor("shell", job.job_id, "--", "sh", "-c", script, "sh", "a  $b; c", given="given\n")
    assert shown[:2] == (7, f"{job.job_id} 0 given a  $b; c\n") and shown.err.endswith("wrong\n")
    shown = kinor("shell", job.job_id, "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert shown.code == 3
    told = {"job_id": job.job_id, "host": 0, "exit_code": 3, "stdout": "out\n", "stderr": "err\n"}
    assert json.loads(shown.out) == told
    shown = kinor("shell", job.job_id, "--", "no-such-program")
    assert shown.code == 5 and "no-such-program: No such file" in shown.err

    shown = kinor("port-forward", job.job_id, port, "--json")  # it is this machine's own
    address = f"127.0.0.1:{port}"
    assert json.loads(shown.out) == {"job_id": job.job_id, "host": 0, "port": int(port), "address": address}
    shown = kinor("tensorboard", job.job_id, "--port", port, "--json")
    assert shown.code == 0 and json.loads(shown.out) == {"job_id": job.job_id, "url": f"http://{address}/"}
    with held_port() as held:
        other = held.getsockname()[1]
    with forwarded("port-forward", job.job_id, f"{port}:{other}") as led:
        assert led["address"] != address and page(led["address"], "3000000") == b"host 0" + b"x" * 3_000_000

    gate.touch()
    assert job.result(timeout=60) == "gone through"
    shown = kinor("shell", job.job_id, "--", "true")
    assert shown.code == 5 and "it has ended, succeeded" in shown.err
