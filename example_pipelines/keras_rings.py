"""What the Keras examples do with a model: train → evaluate → promote. Nothing here knows who calls it, or when.

`training_keras_dagster.py` and `training_keras_airflow.py` do it every week, and `training_keras_sweep.py` tries many
settings of it at once; this module travels with each of them. Rows of your own come in by `rows_of`.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

BATCH = 64


def rows_of(week: str, count: int = 512) -> tuple[Any, Any]:
    """Points of two rings, and on which of them each lies: what was seen in that week."""
    import numpy as np

    random = np.random.default_rng(zlib.crc32(week.encode()))
    ring = random.integers(0, 2, count)
    angle, radius = random.uniform(0, 2 * np.pi, count), 1 + ring + random.normal(0, 0.2, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), ring.astype(np.float32)


def train(week: str, width: int = 32, rate: float = 0.02, epochs: int = 5) -> dict[str, Any]:
    """Runs on every host: each has its share of the rows, and one model learns from all of them."""
    import keras

    host = kinetic.current()
    keras.utils.set_random_seed(7)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    model = keras.Sequential([
        keras.Input((2,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)
    ])  # fmt: skip
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)])
    points, ring = (rows[host.host_index :: host.host_count] for rows in rows_of(week))
    told = model.fit(
        points, ring, batch_size=BATCH // host.host_count, epochs=epochs, verbose=0,
        callbacks=[kinetic.KineticCallback(every="5m", on_nan="stop")],
    )  # fmt: skip
    address = f"{host.output_dir}/model.keras"
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")  # by all hosts, since Keras makes arrays for it, which lie on all of them
        if host.host_index == 0:
            put(address, Path(folder, "model.keras").read_bytes())
    return {"week": week, "model": address, "width": width, "rate": rate, "losses": told.history.get("loss", [])}


def evaluate(trained: dict[str, Any]) -> dict[str, Any]:
    """On the same rows whatever the week, so that models of all weeks can be compared."""
    import keras

    points, ring = rows_of("held out")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(get(trained["model"]))
        model = keras.saving.load_model(path)
    right = (model.predict(points, verbose=0)[:, 0] > 0) == (ring > 0.5)
    return {**trained, "accuracy": float(right.mean())}


def promote(candidate: dict[str, Any], folder: str = "") -> dict[str, Any]:
    """The best model so far, which is the candidate if none was better: its record, with its `number` and whether it
    is the candidate.

    A promotion is a file with the next number, that can be created only once: of several at the same moment one is
    first, and the others look again. None is ever changed or removed, so that nobody reads half of one, and whoever
    wants the model before the last knows which it was.
    """
    folder = folder or candidate["model"].rsplit("/", 2)[0] + "/promoted"
    while True:
        names = listed(folder)
        last = int(names[-1].rpartition("/")[2].removesuffix(".json")) if names else 0
        best = json.loads(get(names[-1])) if names else None
        if best is not None and (best["accuracy"] >= candidate["accuracy"] or best["model"] == candidate["model"]):
            return {**best, "number": last, "is_new": best["model"] == candidate["model"]}
        if create(f"{folder}/{last + 1:06d}.json", json.dumps(candidate).encode()):
            return {**candidate, "number": last + 1, "is_new": True}


# ---- files, here and in a bucket -------------------------------------------------------------------------------------


def blob(address: str) -> Any:
    from google.cloud import storage

    return storage.Blob.from_uri(address, client=storage.Client())


def put(address: str, data: bytes) -> None:
    if "://" in address:
        blob(address).upload_from_string(data)
    else:
        Path(address).write_bytes(data)


def get(address: str) -> bytes:
    return blob(address).download_as_bytes() if "://" in address else Path(address).read_bytes()


def create(address: str, data: bytes) -> bool:
    """Whole or not at all, and only if nobody was first."""
    if "://" in address:
        from google.api_core.exceptions import PreconditionFailed

        try:
            blob(address).upload_from_string(data, if_generation_match=0)
        except PreconditionFailed:
            return False
        return True
    folder = Path(address).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as part:
        part.write(data)
        part.flush()
        os.chmod(part.name, 0o644)  # others read it too
        try:
            os.link(part.name, address)
        except FileExistsError:
            return False
    return True


def listed(folder: str) -> list[str]:
    """The addresses of all JSON files there, in the order of their names."""
    if "://" not in folder:
        return sorted(map(str, Path(folder).glob("[!.]*.json")))
    there = blob(f"{folder}/")
    return sorted(f"gs://{there.bucket.name}/{each.name}" for each in there.bucket.list_blobs(prefix=there.name))
