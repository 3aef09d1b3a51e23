"""Package indexes: pip's own settings, translated for uv, which reads none of them.

Responsible for: finding pip's settings as pip does (its configuration files and PIP_* variables) and turning them into
the variables that uv reads. Settings of uv itself take precedence. Does not know what is to be installed.

The values may hold passwords: they are passed in uv's environment, and never printed or stored.
"""

from __future__ import annotations

import configparser
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from kinetic_orchestration.protocol.system import kernel


class _Rule(NamedTuple):
    """One of pip's options, and uv's equivalent."""

    option: str
    variable: str
    set_by: tuple[str, ...]  # variables that already set it for uv
    convert: Callable[[str], str]
    key: str = ""  # the same setting in uv.toml


def uv_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to the environment of uv so that it installs from where pip would."""
    pip = pip_settings(environ)
    toml = _uv_toml_keys(environ)
    settings = {}
    for rule in _RULES:
        value = pip.get(rule.option)
        if not value or rule.key in toml or any(environ.get(name) for name in rule.set_by):
            continue
        if converted := rule.convert(value):
            settings[rule.variable] = converted
    return settings if "index-strategy" in toml else _pips_strategy(environ, settings)


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that `pip install` would take from its configuration files and from PIP_* variables."""
    files: dict[str, str] = {}
    for path in pip_files(environ):
        files.update(_read_pip_file(path))
    settings = {}
    for section in ("global.", "install."):
        settings.update(
            {name.removeprefix(section): value for name, value in files.items() if name.startswith(section)}
        )
    for name, value in environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE":
            settings[name[4:].lower().replace("_", "-")] = value
    if "default-timeout" in settings:
        settings.setdefault("timeout", settings["default-timeout"])
    return {name: value for name, value in settings.items() if value}


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files that exist, the strongest last."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    if kernel.MACOS:
        shared = [Path("/Library/Application Support/pip")]
        user = home / "Library/Application Support/pip"
        user = user if user.is_dir() else home / ".config/pip"
    else:
        shared = [Path(folder, "pip") for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
        shared.append(Path("/etc"))
        user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip")
    files = [folder / "pip.conf" for folder in shared]
    if not (own and Path(own).exists()):
        files += [home / ".pip/pip.conf", user / "pip.conf"]
    files.append(Path(sys.prefix, "pip.conf"))
    if own:
        files.append(Path(own))
    return [path for path in files if path.is_file()]


def uv_files(environ: Mapping[str, str], folder: Path | None = None) -> list[Path]:
    """uv's configuration files: the project's for work in `folder`, the user's and the machine's."""
    if environ.get("UV_NO_CONFIG"):
        return []
    if own := environ.get("UV_CONFIG_FILE"):
        return [Path(own)] if Path(own).is_file() else []
    project: list[Path] = []
    for parent in (folder, *folder.parents) if folder is not None else ():
        project = [path for name in ("uv.toml", "pyproject.toml") if (path := parent / name).is_file()]
        if project:
            break
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    candidates = [Path(folder, "uv/uv.toml") for folder in (home, *shared, "/etc")]
    return project + [path for path in candidates if path.is_file()]


# uv's settings of where packages come from, which hold on another machine, too. Proxies and certificates do not.
_ANYWHERE = (
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX"),
    *("UV_INDEX_STRATEGY", "UV_PRERELEASE", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES"),
)
_PLACES = _ANYWHERE[:5]
_LOGIN = re.compile(r"UV_INDEX_\w+_(USERNAME|PASSWORD)")


def for_hosts(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """uv's settings for another machine: the public ones, and the secret ones.

    Settings that name a path on this machine are left out. The login of an index in ~/.netrc is added to its address,
    since the other machine has no such file.
    """
    here = {**environ, **uv_settings(environ)}
    found = without_places({name: here[name] for name in _ANYWHERE if here.get(name)})
    found = {
        name: re.sub(r"https?://[^\s,]+", lambda url: _with_login(url.group(), environ), value)
        for name, value in found.items()
    }
    logins = {name: value for name, value in environ.items() if _LOGIN.fullmatch(name)}
    secret = {name: value for name, value in found.items() if re.search(r"://[^/\s@]+@", value)} | logins
    return {name: value for name, value in found.items() if name not in secret}, secret


def without_places(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings without indexes and links on this machine."""
    kept = {}
    for name, value in settings.items():
        entries = [value]
        separator = "," if name == "UV_FIND_LINKS" else " "
        if name in _PLACES:
            entries = [entry for entry in value.split(separator) if entry and _local_path(_address(entry)) is None]
        if entries:
            kept[name] = separator.join(entries)
    return kept


def _address(entry: str) -> str:
    """The address of an index that may be preceded by a name."""
    return re.sub(r"^[\w.-]+=", "", entry.strip())


def _with_login(url: str, environ: Mapping[str, str]) -> str:
    import netrc

    parts = urlsplit(url)
    if "@" in parts.netloc or not parts.hostname:
        return url
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or Path.home(), ".netrc"))
    try:
        found = netrc.netrc(str(path)).hosts.get(parts.hostname)
    except (OSError, netrc.NetrcParseError):
        return url
    if found is None:
        return url
    user, _, password = found
    return parts._replace(netloc=f"{quote(user, safe='')}:{quote(password or '', safe='')}@{parts.netloc}").geturl()


def local_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders among uv's find-links."""
    for entry in environ.get("UV_FIND_LINKS", "").split(","):
        path = _local_path(entry)
        if path is not None and path.is_dir():
            yield path


def add(
    environ: Mapping[str, str], settings: Mapping[str, str], name: str, value: str, separator: str
) -> dict[str, str]:
    """The settings with one more entry in one of uv's lists, after those that are there already."""
    present = settings.get(name) or environ.get(name, "")
    return _pips_strategy(environ, {**settings, name: separator.join(filter(None, (present, value)))})


def find_links(value: str, folder: Path | None = None) -> str:
    """pip's find-links as uv takes them: separated by commas, absolute, and only those that are there."""
    entries = []
    for entry in value.split():
        path = _local_path(entry)
        if path is None:
            entries.append(entry)
            continue
        path = Path(folder or Path.cwd(), path)
        if path.exists():  # uv refuses to start on one that is not
            entries.append(path.as_uri().replace(",", quote(",")) if "," in str(path) else str(path))
    return ",".join(entries)


def indexes(value: str) -> str:
    """Package indexes, without those on this machine's disk that are not there."""
    paths = ((entry, _local_path(entry)) for entry in value.split())
    return " ".join(entry for entry, path in paths if path is None or path.exists())


def _pips_strategy(environ: Mapping[str, str], settings: dict[str, str]) -> dict[str, str]:
    """pip takes the best version of all its indexes; uv stops at the first one that has the name."""
    if "UV_INDEX" in settings and not environ.get("UV_INDEX_STRATEGY"):
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return settings


def _seconds(value: str) -> str:
    try:
        return str(math.ceil(float(value)))
    except ValueError:
        return ""


def _true(value: str) -> str:
    return "1" if value.strip().lower() in ("y", "yes", "t", "true", "on", "1") else ""


def _keyring(value: str) -> str:
    return value if value == "subprocess" else ""


_RULES = (
    _Rule("index-url", "UV_DEFAULT_INDEX", ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), indexes, "index-url"),
    _Rule("extra-index-url", "UV_INDEX", ("UV_INDEX", "UV_EXTRA_INDEX_URL"), indexes, "extra-index-url"),
    _Rule("find-links", "UV_FIND_LINKS", ("UV_FIND_LINKS",), find_links, "find-links"),
    _Rule("no-index", "UV_NO_INDEX", ("UV_NO_INDEX",), _true, "no-index"),
    _Rule("cert", "SSL_CERT_FILE", ("SSL_CERT_FILE",), str.strip),
    _Rule("client-cert", "SSL_CLIENT_CERT", ("SSL_CLIENT_CERT",), str.strip),
    _Rule("trusted-host", "UV_INSECURE_HOST", ("UV_INSECURE_HOST",), lambda value: " ".join(value.split())),
    _Rule("timeout", "UV_HTTP_TIMEOUT", ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT"), _seconds),
    _Rule("retries", "UV_HTTP_RETRIES", ("UV_HTTP_RETRIES",), str.strip),
    _Rule("proxy", "ALL_PROXY", ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), str.strip),
    _Rule("pre", "UV_PRERELEASE", ("UV_PRERELEASE",), lambda value: "allow" if _true(value) else "", "prerelease"),
    _Rule("keyring-provider", "UV_KEYRING_PROVIDER", ("UV_KEYRING_PROVIDER",), _keyring, "keyring-provider"),
)


def _read_pip_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # pip will report the error in it; a job need not fail for it
    return {
        f"{section}.{name.lower().replace('_', '-').removeprefix('--')}": value
        for section in parser.sections()
        for name, value in parser.items(section)
    }


def _uv_toml_keys(environ: Mapping[str, str]) -> set[str]:
    """The keys that the user or the machine has set in uv.toml, which a variable would override."""
    keys: set[str] = set()
    for path in uv_files(environ):
        try:
            table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # uv itself reports it
        keys |= {*table, *table.get("pip", {})}
        for index in table.get("index", []):
            keys.add("index-url" if index.get("default") else "extra-index-url")
    return keys


def _local_path(entry: str) -> Path | None:
    """The path that an index or a link names, None if it is somewhere else."""
    if entry.startswith("file:"):
        return Path(unquote(urlsplit(entry).path))
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", entry) else Path(entry).expanduser()
