"""The renderings of a set-up's table: gcloud's lines as a shell runs them, and the module as Terraform reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import gcloud, terraform, variables
from kinetic_orchestration.platforms.google.setup.table import Wish
from tests.core.platforms.google.setup.rendered.records import of_gcloud, of_plan, of_rest, of_table, shared
from tests.support.terraform import real, schemas
from tests.support.terraform.command_line import Terraform

PROJECT, NUMBER = "my-project", schemas.NUMBER
# Members whose names are legal, and mean something to a shell, to gcloud's lists or to Terraform's templates.
HOSTILE = ("user:o'brien&$HOME`id`@example.com", "user:a${b}%{c}~!d@example.com")
BARE = Wish(PROJECT, NUMBER, "us-west4")
FULL = Wish(
    PROJECT, NUMBER, "europe-west4", bucket="a-bucket", network="kinetic", own_network=True, range="10.9.0.0/16",
    submitters=(*HOSTILE, f"serviceAccount:dagster@{PROJECT}.iam.gserviceaccount.com"), shell=True,
)  # fmt: skip
EXISTING = Wish(PROJECT, NUMBER, "us-east5", account="ours@other.iam.gserviceaccount.com", shell=True, own_network=True)
_ALL = {"bare": BARE, "full": FULL, "existing": EXISTING}
WISHES = pytest.mark.parametrize("wish", _ALL.values(), ids=_ALL)


@pytest.fixture(scope="module")
def run_terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return Terraform(tmp_path_factory.mktemp("terraform"))


def write(folder: Path, wish: Wish | None = None, **changed: str) -> Path:
    """The module in a folder, with other texts for some of its files."""
    for name, text in {**terraform.files(wish), **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


# It notes its words, knows the number of every project, and of all else only whether it is there.
STANDS_FOR_GCLOUD = f"""#!/bin/sh
{{ printf '%s\\0' "$@"; printf '\\n\\0'; }} >>"$LOG"
case " $* " in
    " projects describe "*) echo {NUMBER} ;;
    *" describe "*|" iam roles update "*) exit "$MISSING" ;;
esac
"""


def run_script(folder: Path, script: str, *, found: bool) -> list[list[str]]:
    """Return what a shell makes of a script: the words of each call of gcloud that creates, updates or grants something.

    `found`: all that it looks for is there.
    """
    folder.mkdir()
    log, program = folder / "log", folder / "gcloud"
    program.write_text(STANDS_FOR_GCLOUD, encoding="utf-8")
    program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.defpath}", "LOG": str(log), "MISSING": "0" if found else "1"}
    subprocess.run(("sh", "-s"), input=script, env=environment, encoding="utf-8", check=True, timeout=60)
    calls = [call.split("\0")[:-1] for call in log.read_text(encoding="utf-8").split("\n\0")[:-1]]
    return [words for words in calls if "describe" not in words]


@WISHES
def test_the_requests_of_init_make_what_the_table_has(wish: Wish) -> None:
    made = table.setup(wish)
    assert shared(of_rest(made), made) == of_table(made)


@WISHES
def test_a_shell_that_runs_gclouds_lines_makes_what_init_makes_and_a_second_time_creates_nothing(
    tmp_path: Path, wish: Wish
) -> None:
    made = table.setup(wish)
    calls = run_script(tmp_path / "first", gcloud.script(made), found=False)
    created = [words for words in calls if words[:3] != ["iam", "roles", "update"]]
    assert of_gcloud(created) == of_rest(made)
    updated = [[*words[:2], "create", *words[3:]] for words in calls if words[:3] == ["iam", "roles", "update"]]
    assert of_gcloud(updated) == {key: row for key, row in of_rest(made).items() if key[0] == "role"}
    again = run_script(tmp_path / "second", gcloud.script(made), found=True)
    assert not [words for words in again if "create" in words and "identity" not in words]
    assert [words for words in again if "add-iam-policy-binding" in words]


def test_a_script_and_a_module_look_the_number_up_that_a_dry_run_does_not_ask_for(
    tmp_path: Path, run_terraform: Terraform, capsys: pytest.CaptureFixture[str]
) -> None:
    submitters = [word for who in HOSTILE for word in ("--submitter", who)]
    words = ["init", "--dry-run", "--project", PROJECT, "--region", "us-west4", *submitters]
    assert main(words) == codes.OK
    said = capsys.readouterr()
    made = table.setup(Wish(PROJECT, NUMBER, "us-west4", submitters=HOSTILE))
    calls = run_script(tmp_path / "gcloud", said.out, found=False)
    assert of_gcloud(words for words in calls if words[:3] != ["iam", "roles", "update"]) == of_rest(made)

    folder = tmp_path / "a module"
    assert main([*words, "--terraform", str(folder), "--json"]) == codes.OK
    told = json.loads(capsys.readouterr().out)
    assert "\n".join(told["gcloud"]) + "\n" == said.out
    assert {name: (folder / name).read_text("utf-8") for name in told["terraform"]} == told["terraform"]
    assert of_plan(run_terraform.planned(folder, {})) == of_rest(made)


def test_a_folder_with_other_files_of_these_names_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["init", "--dry-run", "--project", PROJECT, "--region", "us-west4", "--terraform", str(tmp_path)]
    (tmp_path / "main.tf").write_text("# theirs\n", encoding="utf-8")
    assert main(words) == codes.USAGE
    assert "has main.tf already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["main.tf"]
    (tmp_path / "main.tf").unlink()
    assert main(words) == main(words) == codes.OK  # of the same text
    (tmp_path / "main.tf").unlink()
    (tmp_path / "main.tf").mkdir()
    assert main(words) == codes.USAGE
    assert "has main.tf already" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*words[:-1], str(tmp_path / "file")]) == codes.USAGE
    assert "is a file: name a folder" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "file" / "below")]) == codes.USAGE
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--terraform", "there"), "add --dry-run"),
        (("--namespace", "training"), "add --kubernetes"),
        (("--kubernetes", "--project", "my-project", "--shell"), "--project, --shell: with --kubernetes"),
    ],
)
def test_options_of_another_set_up_are_refused(
    words: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *words]) == codes.USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "wish",
    [pytest.param(wish, id=name, marks=[] if name == "full" else [pytest.mark.slow]) for name, wish in _ALL.items()],
)
def test_terraform_plans_what_init_makes(run_terraform: Terraform, tmp_path: Path, wish: Wish) -> None:
    made = table.setup(wish)
    folder = write(tmp_path, wish)
    plan = run_terraform.planned(folder, {})
    assert of_plan(plan) == of_rest(made)
    outputs = {name: one.get("value") for name, one in plan["planned_values"]["outputs"].items()}
    network = made.wish.network
    subnetwork = made.subnetwork.name if made.subnetwork else None
    assert outputs["store"] == made.store
    assert (outputs["service_account"], outputs["network"]) == (made.machines, network)
    assert outputs.get("subnetwork") == subnetwork


@pytest.mark.slow
def test_the_module_and_its_examples_are_valid_and_formatted(run_terraform: Terraform, tmp_path: Path) -> None:
    folder = write(tmp_path, FULL)
    said = run_terraform(folder, "fmt", "-check", "-recursive", "-diff")
    assert said.code == 0, said.text
    for place in (folder / "examples/minimal", folder / "examples/full"):
        got = run_terraform(place, "get")
        said = run_terraform(place, "validate", "-no-color")
        assert (got.code, said.code) == (0, 0), got.text + said.text
        assert "Success! The configuration is valid" in said.text


MISTAKES = {
    "misspelt": ("uniform_bucket_level_access", "uniform_bucket_access", r"Unsupported argument.*uniform_bucket_access"),
    "missing": ("  role_id     = ", "  # role_id = ", r'Missing required argument.*"role_id" is required'),
    "type": ("force_destroy               = false", 'force_destroy = "perhaps"', r"Incorrect attribute value type.*bool"),
    "block": ("soft_delete_policy {", "soft_deletion {", r"Unsupported block type.*soft_deletion"),
    "reference": ("google_storage_bucket.store.name", "google_storage_bucket.other.name", r"Reference to undeclared resource"),
    "kind": ('"google_compute_router_nat"', '"google_compute_nat"', r"Invalid resource type.*google_compute_nat"),
}  # fmt: skip


def test_each_mistake_in_a_module_is_refused(run_terraform: Terraform, tmp_path: Path) -> None:
    text = terraform.files()["main.tf"]
    for right, wrong, _ in MISTAKES.values():
        assert right in text
        text = text.replace(right, wrong, 1)
    said = run_terraform(write(tmp_path, **{"main.tf": text}), "validate", "-no-color")
    assert said.code == 1, said.text
    assert [name for name, (_, _, words) in MISTAKES.items() if not re.search(words, said.text, re.S)] == [], said.text


@pytest.mark.slow
def test_an_answer_that_cannot_be_used_is_refused_with_what_to_write(run_terraform: Terraform, tmp_path: Path) -> None:
    folder = write(tmp_path)
    wrong: dict[str, Any] = {
        "project_id": "123", "region": "us-west4-a", "project_number": "n", "bucket": "No", "network": "N",
        "service_account": "me", "submitters": ["allUsers"], "range": "10.0.0.0", "api_wait": "long",
    }  # fmt: skip
    path = folder / "terraform.tfvars"
    path.write_text(
        "".join(f"{name} = {variables.literal(value)}\n" for name, value in wrong.items()), encoding="utf-8"
    )
    said = run_terraform(folder, "plan", "-input=false", "-no-color")
    assert said.code == 1
    heard = " ".join(said.text.replace("│", " ").split())
    told = {each.name: each.message for each in variables.VARIABLES if each.condition}
    assert told.keys() == wrong.keys()
    assert [name for name, message in told.items() if message not in heard] == []


def test_the_readme_names_each_variable_and_output_and_checkov_is_answered() -> None:
    files = terraform.files()
    page = files["README.md"].replace("\\_", "_")
    outputs = re.findall(r'output "(\w+)"', files["outputs.tf"])
    for name in (*(each.name for each in variables.VARIABLES), *outputs):
        assert f"| {name} |" in page
    reasons = [line for line in files["main.tf"].splitlines() if "checkov:skip=" in line]
    assert reasons
    assert all(line.startswith("  # checkov:skip=CKV_") for line in reasons), (
        "checkov reads them within a resource alone"
    )


def _texts(words: Sequence[object]) -> set[str]:
    return {str(word) for word in words}


def test_no_answer_that_stands_for_a_variable_is_left_in_the_module() -> None:
    stand = terraform.STANDING
    left = _texts((stand.project, stand.number, stand.bucket, stand.network, stand.range, *stand.submitters))
    assert [name for name, text in terraform.files().items() for word in left if word in text] == []
    assert stand.region not in terraform.files()["main.tf"]


def test_what_a_stand_in_has_and_the_real_provider_has_not_is_found(run_terraform: Terraform, tmp_path: Path) -> None:
    """The stand-ins' own schemas, as Terraform tells them, in the place of the real ones, and with each difference."""
    said = run_terraform(write(tmp_path), "providers", "schema", "-json")
    told = json.loads(said.text[said.text.index('{"') :])["provider_schemas"]
    for name, ours in schemas.PROVIDERS.items():
        assert real.departures(ours, told[real.REGISTRY + name]) == []
    google = told[f"{real.REGISTRY}google"]
    bucket = google["resource_schemas"]["google_storage_bucket"]["block"]
    del bucket["attributes"]["force_destroy"], bucket["block_types"]["versioning"]
    del google["resource_schemas"]["google_compute_router"]
    bucket["attributes"]["labels"]["type"] = "string"
    bucket["attributes"]["location"] |= {"required": False, "optional": True}
    bucket["block_types"]["soft_delete_policy"]["max_items"] = 2
    bucket["attributes"]["region"] = {"type": "string", "required": True}
    assert real.departures(schemas.PROVIDERS["google"], google) == [
        "google_storage_bucket.location: required is False, not True",
        "google_storage_bucket.location: optional is True, not False",
        "google_storage_bucket.labels: type is string, not ['map', 'string']",
        "google_storage_bucket.force_destroy: there is none",
        "google_storage_bucket.soft_delete_policy: max_items is 2, not 1",
        "google_storage_bucket.versioning: there is no such block",
        "google_storage_bucket.region: it is required, and the stand-in has none",
        "google_compute_router: there is none",
    ]
