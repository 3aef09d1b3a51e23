"""Many jobs in a store in a folder: the records of one that ran, written again under other ids, names and times."""

from __future__ import annotations

import os
from pathlib import Path

from kinetic_orchestration.protocol import wire

NAMES = ("train_ranker", "evaluate", "embed_documents", "finetune", "nightly_refresh", "ablation")
DAGS = ("ranking", "search", "nightly", "")


def copy(jobs: Path, job_id: str, count: int, *, every: float = 90.0, logs: bool = True) -> list[str]:
    """Write the records of one job again, as those of `count` others, one submitted `every` so many seconds before the
    other. `logs`: also what they wrote and returned. Returns their ids, the newest first."""
    own = jobs / job_id
    records = [path for path in own.rglob("*") if path.is_file() and (logs or path.suffix == ".json")]
    found = [(str(path.relative_to(own)), path.read_bytes(), path.stat().st_mtime_ns) for path in records]
    folders = sorted({os.path.dirname(name) for name, _, _ in found})
    made = []
    for number in range(count):
        made.append(other := f"job-{number:0{len(job_id) - 4}x}")
        for folder in folders:
            os.makedirs(f"{jobs}/{other}/{folder}")
        for name, data, written in found:
            target = f"{jobs}/{other}/{name}"
            if job_id.encode() not in data and name != SPEC:
                os.link(f"{own}/{name}", target)
                continue
            Path(target).write_bytes(_of(other, job_id, name, data, number))
            earlier = written - int((number + 1) * every * 1e9)
            os.utime(target, ns=(earlier, earlier))
    return made


SPEC = "in/spec.json"


def _of(other: str, job_id: str, name: str, data: bytes, number: int) -> bytes:
    """Return a record of another job, by the writer of all records: each has a checksum."""
    if not name.endswith(".json"):
        return data
    fields = wire.decode(data.replace(job_id.encode(), other.encode()).replace(b',"sum":', b',"was":'))
    del fields["was"]
    if name == SPEC:
        fields["name"] = fields["plan"]["name"] = NAMES[number * 7 % len(NAMES)]
        if dag := DAGS[number * 5 % len(DAGS)]:
            fields["origin"] = {"orchestrator": "airflow", "dag": dag, "run": f"scheduled__{number}"}
    return wire.encode(fields)
