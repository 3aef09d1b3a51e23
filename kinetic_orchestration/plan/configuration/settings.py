"""The only reader of the environment and of profile files. All other modules are passed frozen `Settings`.

Precedence: argument > `KINETIC_*` variable > profile file > default; `sources` remembers where each value came from.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration import cluster_names, store_address
from kinetic_orchestration.plan.messages import warn
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from pathlib import Path  # which takes longer than all of this module: most processes only declare jobs

    from kinetic_orchestration.plan.configuration.budgets import Budget
    from kinetic_orchestration.plan.configuration.chip_shares import Share
    from kinetic_orchestration.plan.hardware.price_list import PriceList

HIGHEST_PRIORITY = 999
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Setting(NamedTuple):
    """The sources of a setting: its variable, or its default; both are texts."""

    variable: str
    default: str
    meaning: str
    read: Callable[[str, str], Any]  # its value, from what errors call it and its text


def _plain(name: str, text: str) -> str:
    return text


def seconds(name: str, value: float | str | None) -> float | None:
    """A duration: a number of seconds, or a number with a unit."""
    if value is None:
        return None
    number: float
    try:
        if isinstance(value, str):
            text = value.strip().lower()
            unit = _UNITS.get(text[-1:])
            number = float(text[:-1]) * unit if unit else float(text)
        else:
            number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {value!r}: give seconds, or a text such as '90s', '15m', '2h' or '1d'") from None
    if not number >= 0:  # nor is it one that is no number
        raise UsageError(f"{name} is {value!r}: it cannot be negative")
    return number


def _duration(name: str, text: str) -> float:
    return seconds(name, text) or 0.0


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise UsageError(f"{name} is {text!r}: say true or false")


def _whole(name: str, text: str) -> int:
    if text and not text.isdecimal():
        raise UsageError(f"{name} is {text!r}: give a whole number")
    return int(text or "0")


def _several(name: str, text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _namespace(name: str, text: str) -> str:
    if text:
        cluster_names.check(name, text, cluster_names.NAMESPACE)
    return text


def _namespaces(name: str, text: str) -> tuple[str, ...]:
    return tuple(_namespace(name, one) for one in _several(name, text))


def _queue(name: str, text: str) -> str:
    for one in _several(name, text):
        cluster_names.check(name, one, cluster_names.OF_QUEUE)
    return text


def _priority(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,3}", text):
        raise UsageError(f"{name} is {text!r}: give a whole number from -999 to 999; jobs of a higher one go first")
    return int(text)


def _budgets(name: str, text: str) -> tuple[Budget, ...]:
    if not text:
        return ()
    from kinetic_orchestration.plan.configuration import budgets  # which few deployments have

    return budgets.read(name, text)


def _chips(name: str, text: str) -> tuple[Share, ...]:
    if not text:
        return ()
    from kinetic_orchestration.plan.configuration import chip_shares  # as well

    return chip_shares.read(name, text)


def _table(name: str, text: str) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in _several(name, text))


def _origin(name: str, text: str) -> str:
    return text.rstrip("/")


def _owner_lost(name: str, text: str) -> str:
    if text not in ("continue", "abort"):
        raise UsageError(f"{name} is {text!r}; it can be 'continue' or 'abort'")
    return text


def _prices(name: str, text: str) -> dict[str, float]:
    if not text:
        return {}
    from kinetic_orchestration.plan.hardware import regions
    from kinetic_orchestration.plan.hardware.price_list import FLEX_START, RESERVATION, SPOT

    prices, known = {}, (SPOT, FLEX_START, RESERVATION)
    for entry in _several(name, text):
        chip, _, value = (part.strip() for part in entry.partition("="))
        place, _, way = chip.partition(":")
        _, slash, region = place.partition("/")
        if way not in ("", *known):
            raise UsageError(f"{name} has {entry!r}: behind ':' comes {', '.join(known)}, or nothing")
        if slash and not regions.is_region(region):
            zone = regions.region_of(region)
            meant = repr(zone) if regions.is_region(zone) else "such as 'us-west4'"
            raise UsageError(f"{name} has {entry!r}: behind '/' comes a region, {meant}, or nothing without '/'")
        if chip in prices:
            raise UsageError(f"{name} has two prices of {chip}: keep one")
        prices[chip] = _price(name, entry, value)
    return prices


def _price(name: str, entry: str, value: str) -> float:
    try:
        usd = float(value)
    except ValueError:
        usd = math.nan
    if usd == 0:
        raise UsageError(
            f"{name} has {entry!r}: nothing costs 0, and budgets and limits would never end such a job. Leave it out "
            "if its price is not known"
        )
    if not 0 < usd < math.inf:
        raise UsageError(f"{name} has {entry!r}: write dollars per chip-hour, as v5e=1.2")
    return usd


def _built_in() -> PriceList:
    from kinetic_orchestration.plan.hardware.price_list import BUILT_IN  # whoever only declares a job needs none

    return BUILT_IN


def _key(name: str, text: str) -> str:
    """A secret that goes into a header. An error never shows it."""
    if not re.fullmatch(r"[A-Za-z0-9_.~+/=-]*", text):
        raise UsageError(f"{name} has a character that no API key has, such as a space or the end of a line")
    return text


def _needed(variable: str, meaning: str) -> Any:
    """A field of `Settings` that must be given."""
    return field(metadata={"setting": Setting(variable, "", meaning, _plain)})


def _setting(
    variable: str,
    meaning: str,
    default: str = "",
    read: Callable[[str, str], Any] = _plain,
    *,
    shown: bool = True,
) -> Any:
    """A field of `Settings` that need not be given; its default is read as any text is."""
    setting = Setting(variable, default, meaning, read)
    return field(default_factory=functools.partial(read, variable, default), repr=shown, metadata={"setting": setting})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force: the meaning of each, and how it is read.

    The table of docs/reference/settings.md explains each in the same words.
    """

    home: Path = _needed(  # noqa: RUF009 - a field
        "KINETIC_HOME",
        "the folder for the local store, stat indexes, environments, running placements, and what is trusted",
    )
    store: str = _needed("KINETIC_STORE", "the store: a folder, gs://bucket/prefix or s3://bucket/prefix")
    deployment: str = _needed("KINETIC_DEPLOYMENT", "the prefix of everything in the store")
    backend: str = _needed("KINETIC_BACKEND", "where jobs run")
    require_hardware: bool = _setting("KINETIC_REQUIRE_HARDWARE", "refuse every emulation", "false", _boolean)
    project: str = _setting("KINETIC_PROJECT", "the Google Cloud project")
    zone: str = _setting("KINETIC_ZONE", "one zone, used if zones is not set or only in a profile")
    zones: tuple[str, ...] = _setting(
        "KINETIC_ZONES", "zones separated by commas, in the order in which they are tried", read=_several
    )
    zone_patience: float = _setting(
        "KINETIC_ZONE_PATIENCE", "the time to wait in one zone's queue if there are others", "15m", _duration
    )
    network: str = _setting("KINETIC_NETWORK", "the network of the VMs")
    subnetwork: str = _setting("KINETIC_SUBNETWORK", "the subnetwork of the VMs")
    service_account: str = _setting("KINETIC_SERVICE_ACCOUNT", "the account of the VMs")
    impersonate: str = _setting("KINETIC_IMPERSONATE", "the service account that the client acts as")
    quota_project: str = _setting("KINETIC_QUOTA_PROJECT", "the project that API requests are counted against")
    prices: Mapping[str, float] = _setting(
        "KINETIC_PRICES", "dollars per chip-hour: v5e=1.2,v5e/us-west4:spot=0.5", read=_prices
    )
    listed: PriceList = field(default_factory=_built_in, repr=False)  # what `kinor prices --refresh` keeps: the home's,
    # until `capacity.prices.in_force` has read the deployment's
    billing_key: str = _setting(
        "KINETIC_BILLING_KEY", "an API key with which Google's prices are read without a login", read=_key, shown=False
    )
    budgets: tuple[Budget, ...] = _setting(
        "KINETIC_BUDGETS",
        "the most that jobs of a pipeline may cost in a calendar month (UTC): "
        "retrain=500USD,*=300USD:warn,total=2000USD",
        read=_budgets,
    )
    trust_store: bool = _setting(
        "KINETIC_TRUST_STORE",
        "unpickle the content of a bucket even if only the bucket vouches for it",
        "false",
        _boolean,
    )
    signing_key: str = _setting(
        "KINETIC_SIGNING_KEY",
        "16 characters or more that are nowhere in the store: processes with the same key continue each other's jobs",
        shown=False,
    )
    tools: Mapping[str, str] = _setting("KINETIC_TOOLS", "digests of tools that another home has staged", read=_table)
    emulator: str = _setting("KINETIC_EMULATOR", "where an emulated cloud answers over REST", read=_origin)
    emulator_grpc: str = _setting("KINETIC_EMULATOR_GRPC", "where it answers over gRPC")
    storage_emulator: str = _setting("STORAGE_EMULATOR_HOST", "where an emulated Cloud Storage answers", read=_origin)
    cluster: str = _setting(
        "KINETIC_CLUSTER",
        "the cluster of the kubernetes backend: a context of the kubeconfig, by default the current one",
    )
    clusters: tuple[str, ...] = _setting(
        "KINETIC_CLUSTERS",
        "all clusters in which jobs of the deployment may be, separated by commas: leftovers are looked for in each",
        read=_several,
    )
    namespace: str = _setting(
        "KINETIC_NAMESPACE", "the Kubernetes namespace; by default that of the context, on gke default", read=_namespace
    )
    namespaces: tuple[str, ...] = _setting(
        "KINETIC_NAMESPACES",
        "all namespaces in which jobs of the deployment may be, separated by commas, in each of the clusters",
        read=_namespaces,
    )
    queue: str = _setting(
        "KINETIC_QUEUE",
        "the queue of Kueue for jobs that name none, or several separated by commas, in the order of their trial",
        read=_queue,
    )
    chips: tuple[Share, ...] = _setting(
        "KINETIC_CHIPS",
        "the most chips that the deployment, a pipeline or a user may hold at once: v5e=64,total=256,user:*=32",
        read=_chips,
    )
    priority: int = _setting(
        "KINETIC_PRIORITY", "jobs of a higher one have their turn first where chips are shared", "0", _priority
    )
    output_dir: str = _setting("KINETIC_OUTPUT_DIR", "where jobs write their outputs")
    distributed: bool = _setting(
        "KINETIC_DISTRIBUTED", "join the hosts of a slice right after the first import jax", "true", _boolean
    )
    compile_cache: bool = _setting(
        "KINETIC_COMPILE_CACHE", "keep JAX's compiled programs for later jobs", "true", _boolean
    )
    device_metrics: bool = _setting("KINETIC_DEVICE_METRICS", "sample what the devices do", "true", _boolean)
    retention: float = _setting(
        "KINETIC_RETENTION", "the time for which a job's records are kept after its verdict", "30d", _duration
    )
    on_owner_lost: str = _setting(
        "KINETIC_ON_OWNER_LOST", "abort ends a job some 30 s after its submitter died", "continue", _owner_lost
    )
    max_hosts: int = _setting(
        "KINETIC_MAX_HOSTS", "the most hosts that this machine emulates concurrently", read=_whole
    )
    no_tty_debug: bool = _setting(
        "KINETIC_NO_TTY_DEBUG", "let a blocking call with debug=True wait without a terminal", "false", _boolean
    )
    sources: Mapping[str, str] = field(default_factory=dict)


SETTINGS: Mapping[str, Setting] = {
    entry.name: entry.metadata["setting"] for entry in fields(Settings) if entry.metadata
}

# Those that have an effect on every backend.
_OF_CLUSTERS = ("cluster", "clusters", "namespace", "namespaces")
VARIABLES = frozenset(row.variable for name, row in SETTINGS.items() if name not in _OF_CLUSTERS)


def load(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """The settings in force here, with `arguments` (None: not given) before all others."""
    if sys.platform == "win32":
        raise Unsupported(
            "Jobs cannot be run or submitted from Windows itself, which has neither process groups nor the file "
            "locks that the store relies on. Use WSL 2, a Linux machine or macOS."
        )
    from pathlib import Path

    from kinetic_orchestration.plan.hardware import price_list

    environ = copies.environ() if environ is None else environ
    values, sources = _resolved(environ, arguments)
    home = Path(values["home"]).expanduser().absolute() if values["home"] else _default_home()
    home = _usable(home, sources["home"])
    scheme = values["store"][:2]
    if scheme in ("gs", "s3") and values["store"].startswith(f"{scheme}:/") and "://" not in values["store"][:5]:
        raise UsageError(
            f"the store {values['store']!r} ({sources['store']}) has lost a slash, as it happens in pathlib: give the "
            f"address as a text, such as '{scheme}://my-bucket/kinetic'"
        )
    values["store"] = store_address.resolve(values["store"]) or str(home / "store")
    values["backend"] = values["backend"] or _default_backend(values["project"], values["store"])
    if not values["deployment"]:
        if not store_address.is_folder(values["store"]):
            raise UsageError(
                f"the store {values['store']} is shared, so a deployment must be named: it is the prefix of all that "
                "this installation keeps there. Set KINETIC_DEPLOYMENT (or deployment=), for example to 'production'."
            )
        values["deployment"] = "local"
    if values["zone"] and _of_profile(sources["zones"]) and not _of_profile(sources["zone"]):
        values["zones"], sources["zones"] = "", sources["zone"]  # the one zone that a variable names counts more
    values["zones"] = values["zones"] or values["zone"]
    for usual, named in (("cluster", "clusters"), ("namespace", "namespaces")):
        if not values[usual] and (several := _several(named, values[named])):
            values[usual], sources[usual] = several[0], sources[named]
    read = {name: row.read(_where(name, sources[name]), values[name]) for name, row in SETTINGS.items()}
    return Settings(**{**read, "home": home}, listed=price_list.read(home), sources=sources)


def with_project(settings: Settings, project: str) -> Settings:
    """Return the settings as they are for a project that became known after they were loaded."""
    backend = settings.backend
    if settings.sources["backend"] == "default":
        backend = _default_backend(project, settings.store)
    return replace(settings, project=project, backend=backend, sources={**settings.sources, "project": "argument"})


def _default_backend(project: str, store: str) -> str:
    return "tpu-vm" if project and store_address.bucket_path(store) is not None else "local"


def stated(name: str) -> str:
    """Return a setting from its variable or profile, as text; "" if neither has it."""
    values, sources = _resolved(copies.environ(), {})
    return "" if sources[name] == "default" else values[name]


def variables(*names: str) -> dict[str, Any]:
    """Return those of these settings that variables of this process have. Reads no file. Raises UsageError for a text
    that is no such setting."""
    environ, rows = copies.environ(), ((name, SETTINGS[name]) for name in names)
    return {name: row.read(row.variable, text) for name, row in rows if (text := environ.get(row.variable))}


def _resolved(environ: Mapping[str, str], arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Each setting as text, and where it came from."""
    if environ.get("KINETIC_EVENTS"):  # on a host, this is the running job's own folder and no setting
        environ = {name: value for name, value in environ.items() if name != "KINETIC_OUTPUT_DIR"}
    profile, profile_source = _profile(environ)
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name, row in SETTINGS.items():
        if (argument := arguments.get(name)) is not None:
            values[name], sources[name] = text_of(argument), "argument"
        elif environ.get(row.variable):
            values[name], sources[name] = environ[row.variable], row.variable
        elif name in profile:
            values[name], sources[name] = text_of(profile[name]), profile_source
        else:
            values[name], sources[name] = row.default, "default"
    if not values["project"] and environ.get("GOOGLE_CLOUD_PROJECT"):
        values["project"], sources["project"] = environ["GOOGLE_CLOUD_PROJECT"], "GOOGLE_CLOUD_PROJECT"
    return values, sources


def text_of(value: Any) -> str:
    """The value as a variable would hold it: a list with commas, a table as name=value."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={entry}" for name, entry in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def duration(value: float) -> str:
    """Seconds as `seconds` reads them, in the largest unit that takes them whole."""
    for unit, length in reversed(_UNITS.items()):
        if value and value % length == 0:
            return f"{value / length:.0f}{unit}"
    return f"{value:g}s"


def profile_file(environ: Mapping[str, str]) -> Path:
    from pathlib import Path

    if environ.get("KINETIC_PROFILE_FILE"):
        return Path(environ["KINETIC_PROFILE_FILE"]).expanduser()
    import platformdirs

    return platformdirs.user_config_path("kinetic-orchestration") / "profiles.toml"


def _profile(environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The active table of the profile file: the one that KINETIC_PROFILE names, else `default`."""
    path = profile_file(environ)
    wanted = environ.get("KINETIC_PROFILE", "")
    if not path.is_file():
        if wanted:
            raise UsageError(f"KINETIC_PROFILE is {wanted!r}, and there is no profile file at {path}")
        return {}, ""
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError) as error:
        raise UsageError(f"the profile file {path} cannot be read: {error}") from None
    name = wanted or "default"
    if wanted and wanted not in tables:
        raise UsageError(f"{path} has no profile {wanted!r}; it has {', '.join(sorted(tables)) or 'none'}")
    table = tables.get(name, {})
    unknown = sorted(set(table) - set(SETTINGS))
    if unknown:
        raise UsageError(f"[{name}] in {path} sets {unknown[0]!r}, which is no setting; known: {', '.join(SETTINGS)}")
    return table, f"[{name}] in {path}"


def _where(name: str, source: str) -> str:
    """Return what an error calls a setting: the variable or the argument that has it, or its name with its profile."""
    return f"{name} ({source})" if _of_profile(source) else name if source in ("argument", "default") else source


def set_by(settings: Settings, *names: str) -> str:
    """Return what an error calls the first of these settings that is set; "" if none is."""
    sources = ((name, settings.sources.get(name, "default")) for name in names)
    return next((_where(name, source) for name, source in sources if source != "default"), "")


def _of_profile(source: str) -> bool:
    return source.startswith("[")


def _default_home() -> Path:
    import platformdirs

    return platformdirs.user_data_path("kinetic-orchestration")


def _usable(home: Path, source: str) -> Path:
    """The folder itself, or a temporary one where it cannot be used (ephemeral pods, read-only roots)."""
    from pathlib import Path

    from kinetic_orchestration.plan.configuration import home as home_module

    advice, ours = "Name a folder that can be written", False
    try:
        home_module.make(home)
        if os.access(home, os.W_OK | os.X_OK):
            return home
        reason = "it is not writable"
    except home_module.Unfit as error:
        reason, advice, ours = error.reason, error.advice, error.ours
    except OSError as error:
        reason = error.strerror or str(error)
    if source != "default" or ours:
        raise UsageError(f"the home {home} ({source}) cannot be used: {reason}. {advice}.")
    import tempfile

    fallback = Path(tempfile.gettempdir()) / f"kinetic-orchestration-{os.geteuid()}"
    try:
        home_module.make(fallback)
    except (home_module.Unfit, OSError) as error:
        raise UsageError(
            f"neither {home} ({reason}) nor {fallback} ({error}) can be used here; set KINETIC_HOME to a folder of "
            "your own"
        ) from None
    warn(
        f"{home} cannot be used ({reason}), so jobs are kept in {fallback}, which may not outlive this machine; "
        "set KINETIC_HOME to keep them elsewhere"
    )
    return fallback
