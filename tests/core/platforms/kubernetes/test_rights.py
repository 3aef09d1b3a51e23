"""The table of a submitter's rights: what rules grant, and the Role that is printed from it."""

from __future__ import annotations

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms.kubernetes import rights

pytestmark = pytest.mark.fast

ALL = rights.of(secrets=True, queue=True)
DOCTOR = "KINETIC_NAMESPACE=team-a kinor doctor --role"


def rule(groups: list[str], resources: list[str], verbs: list[str], **more: object) -> dict[str, object]:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs, **more}


def test_an_administrators_rule_grants_all() -> None:
    assert all(rights.is_granted(right, [rule(["*"], ["*"], ["*"])]) for right in ALL)


def test_a_role_grants_what_it_was_made_from_and_no_more() -> None:
    role, _ = rights.role(ALL, "research", "user:ada")
    assert all(rights.is_granted(right, role["rules"]) for right in ALL)
    without = [right for right in ALL if not rights.is_granted(right, rights.role(ALL[:1], "n", "user:a")[0]["rules"])]
    assert without == list(ALL[1:])


@pytest.mark.parametrize(
    "granted",
    [
        rule(["kueue.x-k8s.io"], ["localqueues/pendingworkloads"], ["get"]),
        rule(["visibility.kueue.x-k8s.io"], ["localqueues"], ["get"]),
        rule(["visibility.kueue.x-k8s.io"], ["localqueues/pendingworkloads"], ["list"]),
        rule(["visibility.kueue.x-k8s.io"], ["localqueues/pendingworkloads"], ["get"], resourceNames=["one"]),
        rule(["visibility.kueue.x-k8s.io"], ["*/status"], ["get"]),
    ],
)
def test_another_group_or_resource_or_verb_or_a_single_name_grants_nothing(granted: dict[str, object]) -> None:
    assert not rights.is_granted(ALL[-1], [granted])
    assert rights.is_granted(ALL[-1], [rule(["*"], ["*/pendingworkloads"], ["get"])])


def test_only_what_a_job_uses_is_asked_for() -> None:
    plain = {right.resource for right in rights.of(secrets=False, queue=False)}
    assert plain == {"jobsets", "pods", "jobs", "events"}
    assert {right.resource for right in ALL} - plain == {
        "secrets", "localqueues", "workloads", "localqueues/pendingworkloads",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("who", "subject"),
    [
        ("user:ada@example.com", {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ada@example.com"}),
        ("group:research", {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "research"}),
        ("serviceaccount:dagster/worker", {"kind": "ServiceAccount", "namespace": "dagster", "name": "worker"}),
        ("serviceaccount:worker", {"kind": "ServiceAccount", "namespace": "research", "name": "worker"}),
    ],
)
def test_a_role_is_bound_to_whom_it_is_for(who: str, subject: dict[str, str]) -> None:
    _, binding = rights.role(ALL, "research", who)
    assert binding["subjects"] == [subject]


@pytest.mark.parametrize("who", ["ada", "user:", "robot:r2"])
def test_anybody_else_is_refused_with_the_words_to_use(who: str) -> None:
    with pytest.raises(UsageError, match="serviceaccount:NAMESPACE/NAME"):
        rights.role(ALL, "research", who)


@pytest.mark.parametrize(
    ("username", "who"),
    [
        ("ada@example.com", "user:ada@example.com"),
        ("system:serviceaccount:airflow:worker", "serviceaccount:airflow/worker"),
        ("", "user:NAME"),
    ],
)
def test_a_name_that_the_cluster_knows_is_one_that_a_role_takes(username: str, who: str) -> None:
    assert rights.subject_of(username) == who
    _, binding = rights.role(ALL, "research", who)
    assert binding["subjects"][0]["name"] == who.rpartition("/")[2].removeprefix("user:")


@pytest.mark.parametrize(
    ("words", "queues", "command"),
    [
        (
            'jobsets.jobset.x-k8s.io is forbidden: User "ada@example.com" cannot create resource "jobsets"', (),
            f"{DOCTOR} user:ada@example.com | kubectl apply -f -",
        ),
        (
            'secrets "a" is forbidden: User "system:serviceaccount:airflow:worker" cannot create', ("a", "b"),
            f"{DOCTOR} serviceaccount:airflow/worker --queue a,b | kubectl apply -f -",
        ),
        (
            'pods is forbidden: User "a b; rm" cannot list', (),
            f"{DOCTOR} 'user:a b; rm' | kubectl apply -f -",
        ),
        (
            r'pods is forbidden: User "CORP\\ada" cannot list', (),
            f"{DOCTOR} 'user:CORP\\ada' | kubectl apply -f -",
        ),
        (
            'pods is forbidden: User "system:anonymous" cannot list', (),
            f"with NAME as 'kubectl auth whoami' shows it, {DOCTOR} user:NAME | kubectl apply -f -",
        ),
        (
            "denied by a webhook", (),
            f"with NAME as 'kubectl auth whoami' shows it, {DOCTOR} user:NAME | kubectl apply -f -",
        ),
    ],
)  # fmt: skip
def test_the_command_that_grants_names_whom_the_server_refused(
    words: str, queues: tuple[str, ...], command: str
) -> None:
    assert rights.grant(rights.named_in(words), "team-a", queues) == command
