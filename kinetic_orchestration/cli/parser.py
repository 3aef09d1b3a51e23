"""The arguments of every command. Only argparse is loaded here: `--help` must be quick."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from kinetic_orchestration.cli import codes

PROGRAM = "kinetic-orchestration"

_LAYOUT = argparse.RawDescriptionHelpFormatter
_EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code:<5} {meaning}" for code, meaning in codes.MEANING.items())
_EPILOG = f"""{_EXIT_CODES}

`ko` is short for `{PROGRAM}`. --json prints one JSON document; `logs`, which streams, one on each line.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(codes.USAGE, f"kinetic: error: {message}\nSee: {self.prog} --help\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from kinetic_orchestration import __version__

        print(PROGRAM, __version__)
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Run Python training steps on TPUs: look after the jobs, and see what a job would be.",
        epilog=_EPILOG,
        formatter_class=_LAYOUT,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(json=False, store=None, deployment=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _here(commands)
    _jobs(commands)
    _upkeep(commands)
    return parser


def _here(commands: Any) -> None:
    _add(commands, "doctor", "show each setting and where it came from, and check this machine", place=True)

    command = _add(commands, "accelerators", "list the slices that have a name, or draw one")
    command.add_argument("name", nargs="?", metavar="NAME", help="such as v5e-16, v5p-4x4x4, a100x4 or cpu:8")

    command = _add(commands, "plan", "print what would be run and sent; nothing is run or sent", place=True)
    command.add_argument("target", metavar="FILE:FUNCTION", help="such as train.py:train; FILE may be a module")
    command.add_argument("--accelerator", metavar="NAME", help="plan for this one; a plain function needs it")
    command.add_argument("--files", action="store_true", help="name every file that would travel")

    command = _add(commands, "lock", "resolve requirements into a lock with hashes, for `requirements=`")
    command.add_argument("requirements", metavar="REQUIREMENTS", help="requirements.txt, pyproject.toml, …")
    command.add_argument("-o", "--output", metavar="FILE", help="write it there instead of printing it")
    command.add_argument("--python", metavar="VERSION", help="a version such as 3.12, or an interpreter's path")
    command.add_argument("--platform", metavar="NAME", help="the hosts' platform as uv names it, if not this one")
    command.add_argument("--refresh", action="store_true", help="ask the index even if the answer is known")


def _jobs(commands: Any) -> None:
    command = _add(commands, "jobs", "list the jobs that have not ended", place=True)
    command.add_argument("--all", action="store_true", help="those that ended, too")

    command = _add(commands, "status", "show one job with its attempts; asking also moves it on", place=True)
    _job(command)

    command = _add(commands, "logs", "print what the hosts wrote", place=True)
    _job(command)
    command.add_argument(
        "-f", "--follow", action="store_true",
        help="until the job ends; the exit code is then the job's. Ctrl-C leaves it running",
    )  # fmt: skip
    command.add_argument("--host", type=_count, metavar="N", help="of one host alone, without its prefix")
    command.add_argument("-n", "--tail", type=_count, metavar="N", help="only the last N lines")

    command = _add(commands, "result", "wait for a job's value and print it, or what it raised", place=True)
    _job(command)
    command.add_argument("--timeout", metavar="TIME", help="wait no longer: seconds, 90s, 15m, 2h; 0 only asks")

    command = _add(commands, "cancel", "end jobs and free their hosts", place=True)
    command.add_argument("job", nargs="+", metavar="ID", help="a job's id, or the beginning of one")
    command.add_argument("--reason", default="", metavar="TEXT", help="kept with the job")
    command.add_argument("--timeout", default="180s", metavar="TIME", help="how long to wait for its end (180s)")


def _upkeep(commands: Any) -> None:
    command = _add(commands, "reap", "remove what no job wants any more, and records past their time", place=True)
    command.add_argument("--dry-run", action="store_true", help="only name it")

    command = _add(commands, "cost", "add up what jobs have cost, by list prices", place=True)
    command.add_argument("--since", default="7d", metavar="TIME", help="how far to look back (7d)")
    command.add_argument("--by", choices=("day", "week", "month"), default="day", help="one line for each (day)")

    _add(commands, "emulator", "run a Cloud TPU emulator; comes with the Cloud TPU backend")


def _add(commands: Any, name: str, about: str, *, place: bool = False) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=_EXIT_CODES,
        formatter_class=_LAYOUT, allow_abbrev=False,
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    if place:
        command.add_argument("--store", metavar="URL", help="the store, if not the one of the settings")
        command.add_argument("--deployment", metavar="NAME", help="the deployment in it")
    return command


def _job(command: argparse.ArgumentParser) -> None:
    command.add_argument("job", metavar="ID", help="the job's id, or the beginning of one")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
