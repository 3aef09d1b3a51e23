"""The documentation says what is there: commands, settings, fields, prices, links and the README's two commands."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kinetic_orchestration import __version__
from kinetic_orchestration.cli.parser import make_parser
from kinetic_orchestration.cli.verify import budget
from kinetic_orchestration.cli.verify.steps import steps_of
from kinetic_orchestration.plan.configuration.settings import SETTINGS
from kinetic_orchestration.plan.declare.cloud import CloudOptions, Compute, Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.spec import OPTION_NAMES
from kinetic_orchestration.plan.hardware.accelerators import catalogue
from kinetic_orchestration.plan.hardware.machines import machine_of, serves
from kinetic_orchestration.plan.hardware.price_list import DISKS, DISKS_DATE, FLEX_START, ON_DEMAND, PRICES, SPOT
from kinetic_orchestration.plan.values import PROVISIONING, QUEUED, Limits
from kinetic_orchestration.platforms.kubernetes import rights
from kinetic_orchestration.program.context import HostContext
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import unserved
from kinetic_orchestration.testing.model.compute.groups.script import GroupScript
from kinetic_orchestration.testing.model.compute.script import ComputeScript
from kinetic_orchestration.testing.model.lifecycle import Lifecycle
from kinetic_orchestration.testing.model.script import Script
from tests.support import instances
from tests.support.pages import PAGES, ROOT, SOURCE, page, programs

PACKAGE = ROOT / "kinetic_orchestration"
CALLED = re.compile(r"(?:^(?:\$ )?|`)(?:kinor|kinetic-orchestration) ([a-z][a-z-]*)", re.M)


def rows(text: str, heading: str = "") -> list[list[str]]:
    """The cells of all tables below a heading."""
    part = re.split(r"^## ", text.partition(heading)[2], maxsplit=1, flags=re.M)[0] if heading else text
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in part.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]


def commands() -> dict[str, argparse.ArgumentParser]:
    found = next(action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_the_readmes_first_two_commands_are_one_line_each() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", page("README.md"), re.S | re.M)
    assert [len(block.strip().splitlines()) for block in blocks[:2]] == [1, 1]


def test_every_setting_is_in_its_table_with_its_variable_and_nothing_else_is() -> None:
    told = {
        row[0]: row[1].strip("`")
        for row in rows(page("docs/reference/settings.md"))
        if re.fullmatch(r"`[A-Z_]+`", row[1])
    }
    assert told == {name: row.variable for name, row in SETTINGS.items()}


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.default])
def test_the_default_of_a_setting_is_the_one_in_the_table(name: str) -> None:
    assert f"`{SETTINGS[name].default}`" in next(
        row[2] for row in rows(page("docs/reference/settings.md")) if row[0] == name
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_explains_a_setting_in_the_words_of_the_code(name: str) -> None:
    """The page may add more; links and marks of code are not compared."""
    [told] = [row[3] for row in rows(page("docs/reference/settings.md")) if row[0] == name and len(row) == 4]
    words = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", told).replace("`", "")
    assert re.match(rf"{re.escape(SETTINGS[name].meaning)}(?!\w)", words)


@pytest.mark.parametrize(
    ("options", "service"), [(TpuVm, "Cloud TPU"), (Compute, "Compute Engine"), (Kubernetes, "Kubernetes")]
)
def test_every_field_of_the_options_of_a_cloud_is_explained(options: type[CloudOptions], service: str) -> None:
    text = page("docs/reference/settings.md")
    told = {
        name for row in rows(text, f"## What only {service} understands") for name in re.findall(r"`(\w+)`", row[0])
    }
    assert told == {entry.name for entry in fields(options)}


def test_every_right_and_every_exit_code_on_kubernetes_is_in_its_table() -> None:
    text = page("docs/cloud/kubernetes.md")
    granted = [row[0] for row in rows(text, "## 3. Rights")[1:]]
    for right in rights.of(secrets=True, queue=True):
        assert any(re.search(rf"`{right.resource}`[^`]*(, `\w+` )?\b{right.verb}\b", cell) for cell in granted), right
    told = {int(code) for row in rows(text, "## How to read a failure")[1:] for code in row[0].split(", ")}
    assert told == set(wire.EXIT_CODES.values())


def test_every_limit_is_explained() -> None:
    text = page("docs/reference/settings.md")
    assert f"Limits({', '.join(entry.name for entry in fields(Limits))})" in text


def test_every_option_of_run_is_in_its_table_and_nothing_else_is() -> None:
    table = rows(page("docs/start/python.md"), "## The options of `run`")[1:]
    assert {name for row in table for name in re.findall(r"`(\w+)`", row[0])} == OPTION_NAMES


def test_everything_that_a_host_can_ask_is_in_its_table() -> None:
    table = rows(page("docs/start/python.md"), "## On the host")[1:]
    told = {name for row in table for name in re.findall(r"`(\w+)", row[0])}
    assert told == {name for name in dir(HostContext) if not name.startswith("_")}


def test_the_program_of_the_python_page_runs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(programs("docs/start/python.md")["job.py"], encoding="utf-8")
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    words = ["a", "training", "step", "of", "a", "pipeline"]
    assert done.stdout.splitlines()[1:] == ["{'long': 3}", repr(words)]


def test_every_command_is_named_in_the_readme_and_every_command_in_the_docs_is_one() -> None:
    known = commands()
    line = page("README.md").partition("## On the command line")[2].partition("```")[0]
    assert set(known) == {word.split()[0] for word in re.findall(r"`([a-z-]+[^`]*)`", line)} & set(known)
    for path in PAGES:
        for called in CALLED.findall(path.read_text(encoding="utf-8")):
            assert called in known, f"{path.name} calls {called}, which is no command"


def test_every_option_that_the_docs_use_with_a_command_exists() -> None:
    known = commands()
    for path in PAGES:
        for line in re.findall(
            r"(?:kinor|kinetic-orchestration) ([a-z-]+ [^`\n#|]*)", path.read_text(encoding="utf-8")
        ):
            command, *words = line.split()
            given = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)}
            if command in known:
                assert given <= set(known[command]._option_string_actions), f"{path.name}: {line}"


def test_every_option_of_the_emulator_is_in_its_table_and_every_fault_is_a_method() -> None:
    text = page("docs/pipelines/emulator.md")
    options = set(commands()["emulator"]._option_string_actions) - {"-h", "--help", "--debug"}
    assert options == {name for row in rows(text, "## In two minutes") for name in re.findall(r"`(--[a-z-]+)", row[0])}
    for row in rows(text, "## What can go wrong")[1:]:
        for name in re.findall(r"`(\w+)\(", row[0]):
            assert hasattr(Emulator, name) or name == "random_faults", name
    faults = {name for name in (*vars(Script), *vars(Lifecycle)) if not name.startswith("_")}
    told = {name for row in rows(text, "## What can go wrong")[1:] for name in re.findall(r"`(\w+)\(", "".join(row))}
    assert faults <= told
    of_compute = {name for name in (*vars(ComputeScript), *vars(GroupScript)) if not name.startswith("_")}
    of_compute |= {"preempt", "host_error"}
    told = {name for row in rows(text, "## Compute Engine")[1:] for name in re.findall(r"`(\w+)\(", "".join(row))}
    assert of_compute <= told


def test_the_prices_are_those_of_the_estimates() -> None:
    text = page("docs/cloud/cloud-tpu.md")
    told = {
        (row[0], row[1].replace("any", ""), way, float(usd), date)
        for row in rows(text, "## What it costs")[1:]
        for way, cell in zip((ON_DEMAND, SPOT, FLEX_START), row[2:], strict=True)
        for usd, date in re.findall(r"([0-9.]+) \((\d{4}-\d{2}(?:-\d{2})?)\)", cell)
    }
    assert told == {row[:5] for row in PRICES}


def _most(accelerator: str, usd: float, zone: str, **given: Any) -> tuple[budget.Budget, dict[str, float]]:
    """The plan of a verification, and the dollars of its steps, of which none is left out for money."""
    steps = steps_of(given.get("backend", "tpu-vm"))
    planned = budget.plan([step.wish for step in steps], accelerator, usd, [zone], **given)
    assert not any(step.left_out.startswith("budget") for step in planned.steps)
    return planned, {step.wish.name: step.usd for step in planned.steps}


def test_the_dollars_of_a_verification_are_those_that_its_plan_counts() -> None:
    text = " ".join(page("docs/cloud/verify.md").split())
    told = []
    for zone, most in (("us-central1-a", 5), ("us-west4-a", 5), ("europe-west4-b", 6)):
        planned, usd = _most("v5e-1", most, zone)
        told.append((planned.price[:5], f"${planned.most - usd['four hosts']:.2f}", f"${planned.most:.2f}"))
    cheap, alike, dear = told
    assert cheap == alike
    assert (
        f"With `v5e-1` in us-central1 or us-west4 ({cheap[0]}) the maximum is {cheap[1]} without, and {cheap[2]} with the "
        f"step of four hosts. With a bucket in `EU` or `europe-west4` ({dear[0]}) it is {dear[1]} and {dear[2]}, and that "
        "step needs `--budget 6`; so it is with a bucket in `US`"
    ) in text
    planned, _ = _most("l4", 1, "us-central1-a", backend="compute", prices={"l4": 0.75})
    assert f"with an `l4` at $0.75 an hour the maximum is ${planned.most:.2f}." in text
    planned, usd = _most("v6e-16", 25, "us-east5-a", backend="compute")
    slices = {name: usd.pop(name) for name in ("slice", "two slices")}
    assert (
        f"With a `v6e-16` in us-east5 ({planned.price[:5]} a chip and hour with the boot disk of its VM) it is "
        f"${sum(usd.values()):.2f} for the steps of one VM, ${slices['slice']:.2f} for *slice* and "
        f"${slices['two slices']:.2f} for *two slices*" in text
    )


def test_the_types_of_boot_disks_are_those_that_machines_take() -> None:
    told = {
        name: (row[1].strip("`"), *re.findall(r"`([a-z-]+)`", row[2]))
        for row in rows(page("docs/cloud/compute.md"), "## Options")
        for name in re.findall(r"`([a-z0-9-]+)`", row[0])
        if len(row) == 3 and row[0] != ""
    }
    found = {one.generation: machine_of(one).disk_types for one in catalogue() if serves(one)}
    assert {name: types for name, types in told.items() if name in found} == found
    priced = re.search(
        r"as `pd-ssd` was on (\S+): (.*?) a GiB and month", " ".join(page("docs/cloud/compute.md").split())
    )
    assert priced is not None and priced[1] == DISKS_DATE
    dollars = {region: float(usd) for usd, there in re.findall(r"\$([0-9.]+) in ((?:[a-z0-9-]+(?: and )?)+)", priced[2])
               for region in there.split(" and ")}  # fmt: skip
    assert dollars == DISKS


@pytest.mark.parametrize(("name", "file"), [("README.md", "train.py"), ("docs/cloud/cloud-tpu.md", "first.py")])
def test_the_first_program_of_a_page_can_be_planned(
    name: str, file: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / file).write_text(programs(name)[file], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert f"kinor plan {file}:" in page(name) or f"kinetic-orchestration plan {file}:" in page(name)
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "plan", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_command_of_a_page_takes_a_program_that_the_page_shows_only_later(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for file in programs(str(path.relative_to(ROOT))):
        before = text.partition(f"# {file}")[0]
        early = re.findall(rf"(?m)^ *(?:\$ )?(?:kinor|kinetic-orchestration|python) .*\b{re.escape(file)}.*$", before)
        assert not early, f"{path.name} shows {file} after {early}"


def test_the_versions_to_choose_by_are_those_of_the_project() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    told = {row[0]: row[1:] for row in rows(page("docs/choose/evaluating.md"), "## Which versions")}
    assert project["requires-python"] == ">=3.11,<3.15"
    assert told["Python, where you submit"][0].startswith("3.11 to 3.13; 3.14 ")
    bounds = " ".join(line for lines in project["optional-dependencies"].values() for line in lines)
    constraints = page("constraints.txt")
    for row, package in [("Dagster", "dagster"), ("Airflow", "apache-airflow")]:
        least, below = re.findall(rf"(?:^| ){package}>=([\d.]+),<(\d+)", bounds)[0]
        assert told[row][0].startswith(f"{least} and later, below {below}")
        assert f"\n{package}=={told[row][1].partition(';')[0]}\n" in constraints
    assert __version__.startswith(re.findall(r"This is version (\d+\.\d+)\.", page("docs/choose/evaluating.md"))[0])


def targets(text: str) -> list[str]:
    """Return where the links and pictures of a page lead, those of its reference definitions included."""
    return re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", text) + re.findall(r"(?m)^\[[^]]+\]: (\S+)$", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in targets(text):
        name, _, anchor = target.partition("#")
        if ours := re.fullmatch(rf"{re.escape(SOURCE)}/(blob|raw|tree)/main/(.+)", name):
            there = ROOT / ours[2]
            assert there.is_dir() if ours[1] == "tree" else there.is_file(), f"{path.name} links to {target}"
        elif "://" in target:
            continue
        else:
            there = path.parent / name if name else path
            assert there.exists(), f"{path.name} links to {target}"
            assert path.parent == ROOT or there.is_relative_to(ROOT / "docs"), (
                f"{target} is not on the site of the docs"
            )
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), f"{path.name} links to {target}"


def test_each_link_of_the_readme_is_a_whole_address_and_has_its_definition() -> None:
    """A package index shows README without the files beside it."""
    text = page("README.md")
    assert all(target.startswith("https://") for target in targets(text))
    defined = re.findall(r"(?m)^\[([^]]+)\]: ", text)
    used = {mark or shown for shown, mark in re.findall(r"\[([^]\n]+)\]\[([^]\n]*)\]", text)}
    assert used == set(defined) and len(defined) == len(set(defined))


def test_the_site_and_the_pages_name_the_repository_that_the_package_names() -> None:
    assert f"\nrepo_url: {SOURCE}\n" in page("mkdocs.yml")
    for path in PAGES:
        named = re.findall(
            r"https://[^/\s]+/[^/\s]+/kinetic-orchestration/(?:blob|raw|tree)/", path.read_text(encoding="utf-8")
        )
        assert all(address.startswith(f"{SOURCE}/") for address in named), path.name


def test_no_folder_of_the_docs_has_more_than_nine_entries_and_no_page_is_outside_the_folders_but_the_first() -> None:
    folders = [ROOT / "docs", *(path for path in (ROOT / "docs").rglob("*") if path.is_dir())]
    assert not [folder.name for folder in folders if len(list(folder.iterdir())) > 9]
    assert [path.name for path in (ROOT / "docs").glob("*.*")] == ["index.md"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_whole_and_loads_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)


def test_the_picture_of_an_attempt_has_its_phases_and_its_verdicts() -> None:
    shown = set(re.findall(r'font-weight="600"[^>]*>([^<]+)<', page("docs/images/attempt.svg")))
    assert {"submitted", QUEUED, PROVISIONING, "preparing", "running"} <= shown
    assert {wire.COMMITTED, wire.ABORTED, wire.CLOSED} <= shown


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("add-*.md")), ids=lambda path: path.name)
def test_every_file_and_test_that_a_how_to_page_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tracked = r"(?:kinetic_orchestration|dagster_kinetic|airflow_kinetic|tests|docs)/[\w./-]*"
    named = {name for name in re.findall(tracked, text) if "NAME" not in name}
    ours = set(re.findall(r"request-v6p(?:-hosts)?\.txt", text))
    assert named
    assert not [name for name in named if not (ROOT / name).exists() and Path(name).name not in ours]
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    made = set(re.findall(r"def (test_\w+)", text))
    assert not [name for name in re.findall(r"`(test_\w+)`", text) if name not in made and f"def {name}(" not in tests]


API = {
    "kinetic_orchestration": "python",
    "kinetic_orchestration.testing": "testing",
    "dagster_kinetic": "dagster",
    "airflow_kinetic": "airflow",
}


@pytest.mark.parametrize("package", API)
def test_every_public_name_is_on_its_page_of_the_api(package: str) -> None:
    text = page(f"docs/reference/api/{API[package]}.md")
    tree = ast.parse(page(f"{package.replace('.', '/')}/__init__.py"))
    public = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    missing = [name for name in public if not re.search(rf"(?m)^::: {package}\.{name}$|`{package}\.{name}`", text)]
    assert not missing


def test_each_protocol_of_a_platform_is_on_its_page_of_the_api() -> None:
    text = page("docs/reference/api/platforms.md")
    assert "\n::: kinetic_orchestration.platforms.backend.Backend\n" in text
    assert "\n::: kinetic_orchestration.platforms.store.Store\n" in text


ROOMS = ("api", "cli", "host", "jobs", "packaging", "plan", "platforms", "program", "protocol")


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_a_room_is_in_its_folders_row_of_the_map(room: str) -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9_/]+)/` \| (.*) \|$", page("docs/develop/architecture.md"), re.M))
    folders = {path.parent for path in (PACKAGE / room).rglob("[a-z]*.py")}
    assert folders
    for folder in folders:
        name = folder.relative_to(PACKAGE).as_posix()
        assert name in rows, f"{name}/ has no row"
        missing = [path.stem for path in folder.glob("[a-z]*.py") if f"`{path.stem}`" not in rows[name]]
        assert not missing, f"{name}/ has no {missing}"


def test_every_file_that_the_map_names_by_its_path_is_there() -> None:
    named = set(re.findall(r"`([a-z_]+/[\w/]+\.py)`", page("docs/develop/architecture.md")))
    assert len(named) > 10, "or the search finds nothing"
    assert not [name for name in named if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()]


def test_every_module_of_the_emulator_is_on_the_map() -> None:
    text = page("docs/develop/architecture.md")
    folder = PACKAGE / "testing"
    for module in folder.rglob("[a-z]*.py"):
        name = module.relative_to(folder).with_suffix("").as_posix()  # of a module in a folder, with the folder
        assert f"`{name}`" in text, name


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(300)
def test_the_emulators_first_test_passes_as_the_page_has_it(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(
        programs("docs/pipelines/emulator.md")["test_training.py"], encoding="utf-8"
    )
    apart = ("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'temporary'}")
    command = [sys.executable, "-m", "pytest", *apart, "-q", str(tmp_path / "test_training.py")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"KINETIC_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_of_ones_own_connects_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "connect.py").write_text(programs("docs/pipelines/emulator.md")["connect.py"], encoding="utf-8")
    with Emulator(hosts=False) as cloud:
        cloud.environ()
        named = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", str(tmp_path / "connect.py")],
            cwd=tmp_path, env=named | cloud.addresses(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        url = cloud.addresses()["KINETIC_EMULATOR"]
        with urllib.request.urlopen(f"{url}/v2/projects/emulated/locations", timeout=60) as answer:
            assert "us-west4-a" in {place["locationId"] for place in json.load(answer)["locations"]}
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(told) == ["REST", "gRPC", "discovery", "storage"]
    assert told["REST"] == told["gRPC"] and "v2-alpha-tpuv6e" in told["discovery"]
    assert told["storage"] == "['emulated']"


@pytest.mark.slow
@pytest.mark.turn
def test_googles_client_of_compute_engine_lists_instances_as_the_page_says(tmp_path: Path) -> None:
    text = programs("docs/pipelines/emulator.md")["list_instances.py"]
    (tmp_path / "list_instances.py").write_text(text, encoding="utf-8")
    with Emulator(hosts=False, zones=["us-central1-a"], provision_seconds=0.0) as cloud:
        url = f"{cloud.rest.url}/compute/v1/projects/emulated/zones/us-central1-a/instances"
        head = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(instances.body()).encode(), head), timeout=60
        ).close()
        named = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "list_instances.py")],
            cwd=tmp_path, env=named | cloud.addresses(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.stdout == "zones/us-central1-a ['ko-a']\n", done.stderr


def test_the_methods_that_the_emulator_does_not_serve_are_in_its_table_with_the_reason() -> None:
    told = {
        (f"{api}.{method}", why)
        for api, methods, why in rows(page("docs/pipelines/emulator.md"), "### Methods that are not served")[1:]
        for method in methods.replace("`", "").split(", ")
    }
    assert told == {(f"{row.resource}.{method}", row.why) for row in unserved.TABLE for method in row.methods}


PROVEN = "**Proven on an emulated Google Cloud, never yet on a TPU"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_each_page_says_at_its_top_on_what_it_was_proven(path: Path) -> None:
    assert PROVEN in "\n".join(path.read_text(encoding="utf-8").splitlines()[:12])


@pytest.mark.parametrize("name", ["README.md", "docs/choose/evaluating.md", "docs/cloud/cloud-tpu.md"])
def test_where_somebody_chooses_it_is_said_what_ends(name: str) -> None:
    chosen = page(name).partition("## Where it runs")[2] if name == "README.md" else page(name)
    assert re.search(r"fixes only.{0,40}ends at v6e", chosen, re.S)


# A place in the cloud that somebody would copy, in whatever language: a variable, an argument, a line of TOML or of YAML.
OF_PRODUCTION = re.compile(r"""(?:KINETIC_STORE|\bstore)["']?\s*[=:]\s*["']?(?:\$\w+|gs://(?!emulated|…)[\w$])""")
REQUIRES = re.compile(r"""require_hardware["']?\s*[=:]\s*["']?true""", re.I)


def production() -> dict[str, str]:
    """Each snippet that sets a store in a bucket: blocks of the pages, and what the examples say of a real slice."""
    found = {}
    for path in [*PAGES, *(ROOT / "example_pipelines").glob("**/*.md")]:
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.S | re.M)
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M))
        for number, block in enumerate([*blocks, *(each for each in inline if "project" in each)]):
            if OF_PRODUCTION.search(block):
                found[f"{path.name} {number}"] = block
    for path in sorted((ROOT / "example_pipelines").glob("*")):
        if path.is_file() and OF_PRODUCTION.search(text := path.read_text(encoding="utf-8")):
            found[path.name] = text
    return found


def test_what_is_for_production_refuses_emulation_in_whatever_language() -> None:
    found = production()
    languages = {"README.md", "airflow.md", "dagster.md", "settings.md", "cloud-tpu.md", "environments.toml"}
    assert languages <= {name.split()[0] for name in found}, "or the search finds nothing"
    assert not [name for name, snippet in found.items() if not REQUIRES.search(snippet)]


def test_the_project_says_alpha() -> None:
    assert "Development Status :: 3 - Alpha" in page("pyproject.toml")


def test_every_cell_of_the_comparison_has_its_source_and_what_was_not_proven_comes_first() -> None:
    text = page("docs/choose/comparison.md")
    tables = [table for table in re.split(r"\n## .*\n", text)[1:] if table.strip()]
    assert len(tables) == 3
    for table in tables:
        _, first, *others = rows(table)
        proven = "proven on" if "submitit" in table else "proven on real TPUs"
        assert first[0] == proven and first[1].startswith("**no**")
        for name, own, *cells in (first, *others):
            assert re.search(r"\]\([\w./-]+\.md(#[\w-]+)?\)", own), f"{name}: our own cell leads to no page"
            for cell in cells:
                assert re.search(r"\]\[[A-Z]\d\]", cell) or cell.startswith(("not documented", "does not apply")), (
                    name,
                    cell,
                )
    used = {mark for _, mark in re.findall(r"\[\\\[([A-Z]\d)\\\]\]\[([A-Z]\d)\]", text)}
    assert all(shown == mark for shown, mark in re.findall(r"\[\\\[([A-Z]\d)\\\]\]\[([A-Z]\d)\]", text))
    assert used == set(re.findall(r"(?m)^\[([A-Z]\d)\]: https://\S+$", text))
    assert re.search(r"on \d{4}-\d\d-\d\d\.", text), "the date on which the others' documentation was read"
