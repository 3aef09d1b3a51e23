"""A choice instead of a name: several accelerators, regions and ways of buying, and what each of them is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, kind_with
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.hardware.accelerators import FLEX_START, RESERVATION, SPOT, Way

if TYPE_CHECKING:
    from kinetic_orchestration.plan.declare.spec import Options

WAYS: tuple[str, ...] = get_args(Way)
ORDERS = ("order", "price", "start")
MOST_CHOICES = 64
# Options of how hardware is chosen, bought and held, and of what a program makes of another size. Whatever names
# hardware takes them, in code and in configuration: a resource, run config, templates, a connection.
OF_CAPACITY = ("capacity", "regions", "by", "race", "keep", "priority", "reshard", "global_batch")


@dataclass(frozen=True, slots=True)
class Choice:
    """One accelerator of several, with what holds for it alone.

    Attributes:
        accelerator: Its name, as in `run`.
        capacity: Ways of buying it, in the order in which they are tried; by default the job's.
        regions: Regions of Google Cloud in which it is tried; by default the job's.
        limits: Limits of an attempt on it; by default the job's.
        cloud: Options of its cloud; by default the job's.
    """

    accelerator: str
    capacity: str | Sequence[str] | None = None
    regions: str | Sequence[str] | None = None
    limits: Limits | None = None
    cloud: CloudOptions | None = None


def check_order(by: Any) -> None:
    """Raise UsageError unless choices can be ordered by this."""
    if by not in ORDERS:
        raise UsageError(f"by is {by!r}: it can be {_listed(ORDERS)}{_near(by, ORDERS)}")


def told(options: Options) -> str:
    """Return the options of one way for users."""
    return ", ".join([str(options.accelerator), *(options.capacity or ())])


@contextmanager
def naming(choice: str, among: Sequence[object]) -> Iterator[None]:
    """Say of an error in which of several choices it is."""
    try:
        yield
    except UsageError as error:
        if len(among) <= 1:
            raise
        raise type(error)(f"in the choice of {choice}: {error}") from error


def _alone(options: Options, one: str | Choice) -> Options:
    """Return the options of one accelerator, with its ways and regions as tuples."""
    own = one if isinstance(one, Choice) else Choice(one)
    if not isinstance(own.accelerator, str):
        raise UsageError(f"a Choice has one accelerator, by its name such as 'v5e-8', not {own.accelerator!r}")
    found = replace(
        options,
        accelerator=own.accelerator,
        capacity=_words("capacity", options.capacity if own.capacity is None else own.capacity),
        regions=_words("regions", options.regions if own.regions is None else own.regions),
        limits=options.limits if own.limits is None else own.limits,
        cloud=options.cloud if own.cloud is None else own.cloud,
    )
    for region in found.regions or ():
        _check_region(region)
    return found if found.capacity is None else replace(found, capacity=_capacity(found))


def _words(name: str, given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not found or not all(isinstance(word, str) for word in found):
        example = "['spot', 'on-demand']" if name == "capacity" else "['us-east5', 'europe-west4']"
        raise UsageError(f"{name} is {given!r}: it is a list such as {example}, or None")
    if isinstance(given, str) and "," in given:
        meant = [word.strip() for word in given.split(",") if word.strip()]
        raise UsageError(f"{name} is {given!r}, one text: write the list {meant!r}")
    for word in found:
        if found.count(word) > 1:
            raise UsageError(f"{name} has {word!r} twice: keep one")
    return found


def _check_region(region: str) -> None:
    from kinetic_orchestration.plan.hardware.regions import is_region  # which few jobs name

    if is_region(region):
        return
    zone = region.rpartition("-")[0]
    near = f"it is a zone: name its region, {zone!r}, or zones with cloud=TpuVm(zones=[…]) or Compute(zones=[…])"
    if not is_region(zone):
        near = "regions have names such as 'us-central1', and `gcloud compute regions list` shows them"
    raise UsageError(f"regions has {region!r}, which is no region: {near}")


def _capacity(options: Options) -> tuple[str, ...]:
    """Return the ways of one accelerator, unless its other options contradict them."""
    assert isinstance(options.capacity, tuple) and isinstance(options.accelerator, str)
    for word in options.capacity:
        if word not in WAYS:
            raise UsageError(f"capacity has {word!r}: it can have {_listed(WAYS)}{_near(word, WAYS)}")
    by_name = options.accelerator.strip().lower().endswith(":spot")
    cloud: Any = options.cloud
    reservation, flex_start = getattr(cloud, "reservation", ""), getattr(cloud, "flex_start", False)
    meant: dict[str, tuple[object, str]] = {
        "spot=True": (options.spot, SPOT),
        f"accelerator={options.accelerator!r}": (by_name, SPOT),
        f"cloud={type(cloud).__name__}(flex_start=True)": (flex_start, FLEX_START),
        f"cloud={type(cloud).__name__}(reservation={reservation!r})": (reservation, RESERVATION),
    }
    for said, (is_said, way) in meant.items():
        if is_said and way not in options.capacity:
            raise ConflictingSettings(
                f"{said} and capacity={list(options.capacity)!r}, which lacks {way!r}, exclude each other: add it, or "
                "leave out one of them"
            )
    if RESERVATION in options.capacity and not reservation:
        raise UsageError(
            f"capacity has {RESERVATION!r}, and none is named for {options.accelerator}: name it, as in "
            f"Choice({str(options.accelerator)!r}, cloud=TpuVm(reservation='NAME')), or with Compute or Kubernetes"
        )
    return (SPOT,) if by_name else options.capacity


def _in_order(alone: Sequence[Options]) -> list[tuple[Options, str | None]]:
    """Return each accelerator with each of its ways. The ways of all are tried one after another, in the order in which
    they are first named; no accelerator's own order is changed by that of another."""
    every = list(dict.fromkeys(way for one in alone for way in one.capacity or ()))
    found = []
    for at, one in enumerate(alone):
        rank = 0
        for own, way in enumerate(one.capacity or (None,)):
            rank = rank if way is None else max(rank, every.index(way))
            found.append((rank, at, own, way))
    return [(alone[at], way) for _, at, _, way in sorted(found, key=lambda one: one[:3])]


def _bought(options: Options, way: str | None) -> Options:
    """Return the options of one accelerator that is bought in one way; None for that which its other options say."""
    if way is None:
        return options
    cloud: Any = options.cloud
    if way != RESERVATION and getattr(cloud, "reservation", None):
        cloud = replace(cloud, reservation="")
        cloud = replace(cloud, reservation_bound=False) if isinstance(cloud, Compute) else cloud
    if isinstance(cloud, Compute | Kubernetes):
        cloud = replace(cloud, flex_start=way == FLEX_START)
    if isinstance(cloud, Kubernetes) and way != FLEX_START:
        cloud = replace(cloud, queued_provisioning=False)
    return replace(options, spot=way == SPOT, capacity=(way,), cloud=cloud)


def _listed(words: Sequence[str]) -> str:
    *most, last = map(repr, words)
    return f"{', '.join(most)} or {last}"


def _near(word: Any, words: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(re.sub(r"[\s_]+", "-", word.lower()), words, 1) if isinstance(word, str) else []
    return f": did you mean {near[0]!r}?" if near else ""


def ways(options: Options) -> tuple[Options, ...]:
    """Return the options of each way in which a job may get its hosts, in the user's order: ways of buying outermost,
    accelerators inside. Each has one accelerator by its name, and at most one way.

    Raises:
        UsageError: What is given names none, one twice, or two that exclude each other.
    """
    asked = accelerators_of(options.accelerator)
    several = (asked,) if isinstance(asked, str | Choice) else tuple(asked) if isinstance(asked, list | tuple) else ()
    if not several or not all(isinstance(one, str | Choice) for one in several):
        raise UsageError(f"accelerator is a name such as 'v5e-8', or a list of names, not {asked!r}")
    check_order(options.by)
    if len(several) == 1 and isinstance(several[0], str) and options.capacity is None and options.regions is None:
        return (options if several[0] is asked else replace(options, accelerator=several[0]),)
    alone = [_alone(options, one) for one in several]
    found = [_bought(one, way) for one, way in _in_order(alone)]
    for at, one in enumerate(found):
        if one in found[:at]:
            raise UsageError(f"accelerator names {told(one)} twice: keep one")
    if len(found) > MOST_CHOICES:
        raise UsageError(
            f"{len(several)} accelerators and their ways of buying are {len(found)} choices, and a job has "
            f"{MOST_CHOICES} at most: name fewer"
        )
    return tuple(found)


def accelerators_of(given: Any) -> Any:
    """Return the accelerators that configuration names, as `run` takes them.

    Args:
        given: A name, a mapping of the fields of a `Choice`, a list of these, or a text: names separated by commas,
            or a list in JSON or as Python writes it, as a template renders one. Anything else is returned as it is.

    Raises:
        UsageError: A text is no list, or a mapping has other fields.
    """
    if isinstance(given, str):
        return _of_text(given)
    if isinstance(given, Mapping):
        return _of_mapping(given)
    return [accelerators_of(one) for one in given] if isinstance(given, list | tuple) else given


def from_text(name: str, given: Any) -> Any:
    """Return an option of `OF_CAPACITY` as `run` takes it, if configuration has it as text, as a template renders to.
    What is no such text is returned as it is, to be refused."""
    text = given.strip() if isinstance(given, str) else ""
    if name in ("race", "global_batch", "priority") and re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    return text.lower() == "true" if name == "reshard" and text.lower() in ("true", "false") else given


def form_of(accelerator: Any) -> Any:
    """Return accelerators in a form that is JSON, of which `accelerators_of` makes the same ones."""
    if isinstance(accelerator, list | tuple):
        return [form_of(one) for one in accelerator]
    if not isinstance(accelerator, Choice):
        return str(accelerator) if isinstance(accelerator, str) else accelerator
    given = {entry.name: getattr(accelerator, entry.name) for entry in fields(Choice)}
    for name in ("limits", "cloud"):
        if given[name] is not None:
            given[name] = non_default(given[name])
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return str(value) if isinstance(value, str) else value


def non_default(group: Any) -> dict[str, Any]:
    """Return the options of a group that differ from their defaults."""
    silent = type(group)()
    values = {entry.name: getattr(group, entry.name) for entry in fields(group)}
    return {name: value for name, value in values.items() if value != getattr(silent, name)}


def _of_text(text: str) -> Any:
    text = text.strip()
    if text[:1] in ("[", "{"):
        import ast  # whoever only declares a job loads neither
        import json

        with suppress(ValueError):
            return accelerators_of(json.loads(text))
        with suppress(ValueError, SyntaxError):
            return accelerators_of(ast.literal_eval(text))
        raise UsageError(f"accelerator is the text {text[:200]!r}, which is no list: write names, separated by commas")
    names = [name.strip() for name in text.split(",")]
    return text if len(names) == 1 else names


def _of_mapping(given: Mapping[str, Any]) -> Choice:
    if not isinstance(given.get("accelerator"), str):
        raise UsageError(
            f"a choice names one accelerator, as {{'accelerator': 'v5e-8'}}, and this does not: {given!r:.200}"
        )
    found = dict(given)
    if isinstance(limits := found.get("limits"), Mapping):
        found["limits"] = _made(Limits, "the limits of a choice have", limits)
    if isinstance(cloud := found.get("cloud"), Mapping):
        found["cloud"] = _made(kind_with(cloud), "the cloud of a choice has", cloud)
    choice: Choice = _made(Choice, "a choice has", found)
    return choice


def _made(kind: type, whose: str, given: Mapping[str, Any]) -> Any:
    known = [entry.name for entry in fields(kind)]
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
            raise UsageError(f"{whose} no {name!r}: {hint}")
    return kind(**given)
