"""`Orbax`: a pytree in a training's state that Orbax writes and reads, at the steps and by the commit of `Training`.

Orbax writes beside the steps (its AsyncCheckpointer), from all hosts at once, and reads onto any topology. It has no
digests of its own: `apart` has them, where the checkpoints are in a folder.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.program.checkpoints import trees
from kinetic_orchestration.program.checkpoints.commits import Leaf

PATIENCE = 600  # seconds that Orbax' hosts wait for each other; a checkpoint of ours waits no longer


class Orbax:
    """A part of a state that Orbax writes, within the checkpoints of `Training`.

        training = kinetic.Training(every="5m")
        state, done = training.restore({"net": kinetic.Orbax(params), "step": 0})
        params = state["net"].tree

    At each step `Training` is given the new tree: `{"net": kinetic.Orbax(params), …}`. Its arrays may be donated or
    changed after that.

    Args:
        tree: A pytree of JAX arrays, and of numbers. Where it is restored, `jax.ShapeDtypeStruct` with a sharding may
            be in place of an array.

    Attributes:
        tree: The pytree; after `restore` with the values of the checkpoint.

    Raises:
        UsageError: orbax-checkpoint is not installed.
    """

    kind = "orbax"

    def __init__(self, tree: Any) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise UsageError(
                f"Orbax writes with orbax-checkpoint, which is not installed ({error}): add it to the requirements of "
                "the job, or give the tree to Training as it is"
            ) from error
        self.tree = tree
        self._ocp = ocp
        self._writing: Any = None
        self._failure: BaseException | None = None

    def check_place(self, place: str) -> None:
        """Raise UsageError if Orbax cannot write there. In gs:// tensorstore writes, and gcsfs finds the way."""
        if place.startswith("s3://"):
            raise UsageError(
                "Orbax writes to folders and to gs://, and these checkpoints are in s3://: give the tree to Training "
                "as it is"
            )
        if place.startswith("gs://") and not any(map(importlib.util.find_spec, ("gcsfs", "tensorflow"))):
            raise UsageError(
                f"Orbax needs gcsfs to write to {place}, and it is not installed: add it to the requirements of the "
                "job, or give the tree to Training as it is"
            )

    def described(self) -> Mapping[str, Leaf]:
        """Return its arrays by their paths."""
        return {path: trees._leaf(leaf, path) for path, leaf in trees.named(self.tree) if hasattr(leaf, "shape")}

    def begin_writing(self, folder: str) -> None:
        """Copy the arrays to this host, and begin to write them."""
        # One for each checkpoint: an error of an earlier one is raised at its own end, and never later.
        self._writing = self._ocp.StandardCheckpointer(
            async_options=self._ocp.options.AsyncOptions(timeout_secs=PATIENCE)
        )
        self._writing.save(folder, self.tree)

    def end_writing(self, patience: float) -> None:
        """Wait until Orbax has written on all hosts. Raises OSError."""
        self._failure = None
        waiting = threading.Thread(target=self._wait, name="kinetic-orbax", daemon=True)  # Orbax' wait has no end
        waiting.start()
        waiting.join(patience)
        if waiting.is_alive():
            raise OSError(f"Orbax did not end within {patience:.0f} s")
        if self._failure is not None:
            raise OSError(f"Orbax could not write: {self._failure or type(self._failure).__name__}")

    def _wait(self) -> None:
        try:
            self._writing.wait_until_finished()
            self._writing.close()
        except BaseException as error:  # of any kind, by a library's thread
            self._failure = error

    def read_written(self, folder: str) -> None:
        """Restore the tree, with the structure and the sharding of this one."""
        try:
            with self._ocp.StandardCheckpointer() as reader:
                self.tree = reader.restore(folder, self.tree)
        except Exception as error:
            raise CheckpointError(f"Orbax could not read {folder}: {error or type(error).__name__}") from error
