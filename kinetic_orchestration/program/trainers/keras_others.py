"""Stores the state of the other callbacks of a fit with its checkpoints, and restores it once all of them have begun.

A table names the attributes of Keras' own callbacks; another one is stored if it has `get_state` and `set_state`. The
log names those without either, which start again. Knows nothing of steps.
"""

from __future__ import annotations

import glob
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kinetic_orchestration.program.checkpoints import trees

_LOST = (
    "{name}'s best so far, {best:.6g}, was written to a host that is gone: {file} is not here, so the next epoch is "
    "the best again. Files that are to outlive a host go below kinetic.current().checkpoint_path()"
)
_COUNTED = ("_batches_seen_since_last_saving", "_last_batch_seen")

# The state of each class of keras.callbacks from epoch to epoch. Keras' other callbacks have files or connections.
KNOWN: Mapping[str, tuple[str, ...]] = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "History": ("epoch", "history"),
    "LearningRateScheduler": (),
    "ModelCheckpoint": ("best", *_COUNTED),
    "OrbaxCheckpoint": ("best", "_total_batches_seen", *_COUNTED),
    "ProgbarLogger": (),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TerminateOnNaN": (),
}


class Others:
    """The callbacks of one fit that are not ours."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Any] = {}
        self._restored: Mapping[str, Any] | None = None

    def meet(self, callbacks: Iterable[Any]) -> None:
        """Register the callbacks by their kinds, and their numbers within a kind, by which the next attempt
        finds them."""
        counted: Counter[str] = Counter()
        self._callbacks.clear()
        for one in callbacks:
            if not type(one).__module__.startswith("kinetic_orchestration."):
                kind = _kind(one) or type(one).__qualname__
                counted[kind] += 1
                self._callbacks[f"{kind} {counted[kind]}"] = one

    def get_state(self) -> dict[str, Any]:
        told = {name: _state_of(one) for name, one in self._callbacks.items()}
        return {name: state for name, state in told.items() if state is not None}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Store the state to restore later: a callback that begins after us resets its own."""
        self._restored = state

    def give_back(self, say: Callable[[str], None]) -> None:
        state, self._restored = self._restored, None
        if state is None:
            return
        anew = []
        for name, one in self._callbacks.items():
            kind, known = _kind(one), state.get(name)
            if known is None:
                anew += [type(one).__qualname__] if not kind or KNOWN[kind] else []
            elif trees.keeps(one):
                one.set_state(known)
            else:
                fresh = getattr(one, "best", None)
                for attribute, value in known.items():
                    setattr(one, attribute, value)
                if lost := _lost_file(one):
                    say(_LOST.format(name=type(one).__qualname__, best=one.best, file=lost))
                    one.best = fresh
                if type(one).__name__ != kind:
                    anew.append(f"what {type(one).__qualname__} has beside Keras' {kind}")
        if anew:
            say(
                f"not kept from before, and begun anew: {', '.join(sorted(anew))}. A callback that has get_state and "
                "set_state gets its own back"
            )


def _lost_file(one: Any) -> str:
    """The path of a best checkpoint's file that is missing on this host; "" if it is present, or none is expected."""
    path = getattr(one, "filepath", "")
    if not path or not getattr(one, "save_best_only", False) or one.best is None or math.isinf(one.best):
        return ""
    pattern = re.sub(r"\{[^}]*\}", "*", re.sub(r"([*?[])", r"[\1]", path))  # of {epoch:02d} and the like
    return "" if "://" in path or glob.glob(pattern) else path


def _kind(one: Any) -> str:
    """The class of Keras that it is one of; "" of any other."""
    for kind in type(one).__mro__:
        if kind.__name__ in KNOWN and kind.__module__.startswith("keras."):
            return kind.__name__
    return ""


def _state_of(one: Any) -> Any:
    """The state to store of a callback; None if there is none."""
    if trees.keeps(one):
        return one.get_state()
    if not (kind := _kind(one)):
        return None
    found = {name: getattr(one, name, None) for name in KNOWN[kind]}
    return {name: _storable(value) for name, value in found.items()}


def _storable(value: Any) -> Any:
    """Logs may hold anything: what cannot be kept is left out of a dictionary."""
    if not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if _is_storable(one)}


def _is_storable(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_storable, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_storable(one) for key, one in value.items())
    is_array = hasattr(value, "dtype") and hasattr(value, "shape") and str(value.dtype) != "object"
    return value is None or is_array or isinstance(value, trees.PLAIN)
