"""The package as Airflow's provider, and what it costs and says when it is imported."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

from airflow_kinetic._compat.internals import INTERNALS
from airflow_kinetic.get_provider_info import DEFAULTS, get_provider_info
from kinetic_orchestration.plan.declare.spec import Options
from tests.airflow_kinetic.conftest import NEWEST, RELEASE, Airflow, needs
from tests.project.names import keywords

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def test_airflow_knows_the_provider_and_task_kinetic_is_kinetic_task(airflow: Airflow, home: Path) -> None:
    done = airflow("provider", home)
    assert done["known"]
    assert done["same"]
    assert len(done["links"]) == 5
    assert done["limit"] == int(DEFAULTS["xcom_limit"])


@pytest.mark.slow
def test_the_airflow_command_lists_the_provider(airflow: Airflow, python: str) -> None:
    command = [python, "-m", "airflow", "providers", "list", "-o", "json"]
    listed = subprocess.run(command, env=airflow.environ, capture_output=True, text=True, timeout=280)
    assert listed.returncode == 0, listed.stderr
    (ours,) = [entry for entry in json.loads(listed.stdout) if entry["package_name"] == "kinetic-orchestration"]
    assert ours["version"] == version("kinetic-orchestration")


def test_indexes_list_it_among_the_providers() -> None:
    classifiers = metadata("kinetic-orchestration").get_all("Classifier") or []
    assert "Framework :: Apache Airflow :: Provider" in classifiers


def test_every_module_and_class_that_the_provider_names_is_there() -> None:
    info = get_provider_info()
    kinds = ("hooks", "operators", "sensors", "triggers")
    modules = [module for kind in kinds for entry in info[kind] for module in entry["python-modules"]]
    named = [*info["extra-links"], *(entry["class-name"] for entry in info["task-decorators"])]
    root = Path(__file__).parents[2]
    for module in modules:
        assert (root / f"{module.replace('.', '/')}.py").is_file(), module
    for module, _, name in (entry.rpartition(".") for entry in named):
        text = (root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert f"class {name}(" in text or f"def {name}(" in text, name


def test_the_decorator_takes_what_the_operator_and_what_any_task_takes() -> None:
    from airflow.sdk import BaseOperator

    from airflow_kinetic.decorators.kinetic import TaskOptions

    assert keywords.OF_OPERATOR.read_text(encoding="utf-8") == keywords.of_operator(), (
        "python -m tests.project.names.keywords"
    )
    of_any_task = set(inspect.signature(BaseOperator.__init__).parameters)
    assert set(TaskOptions.__annotations__) == of_any_task - {"self", "kwargs", "sla"}  # which Airflow refuses


def test_the_operator_takes_the_options_of_run_as_they_are() -> None:
    """Without Kinetic's names for what Airflow has its own for, and without a debugger. Some may be a connection's, and so say
    nothing by default, and templates that are rendered to text."""
    from airflow_kinetic.operators.kinetic import KineticTPUOperator

    own = inspect.signature(KineticTPUOperator.__init__).parameters
    stated = inspect.signature(Options).parameters
    assert stated.keys() - own.keys() == {"base_image_repo", "debug", "key", "project"}
    for name in (stated.keys() & own.keys()) - {"by", "global_batch", "priority", "race", "reshard"}:
        assert (own[name].annotation, own[name].default) == (stated[name].annotation, stated[name].default), name


TYPED = """
from airflow_kinetic import KineticData, KineticEvaluateOperator, KineticServeBatchOperator, kinetic_task

@kinetic_task(accelerator="v5e-8", deferrable=True, retries=2)
def train(lr: float, epochs: int = 1) -> dict[str, float]:
    return {"loss": lr * epochs}

@kinetic_task
def plain(x: int) -> str:
    return str(x)

reveal_type(train)
reveal_type(plain)
train("fast")  # wrong: an argument of another type
kinetic_task(accelerator=8)  # wrong: not a name
kinetic_task(accelerater="cpu")  # wrong: no such option
KineticServeBatchOperator(task_id="b", accelerator="cpu", model=KineticData("gs://models/a"), prompts=["a"])
KineticServeBatchOperator(task_id="c", accelerator="cpu", model=plain(3), prompts=["a"])
KineticEvaluateOperator(task_id="d", accelerator="cpu", model=KineticData("gs://models/a"), tasks="gsm8k")
KineticServeBatchOperator(task_id="e", accelerator="cpu", model=3, prompts=["a"])  # wrong: no model
"""


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(900)
def test_a_type_checker_knows_what_a_task_takes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED, encoding="utf-8")
    options = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), "--config-file", ""]
    command = [sys.executable, "-m", "mypy", *options, "--follow-imports", "silent", str(program)]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    revealed = [re.sub(r"[a-z_]+(\.[a-z_]+)*\.", "", text) for text in re.findall(r'type is "(.*)"', checked.stdout)]
    assert revealed == ["Task[[lr: float, epochs: int =], dict[str, float]]", "Task[[x: int], str]"], checked.stdout
    wrong = [int(number) for number in re.findall(r"program\.py:(\d+): error", checked.stdout)]
    lines = TYPED.splitlines()
    assert {lines[number - 1].partition("wrong: ")[2] for number in wrong} == {
        "an argument of another type", "not a name", "no such option", "no model"
    }, checked.stdout  # fmt: skip


OTHERS = {
    "2.10.5": "needs Airflow 2.11 or newer, and this is Airflow 2.10.5: install 'apache-airflow>=2.11,<4'.",
    "3.0.2": "needs Airflow 3.0.6 or newer of 3.0, and this is Airflow 3.0.2, whose tasks do not know how often they may be tried: install 'apache-airflow>=3.0.6,<4'.",
    "4.0.0b1": "knows Airflow 2.11 to 3, and this is Airflow 4.0.0b1: upgrade kinetic-orchestration, or install 'apache-airflow<4'.",
}


@pytest.mark.parametrize("found", OTHERS)
def test_an_airflow_that_is_too_old_or_too_new_gets_one_sentence(tmp_path: Path, found: str) -> None:
    # No other Airflow can be installed beside this one: a package that says its version stands for it.
    (tmp_path / "airflow.py").write_text(f"__version__ = {found!r}\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from airflow_kinetic import kinetic_task"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == f"ImportError: airflow_kinetic {OTHERS[found]}"


# As a worker's process parses it: what the bag logs there is in the log of the task.
PARSED = """
import json, sys
from pathlib import Path
import airflow
airflow.__version__ = sys.argv[1]
from airflow.dag_processing.dagbag import BundleDagBag
bag = BundleDagBag(dag_folder=sys.argv[2], safe_mode=False, load_op_links=False, bundle_path=Path("."), bundle_name="b")
print(json.dumps([list(bag.dags), list(bag.import_errors.values())]))
"""
DAG_FILE = """
from airflow.sdk import dag, task
{imported}
@dag(schedule=None)
def one():
    @{decorator}(accelerator="cpu")
    def train():
        return 1
    train()
one()
"""


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("found", [*OTHERS, version("apache-airflow")])
@pytest.mark.parametrize("decorator", ["task.kinetic", "kinetic_task"])
def test_a_dag_file_under_an_airflow_that_is_too_old_or_too_new_says_so_in_its_error_and_in_the_log(
    tmp_path: Path, found: str, decorator: str
) -> None:
    imported = "" if decorator.startswith("task.") else f"from airflow_kinetic import {decorator}"
    (file := tmp_path / "one.py").write_text(DAG_FILE.format(imported=imported, decorator=decorator))
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", PARSED, found, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *logged, told = done.stdout.splitlines()
    dags, errors = json.loads(told)
    if found not in OTHERS:
        assert (dags, errors) == (["one"], [])
        return
    [error] = errors
    assert dags == []
    assert error.strip().splitlines()[-1] == f"ImportError: airflow_kinetic {OTHERS[found]}"
    assert OTHERS[found] in "\n".join(logged) + done.stderr


def test_importing_the_package_imports_no_airflow() -> None:
    """Airflow imports it for its provider info while it starts itself."""
    program = "import sys, airflow_kinetic.get_provider_info; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


# What Airflow's reference of the Task SDK and its pages on configuration and providers promise.
PUBLIC = {
    "airflow", "airflow.sdk", "airflow.sdk.configuration", "airflow.sdk.exceptions", "airflow.exceptions",
    "airflow.providers.common.compat.openlineage.facet", "airflow.providers.openlineage.extractors",
}  # fmt: skip


# What its pages on operators, deferring, sensors, links, hooks and templates tell whoever writes one to use or override;
# an operator's arguments, which its reference lists, count as such, too.
PUBLIC_MEMBERS = {
    "as_teardown", "defer", "execute", "get_link", "log", "name", "on_kill", "operator_extra_links", "partial", "poke",
    "run", "serialize", "template_fields", "template_fields_renderers", "ui_color",
}  # fmt: skip


# What its pages on templates, DAGs and XCom tell of what a task's context has.
PUBLIC_OF_THE_CONTEXT = {
    "dag_id",
    "fileloc",
    "map_index",
    "owner",
    "run_id",
    "task_dict",
    "task_id",
    "trigger_rule",
    "xcom_pull",
    "xcom_push",
}


FIRST_OF = {"AssetRef": (3, 0), "NEVER_EXPIRE": (3, 3), "RetryAction": (3, 3)}  # before it there is no such name


def test_every_name_of_airflows_inside_is_listed_and_there(airflow: Airflow, home: Path) -> None:
    """A new release that moves one fails here first."""
    done = airflow("internals_there", home)
    assert done["missing"] == []
    assert set(done["unresolved"]) == {name for name, release in FIRST_OF.items() if release > RELEASE}
    assert {name for name in done["used"] if name.partition(":")[0] not in PUBLIC} <= {*done["listed"]}
    listed = {name.partition(".")[2] for internal in INTERNALS for name in internal.names}
    assert set(done["members"]) - listed <= PUBLIC_MEMBERS - listed
    assert set(done["of_the_context"]) - listed == PUBLIC_OF_THE_CONTEXT
    if RELEASE >= NEWEST:
        assert set(done["members"]) - listed == PUBLIC_MEMBERS - listed


def test_one_module_compares_versions() -> None:
    folder = Path(__file__).parents[2] / "airflow_kinetic"
    asking = re.compile(r"\bat_least\(|airflow import __version__|AIRFLOW_V_|_compat import .*\bversion\b")
    asked = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if asking.search(path.read_text())}
    assert {name for name in asked if not name.startswith("_compat/")} == set()
    assert "_compat/versions.py" in asked


@pytest.mark.slow
@pytest.mark.turn
def test_an_airflow_without_the_decorators_base_says_what_is_lost_and_has_the_operator(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['airflow.sdk.bases.decorator'] = None\n"
        "from airflow_kinetic import KineticTPUOperator\n"
        "print(KineticTPUOperator(task_id='train', python_callable=len, accelerator='cpu').task_id)\n"
        "from airflow_kinetic import kinetic_task"
    )
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environ)
    assert "train" in done.stdout.splitlines(), "beside what Airflow says of its older module"
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("Without it there is no @task.kinetic: write KineticTPUOperator(python_callable=…) instead")


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("gone", "wanted", "lost"),
    [
        ("airflow.triggers.base", "KineticJobTrigger", "no task is deferred: it waits for its job on its worker"),
        (
            "airflow.providers.google.common.hooks.base_google",
            "KineticHook",
            "no connection to Google Cloud can be looked up: jobs run on this machine alone",
        ),
    ],
)
def test_what_cannot_be_without_a_part_of_airflow_says_what_is_lost_and_the_operator_is_there(
    tmp_path: Path, gone: str, wanted: str, lost: str
) -> None:
    program = (
        f"import sys; sys.modules[{gone!r}] = None\n"
        "from airflow_kinetic import KineticJobSensor, KineticTPUOperator, kinetic_task\n"
        "task = KineticTPUOperator(task_id='train', python_callable=len, accelerator='cpu', deferrable=True)\n"
        "print(task.task_id)\n"
        f"from airflow_kinetic import {wanted}"
    )
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environ)
    assert "train" in done.stdout.splitlines(), "beside what Airflow says of its older module"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and last.endswith(f"Without it {lost}")


@needs(NEWEST, "it imports its triggers with its operators")
def test_without_triggers_a_deferrable_task_waits_on_its_worker_and_says_so(airflow: Airflow, home: Path) -> None:
    done = airflow("waits_without_triggers", home)
    assert (done["value"], done["seen"]) == (3, 3)
    assert len(done["told"]) == 2, "by the task and by the sensor"
    assert all(
        text.endswith("Without it no task is deferred: it waits for its job on its worker") for text in done["told"]
    )


# What of Airflow's inside is gone, what is done then, and how what is lost by it is told.
GONE = [
    ("definitions.context", "KNOWN_CONTEXT_KEYS", "", "asks for the context by name is given nothing of it"),
    (
        "definitions.mappedoperator",
        "OperatorPartial",
        "airflow_kinetic.KineticTPUOperator.partial(task_id='train', accelerator='cpu')",
        "what is wrong with a mapped task is told when it runs",
    ),
    (
        "execution_time.context",
        "NEVER_EXPIRE",
        (
            "identity = airflow_kinetic.shared.tries.task_identity; store = type('Store', (), {'set': print})()\n"
            "identity.keep({'task_state_store': store}, identity.Pin(0, 1))"
        ),
        "which job a task means is forgotten after [state_store] retention",
    ),
    (
        "definitions.asset",
        "AssetRef",
        (
            "from airflow_kinetic.operators.report import TaskReport as Report; task = airflow_kinetic.KineticTPUOperator"
            "(task_id='train', python_callable=len); Report(task, {}, 0).extend_outlet_events(0, {}, {})"
        ),
        "an outlet that is named by Asset.ref() gets an event without the job in its extra",
    ),
]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(("module", "name", "act", "told"), GONE, ids=[name for _, name, _, _ in GONE])
def test_of_airflows_inside_what_is_gone_is_done_without_and_said(
    tmp_path: Path, module: str, name: str, act: str, told: str
) -> None:
    program = (
        f"import airflow.sdk, airflow.sdk.{module}; del airflow.sdk.{module}.{name}\n"
        "import airflow_kinetic.shared.parameters.arguments, airflow_kinetic.shared.tries.task_identity\n"
        f"import airflow_kinetic.operators.kinetic\n{act}"
    )
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=environ)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout + done.stderr  # where Airflow shows warnings
