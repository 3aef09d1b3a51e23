"""`init` and `deinit`: a Google project is set up for jobs in one command, and what that made is taken back."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.commands import namespaces, renderings
from kinetic_orchestration.cli.output import note, show_json, show_table, working
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import settings as settings_module
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.rest.client import google
from kinetic_orchestration.platforms.google.setup import examination, making, profile, removal, table
from kinetic_orchestration.platforms.google.setup.examination import ABSENT, DELETED, LACKING, THERE, Seen
from kinetic_orchestration.platforms.google.setup.removal import Removal
from kinetic_orchestration.platforms.google.setup.session import Session
from kinetic_orchestration.platforms.google.setup.table import Setup, Wish
from kinetic_orchestration.protocol.system import copies, escaping

NOT_NARROWED = (
    "Rights on TPUs hold in the whole project: Google's conditions do not see the names of TPU VMs, so whoever may "
    "delete one may delete all. Teams that must not be able to take a project each."
)


def init(arguments: Namespace) -> int:
    _check_words(arguments)
    if arguments.kubernetes:
        return namespaces.init(arguments)
    wish = _asked(arguments)
    if arguments.dry_run:
        return renderings.show(wish, arguments.terraform, as_json=arguments.json)
    settings = _settings(wish.project)
    with google(settings) as api, working(f"looking at {wish.project}") as progress:
        session = Session(api, wish.project, progress)
        seen = _look(session, wish)
    if arguments.check:
        return _show_check(seen, session, as_json=arguments.json)
    if not arguments.json:
        _show_plan(seen)
    if not seen.is_whole and not arguments.yes and not _agreed("init", "Make this?"):
        note("nothing was made")
        return codes.OK
    made: Setup | None = seen.made
    if not seen.is_whole:
        with google(settings) as api:
            session = Session(api, wish.project)
            made = _make(session, seen, arguments)
    if made is None:
        note("the APIs were enabled, and nothing else was made; name a network that exists with --network")
        return codes.OK
    return _show_end(made, seen, session, arguments)


def _look(session: Session, wish: Wish) -> Seen:
    names = [api.service for api in table.setup(wish).apis]
    found = examination.project(session, names)
    wish = examination.with_network(session, replace(wish, number=found.number), found.off)
    seen = examination.examine(session, table.setup(wish), found.off)
    if missing := examination.lacking(session, seen):
        raise examination.refusal(missing, wish.project)
    return seen


def _make(session: Session, seen: Seen, arguments: Namespace) -> Setup | None:
    """Make what is missing. What only the enabled APIs show is asked about, too, as it was not in the plan: None if
    that is not wanted."""
    project = seen.made.wish.project
    if seen.off:
        with working(f"enabling APIs of {project}") as session.say:
            making.enable(session, seen.off)
            wish = examination.with_network(session, seen.made.wish, ())
        if wish != seen.made.wish:
            note(f"there is no network {seen.made.wish.network}, so {wish.network} is made, with its rules and NAT")
            if not arguments.yes and not _agreed("init", "Make it, too?"):
                return None
            seen = examination.widened(seen, table.setup(wish))
    with working(f"setting up {project}") as session.say:
        if examination.RESOURCES in seen.off and (missing := examination.lacking(session, seen)):
            raise examination.refusal(missing, project)
        making.make(session, seen)
    return seen.made


def deinit(arguments: Namespace) -> int:
    _check_words(arguments)
    if arguments.kubernetes:
        return namespaces.deinit(arguments)
    wish = _asked(arguments)
    settings = _settings(wish.project)
    with google(settings) as api, working(f"looking at {wish.project}") as progress:
        session = Session(api, wish.project, progress)
        found = examination.project(session, [api.service for api in table.setup(wish).apis])
        planned = removal.plan(session, replace(wish, number=found.number), found.off)
    if not arguments.json:
        _show_removal(planned)
    stays: tuple[tuple[str, str], ...] = ()
    if planned.goes and not arguments.dry_run:
        if not arguments.yes and not _agreed("deinit", "Take this back?"):
            note("nothing was taken back")
            return codes.OK
        with google(settings) as api, working(f"taking back what was made in {wish.project}") as progress:
            session = Session(api, wish.project, progress)
            stays = removal.remove(session, planned)
    if arguments.json:
        names = [table.name_of(item) for item in planned.goes]
        show_json({
            "project": wish.project, "goes" if arguments.dry_run else "gone": names,
            "stays": dict((*planned.stays, *stays)),
        })  # fmt: skip
    else:
        for name, reason in stays:
            print(f"{name} stays: {reason}")
        sys.stdout.flush()
    return codes.ENVIRONMENT if stays else codes.OK


# Questions


_OF_PROJECTS = (
    *(
        "project",
        "bucket",
        "region",
        "network",
        "range",
        "service_account",
        "own_network",
        "shell",
        "check",
        "terraform",
    ),
)
_OF_CLUSTERS = ("cluster", "namespace", "google_account", "queue", "secrets")


def _check_words(arguments: Namespace) -> None:
    """Raise UsageError for an option of the other kind of set-up, and for one that alone says nothing."""
    others = _OF_PROJECTS if arguments.kubernetes else _OF_CLUSTERS
    found = [f"--{name.replace('_', '-')}" for name in others if getattr(arguments, name, None)]
    if found and arguments.kubernetes:
        raise UsageError(f"{', '.join(found)}: with --kubernetes a namespace is set up, which has no such thing")
    if found:
        raise UsageError(f"{', '.join(found)}: only a namespace of a cluster has such a thing: add --kubernetes")
    if getattr(arguments, "terraform", None) and not arguments.dry_run:
        raise UsageError("--terraform writes a module, and makes nothing: add --dry-run")


def _asked(arguments: Namespace) -> Wish:
    """Return the answers, by options, settings, and questions where there is a terminal. Raises UsageError."""
    known = load(store="", deployment="local")
    project = arguments.project or _answer(
        "Project", credentials.project(known), "--project PROJECT", _PROJECTS, command=arguments.command
    )
    region = getattr(arguments, "region", None) or (regions.region_of(known.zones[0]) if known.zones else "")
    if not region and arguments.command == "init":
        region = _answer("Region of the TPUs and of the bucket", "", "--region REGION", _REGIONS, command="init")
    return table.checked(
        Wish(
            project=project, number="0", region=region or "us-central1",
            bucket=arguments.bucket or "",
            network=getattr(arguments, "network", None) or (table.NETWORK if _own(arguments) else examination.DEFAULT),
            own_network=_own(arguments),
            range=getattr(arguments, "range", None) or table.RANGE,
            account=getattr(arguments, "service_account", None) or "",
            submitters=tuple(getattr(arguments, "submitter", ())),
            shell=getattr(arguments, "shell", False),
        )
    )  # fmt: skip


_PROJECTS = "`gcloud projects list` shows those that you may see"
_REGIONS = "such as us-west4, us-central1 or europe-west4; `gcloud compute tpus locations list` shows zones of all"


def _own(arguments: Namespace) -> bool:
    return bool(getattr(arguments, "own_network", arguments.command == "deinit"))


def _answer(question: str, usual: str, option: str, about: str, *, command: str) -> str:
    if not (sys.stdin is not None and sys.stdin.isatty()):
        if usual:
            return usual
        raise UsageError(f"{command} needs {option}, as there is no terminal to ask on; {about}")
    sys.stderr.write(escaping.text(f"{question} ({about}){f' [{usual}]' if usual else ''}: "))
    sys.stderr.flush()
    given = sys.stdin.readline().strip() or usual
    if not given:
        raise UsageError(f"{command} needs {option}; {about}")
    return given


def _agreed(command: str, question: str) -> bool:
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(f"{command} changes a project, and there is no terminal to ask on: add --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _settings(project: str) -> Settings:
    """The settings for the calls, which are counted against the project itself: its APIs are what counts then."""
    known = load(store="", deployment="local", project=project)
    return known if known.quota_project else replace(known, quota_project=project)


# Output


def _show_plan(seen: Seen) -> None:
    made = seen.made
    rows = [(f"API {name.partition('.')[0]}", "enable", _why(made, name)) for name in seen.off]
    rows += [(_name(one.item), _WORDS[one.state], _about(one.item)) for one in seen.found]
    if not made.network:
        rows.append((f"network {made.wish.network}", "use", "of the VMs; another is made if the project has none"))
    show_table(("what", "is", "for"), rows)
    conditions = dict.fromkeys(grant.condition for grant in made.grants if grant.condition is not None)
    print("".join(f"\n{one.title}: {one.expression}" for one in conditions))
    for text in seen.notes:
        print(f"\n{text}")
    print(f"\nProject {made.wish.project} ({made.wish.number}), region {made.wish.region}. {NOT_NARROWED}")
    if made.router is not None:
        print("The router's NAT is charged by Google by the hour while machines use it, and by the GiB.")
    sys.stdout.flush()


_WORDS = {THERE: "there", ABSENT: "make", DELETED: "have back", LACKING: "complete"}


def _why(made: Setup, service: str) -> str:
    return next(api.why for api in made.apis if api.service == service)


def _name(item: table.Item) -> str:
    """Return what tables call an item: of a grant, its role and where."""
    if not isinstance(item, table.Grant):
        return table.name_of(item)
    where = "machines' account" if item.where == table.ACCOUNT else item.where
    return f"{item.role.rpartition('/')[2]} on the {where}"


def _about(item: table.Item) -> str:
    if isinstance(item, table.Bucket):
        return f"the store, in {item.location}; soft delete off, not public"
    if isinstance(item, table.Grant):
        return item.member + (f" if {item.condition.title}" if item.condition else "")
    if isinstance(item, table.Role):
        return ", ".join(item.permissions)
    if isinstance(item, table.Firewall):
        return f"from {', '.join(item.sources)}"
    return getattr(item, "description", "").removeprefix(f"{table.MARK}: ")


def _show_check(seen: Seen, session: Session, *, as_json: bool) -> int:
    if as_json:
        show_json(_document(seen, session))
    else:
        _show_plan(seen)
        note("all of it is there" if seen.is_whole else "something is missing: kinor init without --check makes it")
    return codes.OK if seen.is_whole else codes.ENVIRONMENT


def _document(seen: Seen, session: Session) -> dict[str, Any]:
    return {
        "project": seen.made.wish.project, "number": seen.made.wish.number, "store": seen.made.store,
        "account": seen.made.machines, "apis": list(seen.off),
        "missing": [table.name_of(one.item) for one in seen.missing],
        "there": [table.name_of(one.item) for one in seen.found if one.state == THERE],
        "notes": list(seen.notes), "whole": seen.is_whole, "requests": session.calls,
    }  # fmt: skip


def _show_end(made: Setup, seen: Seen, session: Session, arguments: Namespace) -> int:
    values = profile.settings_of(made, arguments.deployment or _deployment())
    if load(store="", deployment="local").emulator:
        del values["require_hardware"]
    path, name = settings_module.profile_file(copies.environ()), arguments.profile
    written = profile.write(path, name, values)
    command = profile.FIRST_JOB.format(accelerator=arguments.accelerator)
    if written != profile.DIFFERENT and name != "default":
        command = f"KINETIC_PROFILE={shlex.quote(name)} {command}"
    if arguments.json:
        document = _document(seen, session) | {"made": not seen.is_whole, "profile": str(path), "settings": values}
        show_json(document | {"profile_is": written, "first_job": command})
        return codes.OK
    print(f"\n{made.wish.project} is {'ready, as it was' if seen.is_whole else 'set up'}.")
    _show_profile(written, path, name, values)
    _show_rights(arguments.submitter)
    print(
        f"\nA first job, on a spot chip of TPU for some minutes (`kinor doctor` checks all of it first):\n\n  {command}"
    )
    sys.stdout.flush()
    return codes.OK


def _show_profile(written: str, path: Path, name: str, values: dict[str, Any]) -> None:
    if written == profile.DIFFERENT:
        print(
            f"The profile [{name}] in {path} has other settings, and stays. Give --profile NAME for one of its own, or "
            f"set there:\n\n{profile.table_of(name, values)}"
        )
        return
    print(f"Settings: the profile [{name}] in {path} {'has them' if written == profile.ADDED else 'had them already'}.")
    environ = copies.environ()
    for key, value in values.items():
        variable = settings_module.SETTINGS[key].variable
        if environ.get(variable, settings_module.text_of(value)) != settings_module.text_of(value):
            print(f"{variable}={environ[variable]} of this environment counts more than the profile: unset {variable}")


def _show_rights(submitters: Sequence[str]) -> None:
    if submitters:
        print(f"{', '.join(submitters)} may submit jobs. New rights take some minutes to hold everywhere.")
        return
    print(
        "Owners of the project may submit jobs. For anybody else run the same command again with --submitter "
        "user:EMAIL (or group:…, serviceAccount:…): rights on this bucket, this account and TPUs, no administrator's."
    )


def _deployment() -> str:
    import getpass
    import re

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name) or "default"


def _show_removal(planned: Removal) -> None:
    rows = [(_name(item), "goes", _about(item)) for item in planned.goes]
    rows += [(name, "stays", reason) for name, reason in planned.stays]
    if not rows:
        note(f"nothing of a set-up is left in {planned.made.wish.project}")
        return
    show_table(("what", "is", "about"), rows)
    print("\nAPIs stay enabled: others may use them. Google keeps the ids of deleted roles for some weeks.")
    sys.stdout.flush()
