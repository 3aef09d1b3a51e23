"""The arguments of every command. Only argparse is loaded here: `--help` must be quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from kinetic_orchestration import __version__
from kinetic_orchestration.cli import codes

PROGRAM = "kinetic-orchestration"

_LAYOUT = argparse.RawDescriptionHelpFormatter
_EXIT_CODES = "exit codes:\n" + "\n".join(f"  {code:<5} {meaning}" for code, meaning in codes.MEANING.items())
_EPILOG = f"""{_EXIT_CODES}

`kinor` is short for `{PROGRAM}`. --json prints one JSON document; `logs`, which streams, one on each line.
"""


class _Parser(argparse.ArgumentParser):
    given: Sequence[str] = ()  # the words of the command line
    lacking: str = ""  # the message for missing arguments, if argparse's own is no help

    def error(self, message: str) -> NoReturn:
        from kinetic_orchestration.plan.declare.keras_kinetic import equivalent_command

        if self.lacking and message.startswith("the following arguments are required"):
            message = self.lacking
        hint = f"{there}.\n" if (there := equivalent_command(self.given)) else ""
        self.exit(codes.USAGE, f"kinetic: error: {message}\n{hint}See: {self.prog} --help\n")


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line. Of `shell`, what stands after `--` is a command of its own."""
    given, words = list(argv), []
    if "--" in given and "shell" in given[: (at := given.index("--"))]:
        given, words = given[:at], given[at + 1 :]
    arguments = make_parser(given).parse_args(given)
    if words:
        arguments.words = words
    return arguments


def make_parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Run Python training steps on TPUs: look after the jobs, and see what a job would be.",
        epilog=_EPILOG,
        formatter_class=_LAYOUT,
        allow_abbrev=False,
    )
    parser.given = [word for word in given if not word.startswith("-")]
    parser.add_argument(
        "--version", action="version", version=f"{PROGRAM} {__version__}", help="print the version and leave"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(json=False, store=None, deployment=None)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _setup(commands)
    _planning(commands)
    _jobs(commands)
    _running_hosts(commands)
    _tools(commands)
    _upkeep(commands)
    for command in commands.choices.values():
        command.given = parser.given
    return parser


def _setup(commands: Any) -> None:
    command = _add(commands, "init", "set up a Google project for jobs: show what is made, ask, make it")
    _of_project(command)
    command.add_argument("--region", metavar="REGION", help="of the TPUs and of the bucket, such as us-west4")
    command.add_argument("--network", metavar="NAME", help="the VMs' network (default; kinetic if there is none)")
    command.add_argument("--own-network", action="store_true", help="make that network, with its rules and NAT")
    command.add_argument("--range", metavar="CIDR", help="the addresses of its subnetwork (10.128.0.0/20)")
    command.add_argument("--service-account", metavar="EMAIL", help="the machines' account, if one exists already")
    command.add_argument(
        "--submitter", action="append", default=[], metavar="MEMBER",
        help="who submits jobs and is no owner: user:EMAIL, group:EMAIL or serviceAccount:EMAIL; repeatable. With "
        "--kubernetes user:NAME, group:NAME or serviceaccount:[NAMESPACE/]NAME (an account that is made)",
    )  # fmt: skip
    command.add_argument("--shell", action="store_true", help="submitters may also open shells on hosts, through IAP")
    command.add_argument("--deployment", metavar="NAME", help="in the profile (your user name)")
    command.add_argument("--profile", default="default", metavar="NAME", help="the profile that is written (default)")
    command.add_argument(
        "--accelerator", default="v5e-1", metavar="NAME", help="of the first job, which is only printed (v5e-1)"
    )
    command.add_argument("--check", action="store_true", help="only look: what is missing, and what differs")
    command.add_argument(
        "--dry-run", action="store_true",
        help="only print the lines of gcloud that make the same; with --kubernetes the objects, with lines of kubectl",
    )  # fmt: skip
    command.add_argument("--terraform", metavar="DIR", help="with --dry-run: write a module for Terraform there")
    _cluster(command)
    _granted(command)
    command.add_argument("-y", "--yes", action="store_true", help="do not ask")

    command = _add(commands, "deinit", "take back what init has made; never a bucket with objects")
    _of_project(command)
    _cluster(command)
    command.add_argument("--dry-run", action="store_true", help="only say what would go, and what stays")
    command.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _of_project(command: Any) -> None:
    command.add_argument("--project", metavar="ID", help="the project (KINETIC_PROJECT, or that of the login)")
    command.add_argument("--bucket", metavar="NAME", help="the store's bucket (PROJECT-kinetic)")


def _planning(commands: Any) -> None:
    command = _add(commands, "doctor", "show each setting and where it came from, and check this machine", place=True)
    command.add_argument(
        "--verify",
        action="store_true",
        help="also read every blob of the store and the home: which are not what they were",
    )
    command.add_argument("target", nargs="?", metavar="FILE:FUNCTION", help="check what jobs of this function need")
    command.add_argument("--accelerator", metavar="NAME", help="check for this one, on the platform that serves it")
    command.add_argument("--spot", action="store_true", help="check for spot capacity of it")
    command.add_argument(
        "--queue", metavar="NAME", help="on Kubernetes: check for jobs of this queue of Kueue; several: a,b"
    )
    command.add_argument(
        "--role", metavar="WHO",
        help="on Kubernetes: only print the Role that such jobs need, as YAML, bound to user:NAME, group:NAME or "
        "serviceaccount:NAMESPACE/NAME",
    )  # fmt: skip

    command = _add(commands, "accelerators", "list the known slices with their price, or draw one")
    command.add_argument("name", nargs="?", metavar="NAME", help="such as v5e-16, v5p-4x4x4, a100x4 or cpu:8")

    command = _add(commands, "plan", "show what would run, be sent and cost; runs nothing", place=True)
    command.add_argument("target", metavar="FILE:FUNCTION", help="such as train.py:train; FILE may be a module")
    command.add_argument("--accelerator", metavar="NAME", help="plan for this one; a plain function needs it")
    command.add_argument("--files", action="store_true", help="name every file that would travel")
    command.add_argument(
        "--admission",
        action="store_true",
        help="on Kubernetes: also have the cluster try the JobSet, of which it stores nothing; else nothing is sent",
    )

    command = _add(commands, "lock", "pin requirements, or what a function imports, with hashes")
    command.add_argument(
        "target", metavar="FILE[:FUNCTION]", help="requirements.txt, pyproject.toml, …; or train.py:train"
    )
    command.add_argument("--accelerator", metavar="NAME", help="for hosts with this one; a function may name it itself")
    command.add_argument("-o", "--output", metavar="FILE", help="write it there instead of printing it")
    command.add_argument("--python", metavar="VERSION", help="a version such as 3.12, or an interpreter's path")
    command.add_argument("--platform", metavar="NAME", help="the hosts' platform as uv names it, if not this one")
    command.add_argument("--refresh", action="store_true", help="ask the index even if the answer is known")


def _jobs(commands: Any) -> None:
    command = _add(commands, "jobs", "list the jobs that have not ended", place=True)
    command.add_argument("--all", action="store_true", help="those that ended, too, the newest 100 first")
    command.add_argument("--limit", type=_count, metavar="N", help="with --all: so many (100; with --json all)")
    command.add_argument("--after", metavar="ID", help="with --all: those that are older than this job")

    command = _add(commands, "status", "show one job; takes its next step if nobody else does", place=True)
    _job(command)

    command = _add(commands, "logs", "print what the hosts wrote", place=True)
    _job(command)
    command.add_argument(
        "-f", "--follow", action="store_true",
        help="until the job ends; the exit code is then the job's. Ctrl-C leaves it running",
    )  # fmt: skip
    command.add_argument("--host", type=_count, metavar="N", help="of one host alone, without its prefix")
    command.add_argument("--full", action="store_true", help="also all that hosts wrote of the end of another one")
    command.add_argument("-n", "--tail", type=_count, metavar="N", help="only the last N lines")

    command = _add(commands, "result", "wait for a job and print its value, or what it raised", place=True)
    _job(command)
    command.add_argument("--timeout", metavar="TIME", help="wait no longer: seconds, 90s, 15m, 2h; 0 only asks")

    command = _add(commands, "cancel", "end jobs and free their hosts", place=True)
    _job(command, "+")
    command.add_argument("--reason", default="", metavar="TEXT", help="kept with the job")
    command.add_argument("--timeout", default="180s", metavar="TIME", help="how long to wait for its end (180s)")

    command = _add(commands, "ui", "show all of it on a page in the browser, which only reads", place=True)
    command.add_argument("--port", type=_port, default=0, metavar="N", help="the port on 127.0.0.1 (any free one)")
    command.add_argument("--no-browser", action="store_true", help="only print the address")


def _running_hosts(commands: Any) -> None:
    command = _add(commands, "shell", "open a shell on a host of a running job, or run a command there", place=True)
    _job(command)
    _host(command)
    command.usage = "%(prog)s [--host N] [--user NAME] [--account EMAIL] [--json] ID [-- COMMAND ...]"
    own = "What stands after -- is run in place of a shell; the exit code is then its own."
    command.description = f"{command.description} {own}"
    command.set_defaults(words=[])

    command = _add(commands, "port-forward", "have a port of this machine lead to one of a running host", place=True)
    _job(command)
    command.add_argument("port", metavar="PORT[:LOCAL]", help="of the host, and of this machine if another: 6006:6007")
    _host(command)

    command = _add(commands, "tensorboard", "open TensorBoard, or XProf, of a running job in one command", place=True)
    _job(command)
    command.add_argument(
        "--port", type=_count, default=6006, metavar="N", help="of this machine, and of the host (6006)"
    )
    command.add_argument("--xprof", action="store_true", help="XProf, on the profiles that the job has written")
    _host(command)


def _host(command: Any) -> None:
    command.add_argument("--host", type=_count, default=0, metavar="N", help="which of its hosts (0)")
    command.add_argument(
        "--user", default="", metavar="NAME", help="on a VM: enter by this name (that of this machine)"
    )
    command.add_argument("--account", default="", metavar="EMAIL", help="on a VM with OS Login: enter as this account")


def _tools(commands: Any) -> None:
    command = _add(commands, "stage-tools", "put uv, Python and wheels into the store, for hosts offline", place=True)
    command.add_argument("--python", metavar="VERSION", help="the interpreter's minor version (this one's)")
    command.add_argument(
        "--offline", dest="target", metavar="FILE[:FUNCTION]",
        help="also all wheels that these requirements need, so that hosts need no package index",
    )  # fmt: skip
    command.add_argument(
        "--accelerator", metavar="NAME[,NAME]", help="the hosts' accelerators; a function may name them itself"
    )


def _upkeep(commands: Any) -> None:
    command = _add(commands, "reap", "remove hosts that no job needs any more, and old records", place=True)
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")

    _cost(commands)
    _add(commands, "capacity", "show where jobs of this deployment found hosts lately, and where none", place=True)
    _add(commands, "shares", "show who holds which chips, who waits for some, and why", place=True)

    command = _add(commands, "slices", "list the slices that are kept warm, and what their idle time costs", place=True)
    command.add_argument("--all", action="store_true", help="those that have ended, too")

    command = _add(commands, "release", "delete slices that are kept warm and no job has", place=True)
    command.add_argument("slice", nargs="*", metavar="SLICE", help="its name, as `kinor slices` shows it")
    command.add_argument("--run", metavar="ID", help="those that this run of an orchestrator left")
    command.add_argument("--all", action="store_true", help="all of them")

    _verify(commands)

    command = _add(commands, "prices", "show the list prices that estimates are made from, each with source and date")
    command.add_argument("--refresh", action="store_true", help="read today's from Google's Billing Catalog first")

    command = _add(commands, "emulator", "run an emulated Google Cloud with TPUs until Ctrl-C", place=True)
    command.add_argument(
        "--backend",
        choices=("tpu-vm", "compute", "gke", "kubernetes"),
        default="tpu-vm",
        help="what the printed lines lead to: TPU VMs, Compute Engine, a cluster of GKE or by a kubeconfig (tpu-vm)",
    )
    command.add_argument("--project", metavar="NAME", help="the project that the printed lines name")
    command.add_argument(
        "--zone", action="append", default=[], metavar="ZONE[=CHIPS]", help="a zone there is; repeatable (all zones)"
    )
    command.add_argument(
        "--provision", type=float, default=0.1, metavar="SECONDS", help="how long it takes to make a slice (0.1)"
    )
    command.add_argument(
        "--faults",
        type=_share,
        default=0.0,
        metavar="RATE",
        help="let that share of calls and slices fail, such as 0.1",
    )
    command.add_argument("--seed", type=_count, default=0, metavar="N", help="which of them: the same ones every time")
    command.add_argument("--root", metavar="DIR", help="where hosts keep their files (a temporary folder)")
    command.add_argument(
        "--bare", action="store_true", help="the project is new: APIs are off, no bucket, no network; for `kinor init`"
    )
    command.add_argument("--print-env", action="store_true", help="print the lines to paste and nothing else")


def _cost(commands: Any) -> None:
    command = _add(commands, "cost", "add up the time and the estimated cost of jobs", place=True)
    command.add_argument("job", nargs="?", metavar="ID", help="of this job alone: its id, or the beginning of it")
    command.add_argument(
        "--since", metavar="TIME", help="how far to look back (7d; by pipeline this month; for a forecast 90d)"
    )
    command.add_argument(
        "--by", choices=("day", "week", "month", "pipeline"), default="day",
        help="one line for each (day); pipeline: for each and month, with its budget",
    )  # fmt: skip
    command.add_argument(
        "--forecast", default="", metavar="PIPELINE", help="what a schedule of it will cost; also of FILE:FUNCTION"
    )
    command.add_argument("--every", default="", metavar="TIME", help="with --forecast: it runs that often, such as 1d")
    command.add_argument(
        "--cron",
        default="",
        metavar="LINE",
        help='with --forecast: it runs at these times, such as "0 3 * * *", in UTC',
    )
    command.add_argument("--jobs", action="store_true", help="one line for each job, too")
    command.add_argument(
        "--prometheus", nargs="?", const="-", default="", metavar="FILE",
        help="this month by pipeline, in Prometheus' text format; FILE.prom for a textfile collector",
    )  # fmt: skip


def _verify(commands: Any) -> None:
    command = _add(commands, "verify", "run on Google Cloud what the emulator proves, and write a report", place=True)
    command.add_argument(
        "--accelerator", default="", metavar="NAME",
        help="of one host, or on Compute Engine a slice, too (v5e-1; on Compute Engine the cheapest GPU)",
    )  # fmt: skip
    command.add_argument(
        "--backend", default="", choices=("tpu-vm", "compute"), help="where, if both have it (by the settings)"
    )
    command.add_argument(
        "--budget", type=float, default=5.0, metavar="USD", help="what it may cost at most, by list prices (5)"
    )
    command.add_argument("--spot", action="store_true", help="ask for spot capacity")
    command.add_argument(
        "--zone", action="append", default=[], metavar="ZONE", help="where; repeatable (KINETIC_ZONES)"
    )
    command.add_argument("--wait", default="20m", metavar="TIME", help="how long capacity is waited for (20m)")
    command.add_argument("--only", action="append", default=[], metavar="STEP", help="this step; repeatable (all)")
    command.add_argument("-o", "--output", default=".", metavar="DIR", help="where the report goes (here)")
    command.add_argument("--dry-run", action="store_true", help="only print the plan")
    command.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _cluster(command: argparse.ArgumentParser) -> None:
    """The options of a namespace of Kubernetes."""
    command.add_argument(
        "--kubernetes", action="store_true", help="a namespace of a cluster, in place of a Google project"
    )
    command.add_argument("--cluster", default="", metavar="NAME", help="the cluster (KINETIC_CLUSTER)")
    command.add_argument("--namespace", default="", metavar="NAME", help="the namespace (KINETIC_NAMESPACE)")


def _granted(command: argparse.ArgumentParser) -> None:
    """Add the options of `init --kubernetes` that say what it grants, and to whom."""
    command.add_argument(
        "--queue", action="store_true", help="with --kubernetes: also the rights of jobs that wait in a queue of Kueue"
    )
    command.add_argument(
        "--secrets", action="store_true", help="with --kubernetes: also the rights of jobs that capture credentials"
    )
    command.add_argument(
        "--google-account", default="", metavar="EMAIL",
        help="with --kubernetes, on GKE: the service account of Google that pods act as (their own identity)",
    )  # fmt: skip


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


def _job(command: Any, nargs: str | None = None) -> None:
    one = "a" if nargs else "the"
    command.add_argument(
        "job", nargs=nargs, metavar="ID", help=f"{one} job's id, the start of one, or its address in a store"
    )
    command.lacking = (
        f"{command.prog.rpartition(' ')[2]} wants the ID of a job: `kinor jobs` lists those under way, `kinor jobs "
        "--all` those that ended, too"
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return share


def _port(text: str) -> int:
    number = _count(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they end at 65535")
    return number


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
