"""The table of a set-up: what it has for which answers, and answers that cannot be used."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.table import Wish
from tests.support.pages import ROOT

pytestmark = pytest.mark.fast

WISH = Wish("my-project", "123456789012", "us-west4")
PERSON = "user:ada@example.com"


def test_least_of_all_is_a_bucket_an_account_and_its_rights() -> None:
    made = table.setup(WISH)
    assert made.network is made.subnetwork is made.router is None and not made.firewalls
    assert made.bucket.name == "my-project-kinetic" and made.bucket.soft_delete_seconds == 0
    assert made.bucket.uniform_access and made.bucket.public_access == "enforced"
    assert [role.id for role in made.roles] == ["kineticSlice"]
    assert {grant.member for grant in made.grants} == {f"serviceAccount:{made.machines}"}
    names = [table.name_of(item) for item in table.items(made)]
    assert len(set(names)) == len(names) == 6


def test_a_submitter_gets_what_jobs_take_and_nothing_of_a_whole_project_that_can_be_narrowed() -> None:
    made = table.setup(replace(WISH, submitters=(PERSON, PERSON), shell=True, own_network=True, network="kinetic"))
    granted = [grant for grant in made.grants if grant.member == PERSON]
    assert len(granted) == 8  # once, though it was named twice
    [act_as] = [grant for grant in granted if grant.role == "roles/iam.serviceAccountUser"]
    assert (act_as.where, act_as.name) == (table.ACCOUNT, made.machines)
    for grant in granted:
        if "secret" in grant.role.lower():
            assert (
                grant.condition is not None and "projects/123456789012/secrets/kinetic-" in grant.condition.expression
            )
        if grant.role == "roles/storage.objectUser":
            assert grant.condition is not None and "objectListPrefix" in grant.condition.expression
        if grant.role == "roles/iap.tunnelResourceAccessor":
            assert grant.condition is not None and grant.condition.expression == "destination.port == 22"
    assert [firewall.name for firewall in made.firewalls] == ["kinetic-internal", "kinetic-iap"]
    assert made.subnetwork is not None and made.subnetwork.private_access
    assert len({table.name_of(item) for item in table.items(made)}) == len(table.items(made))


def test_roles_are_those_of_the_page_that_sets_a_project_up_by_hand() -> None:
    text = (ROOT / "docs" / "cloud" / "cloud-tpu.md").read_text(encoding="utf-8").replace("\\\n", "")
    by_hand = {
        name: set(permissions.split(","))
        for name, permissions in re.findall(r"iam roles create (\w+) .*?--permissions=\s*(\S+)", text)
    }
    assert set(table.SLICE) == by_hand["kineticSlice"]
    assert set(table.SUBMIT) == by_hand["kineticSubmit"] | by_hand["kineticSecrets"]
    assert set(table.OWN_SECRETS) == by_hand["kineticOwnSecrets"]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"project": "My Project"}, "no project's id"),
        ({"project": "123456789012"}, "not its number"),
        ({"region": "us-west4-a"}, "such as 'us-west4'"),
        ({"region": "Mars"}, "no region"),
        ({"bucket": "Gs://x"}, "--bucket"),
        ({"network": "my network"}, "no network"),
        ({"range": "10.128.0.1/20"}, "host bits"),
        ({"range": "8.8.8.0/24"}, "private"),
        ({"account": "somebody@example.com"}, "no service account"),
        ({"submitters": ("allUsers",)}, "allUsers"),
        ({"submitters": ("ada@example.com",)}, "user:EMAIL"),
    ],
)
def test_an_answer_that_cannot_be_used_says_what_to_write(answers: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        table.setup(replace(WISH, **answers))  # type: ignore[arg-type]
