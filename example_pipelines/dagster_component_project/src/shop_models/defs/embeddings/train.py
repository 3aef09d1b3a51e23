"""Plain Dagster Pipes: the same script runs with any other client."""

import numpy as np
from dagster_pipes import open_dagster_pipes

with open_dagster_pipes() as pipes:
    words = pipes.get_extra("words")
    vectors = np.random.default_rng(0).normal(size=(len(words), 4))
    pipes.log.info(f"{len(words)} words")
    pipes.report_asset_materialization(metadata={"words": len(words), "norm": float(np.linalg.norm(vectors))})
