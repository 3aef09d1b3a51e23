"""An environment that lacks what hosts need is refused, and none that has it in a form of its own."""

from __future__ import annotations

import pytest

from kinetic_orchestration.api.steps.asked import needs_of
from kinetic_orchestration.errors import RequirementsError
from kinetic_orchestration.packaging import needs
from kinetic_orchestration.packaging.call.first_party import FirstParty, name_of
from kinetic_orchestration.packaging.requirements import locks
from kinetic_orchestration.plan.declare.spec import JobSpec, Need, Options
from kinetic_orchestration.program.inference.servers.engines import VLLM, Server
from tests.core.platforms.kubernetes.attempts import plan_of

pytestmark = pytest.mark.fast

PLAN = plan_of("v5e-1")


def check(text: str, *wanted: Need, sent: tuple[FirstParty, ...] = ()) -> None:
    lock = locks.Lock(text, "", "3.11", "linux", "", "", "requirements=", sent)
    environment = locks.Environment("locked", "3.11", "", lock)
    needs.check(environment, JobSpec("step", Options(), lambda: None, needs=wanted), PLAN)


@pytest.mark.parametrize(
    "line",
    [
        "vllm==0.32.0", "vllm-tpu==0.32.0", "nm-vllm==0.5.0", "vllm @ git+https://x.invalid/vllm@1",
        "https://x.invalid/vllm-0.32.0-cp312-abi3-linux_x86_64.whl", "file:///wheels-1/vllm-0.32.0-py3-none-any.whl",
        "./wheels/vllm-0.32.0.tar.gz",
    ],
)  # fmt: skip
def test_an_engine_is_found_by_whatever_brings_it(line: str) -> None:
    check(f"numpy==2.0.0\n{line} \\\n    --hash=sha256:00\n", *needs_of(VLLM))


def test_an_engine_that_travels_as_files_is_found() -> None:
    serving = FirstParty("acme-serving", "1", "folder", (), ("acme", "vllm"))
    check("numpy==2.0.0\n", *needs_of(VLLM), sent=(serving,))


@pytest.mark.parametrize("line", ["numpy==2.0.0", "vllms==1.0", "./wheels/numpy-2.0.0-py3-none-any.whl"])
def test_an_environment_without_the_engine_is_refused(line: str) -> None:
    with pytest.raises(RequirementsError, match="step needs vllm on its hosts"):
        check(f"{line}\n", *needs_of(VLLM))


def test_a_server_of_the_users_own_is_looked_for_only_where_its_distribution_is_known() -> None:
    assert needs_of(Server(argv=["{port}"], module="llama_cpp.server")) == ()
    known = needs_of(Server(argv=["{port}"], module="llama_cpp.server", distributions={"gpu": "Foo_Bar"}))
    check("llama-cpp-python==0.3.0\n", *known)
    check("foo-bar==1.0\n", *known)
    with pytest.raises(RequirementsError, match="name Foo_Bar in requirements="):
        check("numpy==2.0.0\n", *known)
    current = locks.Environment("current", "3.11", "")
    with pytest.raises(RequirementsError, match="this environment has none"):
        needs.check(current, JobSpec("step", Options(), lambda: None, needs=known), PLAN)


def test_a_requirement_that_is_a_bare_address_has_the_name_of_its_file() -> None:
    assert name_of("./wheels/a_b-1.0-py3-none-any.whl") == name_of("https://x.invalid/a.b-1.0.zip#sha256=00") == "a-b"
    assert name_of("git+https://x.invalid/jax") == "git"
