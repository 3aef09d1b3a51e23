"""Restores a part of a state by its paths: the weights of another training, into a state that has others, too.

A path names a leaf, or all that lies below it: `params/encoder` has `params/encoder/w`. Within an object with a state
of its own it also reaches names that are joined by dots, as torch's are: `model/encoder` has `encoder.weight` of
`model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kinetic_orchestration.errors import CheckpointDiffers, UsageError
from kinetic_orchestration.host.process.frameworks.spread import Layouts
from kinetic_orchestration.program.checkpoints import commits, trees
from kinetic_orchestration.program.checkpoints.commits import Commit, Leaf


def checked(only: Iterable[str] | None) -> tuple[str, ...]:
    """Return the paths; () for all. Raises UsageError."""
    if only is None:
        return ()
    paths = [] if isinstance(only, (str, bytes)) else list(only)
    if not paths or not all(isinstance(path, str) and path.strip("/") for path in paths):
        raise UsageError(f"only is {only!r}: give a list of paths in the state, such as ['params/encoder']")
    return tuple(sorted({path.strip("/") for path in paths}))


def is_chosen(path: str, only: Iterable[str]) -> bool:
    """Return True if a path is one of these, or lies below one."""
    return any(path == one or path.startswith(f"{one}/") for one in only)


class Chosen:
    """The part of a state, and of a checkpoint of it, that `only` chooses."""

    def __init__(self, state: Any, record: Commit, plain: Mapping[str, Any], only: tuple[str, ...]) -> None:
        """Raises CheckpointDiffers if the two do not fit, or have nothing of what is chosen."""
        self._state = state
        self._all = dict(trees.named(state))
        self.leaves = {path: leaf for path, leaf in self._all.items() if is_chosen(path, only)}
        within = {
            path: tuple(one for one in only if one.startswith(f"{path}/"))
            for path, leaf in self._all.items()
            if path not in self.leaves and trees.keeps(leaf)
        }
        parts = {path: _Within(self._all[path], path, paths) for path, paths in within.items() if paths}
        self._check(record, plain, only, parts)
        self.leaves |= parts

    def _check(
        self, record: Commit, plain: Mapping[str, Any], only: tuple[str, ...], parts: Mapping[str, _Within]
    ) -> None:
        here = trees.described(self.leaves) | {path: PLAIN for path, leaf in self.leaves.items() if _is_plain(leaf)}
        saved = {path: leaf for path, leaf in record.leaves.items() if is_chosen(path, only)}
        saved |= {path: PLAIN for path in (*plain, *record.apart) if is_chosen(path, only)}
        for path, part in parts.items():
            here |= part.here()
            saved |= part.saved(plain.get(path))
        told = [f"{one} is nowhere in the checkpoint" for one in only if not _reached(one, saved)]
        told = told or commits.differences(saved, here)
        if told:
            raise CheckpointDiffers(
                f"the checkpoint of step {record.step} in {record.folder} does not have what only={list(only)} is to "
                "restore:\n  " + "\n  ".join(told[: commits.SHOWN + 1])
            )
        shown = [path for path, leaf in self._all.items() if path not in self.leaves and _has_no_value(leaf)]
        if shown:
            raise CheckpointDiffers(
                f"{', '.join(shown[: commits.SHOWN])} would stay as given, and is given without a value "
                "(ShapeDtypeStruct): give an array there, or name it in only="
            )

    def restorer(
        self,
        plain: Mapping[str, Any],
        fetch: trees.Fetch,
        look: trees.Look,
        layouts: Mapping[str, Layouts] = trees.NO_LAYOUTS,
    ) -> Callable[[], Any]:
        """Return a function that restores what is chosen, and leaves all else as it is, as `trees.restorer` does."""
        give = trees.restorer(self.leaves, plain, fetch, look, layouts)

        def given() -> Any:
            made = give()
            found = {path: one._kept if isinstance(one, _Within) else one for path, one in made.items()}
            return trees.rebuilt(self._state, self._all | found)

        return given


PLAIN = Leaf("a plain value, or an object with a state of its own", ())


class _Within:
    """A part of the state of an object: what is chosen is restored, and the rest stays as it is."""

    each_hosts_own = False

    def __init__(self, kept: Any, path: str, only: tuple[str, ...]) -> None:
        self._kept = kept
        self._path = path
        self._only = only
        ways = trees._ways(kept)
        assert ways is not None
        self._read, self._take = ways

    def here(self) -> dict[str, Leaf]:
        return dict(_leaves(self._read(), self._path, self._only))

    def saved(self, told: Any) -> dict[str, Leaf]:
        return dict(_told(told, self._path, self._only))

    def state_dict(self) -> Any:
        return self._read()

    def load_state_dict(self, saved: Any) -> None:
        self._take(_merged(self._read(), saved, self._path, self._only))


def _merged(now: Any, saved: Any, path: str, only: tuple[str, ...]) -> Any:
    if _is_within(path, only):
        return saved
    if not isinstance(now, Mapping) or not isinstance(saved, Mapping):
        return now
    made = {key: _merged(one, saved[key], f"{path}/{key}", only) if key in saved else one for key, one in now.items()}
    return type(now)(made) if isinstance(now, dict) else made


def _leaves(now: Any, path: str, only: tuple[str, ...]) -> Iterable[tuple[str, Leaf]]:
    if isinstance(now, Mapping):
        for key, one in now.items():
            yield from _leaves(one, f"{path}/{key}", only)
    elif _is_within(path, only):
        yield path, trees._leaf(now, path) if hasattr(now, "dtype") and hasattr(now, "shape") else PLAIN


def _told(told: Any, path: str, only: tuple[str, ...]) -> Iterable[tuple[str, Leaf]]:
    """The same of a checkpoint's plain values, by the tags of `trees`."""
    if isinstance(told, dict) and "dict" in told:
        for key, one in told["dict"]:
            yield from _told(one, f"{path}/{key}", only)
    elif told is not None and _is_within(path, only):
        is_array = isinstance(told, dict) and "array" in told
        yield path, Leaf(told["dtype"], tuple(told["shape"])) if is_array else PLAIN


def _is_within(path: str, only: Iterable[str]) -> bool:
    return any(path == one or path.startswith((f"{one}/", f"{one}.")) for one in only)


def _reached(one: str, saved: Iterable[str]) -> bool:
    return any(_is_within(path, [one]) for path in saved)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, (*trees.PLAIN, trees.Engine)) or trees.keeps(leaf)


def _has_no_value(leaf: Any) -> bool:
    return type(leaf).__name__ == "ShapeDtypeStruct"
