"""A call out and its outcome back, between real processes: what travels by value, what is refused, and how it is named."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import math
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from kinetic_orchestration.errors import Corrupt, JobFailed, NotPicklable, ResultNotPicklable, UsageError
from kinetic_orchestration.packaging.call.pickling import (
    LARGE,
    PackedCall,
    first_party_modules,
    load_value,
    pack_call,
    revive,
)
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.content import payload
from kinetic_orchestration.protocol.system import copies

pytestmark = pytest.mark.fast

ROOT = Path(payload.__file__).parents[payload.__name__.count(".")]

HOST = f"""
import json, sys
sys.path.append({str(ROOT)!r})
from kinetic_orchestration.protocol.content import payload
path, digest, data, outcome, folders = sys.argv[1:]
sys.path[:0] = json.loads(folders)
try:
    function, args, kwargs = payload.load(path, digest, json.loads(data))
    record = payload.dump_value(function(*args, **kwargs), outcome)
except Exception as error:
    record = payload.dump_exception(error, outcome)
print(json.dumps(record))
"""


def on_a_host(
    packed: PackedCall, folder: Path, data: list[str] | None = None, path: list[str] | None = None
) -> dict[str, Any]:
    """Load and call it like a host, in a process that has never seen the caller's modules."""
    empty = folder / "host"
    empty.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", HOST, folder / "call", packed.digest, json.dumps(data or []), folder / "out", json.dumps(path or [])],
        cwd=empty, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert isinstance(record, dict)
    return record


def failure_of(record: dict[str, Any]) -> wire.Failure:
    return wire.Failure(**wire.FAILURE.known(record, wire.Failure._fields))


def there_and_back(folder: Path, function: Any, *args: Any, data: list[str] | None = None, **kwargs: Any) -> Any:
    packed = pack_call(function, args, kwargs, project_root=Path(__file__).parent, path=folder / "call")
    record = on_a_host(packed, folder, data)
    if record["kind"] != "value":
        raise revive(
            failure_of(record),
            folder / "out" if record.get("digest") else None,
            job_id="j-1",
            host=0,
        )
    return load_value(folder / "out", record["digest"], record["format"], job_id="j-1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes modules of a user's project and imports one of them; forgets them afterwards."""
    root = tmp_path / "project"
    known = set(sys.modules)

    def write(name: str, **files: str) -> types.ModuleType:
        for file, text in files.items():
            path = root / (file.replace("___", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        __import__(name)
        return sys.modules[name]

    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    write.root = root  # type: ignore[attr-defined]
    yield write
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(root)):
            del sys.modules[name]


# What travels


def double(x: int) -> int:
    return 2 * x


class Adder:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, x: int) -> int:
        return self.n + x

    def add(self, x: int) -> int:
        return self.n + x

    @classmethod
    def make(cls, n: int) -> Adder:
        return cls(n)

    @staticmethod
    def twice(x: int) -> int:
        return double(x)


def test_functions_of_every_kind_run_where_their_module_is_unknown(tmp_path: Path) -> None:
    offset = 10

    def nested(x: int) -> int:
        return double(x) + offset

    cases: list[tuple[Any, int]] = [
        (double, 6), (lambda x: x + offset, 13), (nested, 16), (functools.partial(nested), 16), (Adder(4), 7),
        (Adder(5).add, 8), (Adder.twice, 6), (functools.partial(math.pow, 2), 8),
    ]  # fmt: skip
    for function, expected in cases:
        assert there_and_back(tmp_path, function, 3) == expected
    assert there_and_back(tmp_path, Adder.make, 3).n == 3


def test_a_class_comes_back_as_the_callers_own(tmp_path: Path) -> None:
    result = there_and_back(tmp_path, Adder, 5)
    assert type(result) is Adder


def test_a_gigantic_argument_and_result_are_arrays_on_both_sides(tmp_path: Path) -> None:
    array = np.arange(5_000_000)

    def bump(x: Any) -> Any:
        x += 1  # in place: what arrives is writeable
        return x

    assert np.array_equal(there_and_back(tmp_path, bump, array), array + 1)
    assert array[0] == 0


def test_first_party_modules_travel_by_value_and_others_by_reference(project: Any, tmp_path: Path) -> None:
    module = project(
        "shop.train",
        shop_____init__="VERSION = 3",
        shop___models="class Model:\n    scale = 2\n    def fit(self, x): return x * self.scale",
        shop___train="""
            import json, math
            from shop import VERSION
            from shop.models import Model
            def train(x): return [Model().fit(x), VERSION, math.floor(2.5), json.dumps({})]
        """,
    )
    packed = pack_call(module.train, (4,), project_root=project.root, path=tmp_path / "call")
    assert packed.by_value == ("shop.models", "shop.train")
    record = on_a_host(packed, tmp_path)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == [8, 3, 2, "{}"]


def test_a_module_used_as_a_module_travels_as_far_as_it_is_used(project: Any, tmp_path: Path) -> None:
    """Two modules that import each other, one with a lock and a switch that was set at run time."""
    module = project(
        "lab.main",
        lab_____init__="",
        lab___config="RATE = 0.1\ndef rate(): return RATE",
        lab___left="import threading\nimport lab.right\nlock = threading.Lock()\ndef go(x): return lab.right.step(x)",
        lab___right="import lab.left as left\ndef step(x): return x if x > 3 else left.go(x + 1)",
        lab___main="""
            import lab.left
            import lab.config as config
            def train():
                before = config.rate()
                config.RATE = 0.7
                return lab.left.go(1), before, config.rate(), config.RATE
        """,
    )
    sys.modules["lab.config"].RATE = 0.5  # type: ignore[attr-defined]
    packed = pack_call(module.train, project_root=project.root, path=tmp_path / "call")
    record = on_a_host(packed, tmp_path)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == (4, 0.5, 0.7, 0.7)


def test_what_a_module_cannot_send_is_made_on_the_host_from_its_file(project: Any, tmp_path: Path) -> None:
    module = project(
        "work",
        latches="import threading\nlock = threading.Lock()\ndef locked():\n    with lock: return 'locked'",
        work="import latches\ndef run():\n    with latches.lock: return getattr(latches, 'lock').locked()",
    )
    packed = pack_call(module.run, project_root=project.root, path=tmp_path / "call")
    record = on_a_host(packed, tmp_path, path=[str(project.root)])
    assert load_value(tmp_path / "out", record["digest"], record["format"]) is True
    record = on_a_host(packed, tmp_path)
    assert "did not travel" in record["message"] and "from latches import lock" in record["message"]


def test_a_file_beside_the_module_is_found_where_the_project_lies_on_the_host(project: Any, tmp_path: Path) -> None:
    module = project(
        "kit.read",
        kit_____init__="",
        kit___read="from pathlib import Path\ndef here(): return Path(__file__).parent.as_posix()",
    )
    packed = pack_call(module.here, project_root=project.root, path=tmp_path / "call")
    elsewhere = tmp_path / "unpacked"
    (elsewhere / "kit").mkdir(parents=True)
    (elsewhere / "kit" / "read.py").touch()
    record = on_a_host(packed, tmp_path, path=[str(elsewhere)])
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == f"{elsewhere}/kit"


def test_an_airflow_dag_file_travels_by_value(tmp_path: Path) -> None:
    name = "unusual_prefix_0123_retrain"
    module = types.ModuleType(name)
    module.__file__ = "/opt/airflow/dags/retrain.py"
    exec("RATE = 3\ndef train(x): return RATE * x", vars(module))
    sys.modules[name] = module
    try:
        packed = pack_call(module.train, (2,), project_root=None, path=tmp_path / "call")
    finally:
        del sys.modules[name]
    assert packed.by_value == (name,)
    record = on_a_host(packed, tmp_path)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == 6


def test_a_script_without_any_project_ships_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "my script.py").write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.append({str(ROOT)!r})
        import helper
        from kinetic_orchestration.packaging.call.pickling import pack_call
        class Mine(Exception): pass
        def train(x): return helper.half(x)
        print(pack_call(train, (8,), project_root=None, path="call").digest)
        """)
    )
    (tmp_path / "helper.py").write_text("def half(x): return x / 2")
    done = subprocess.run([sys.executable, "my script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    record = on_a_host(PackedCall(done.stdout.strip(), 0, (), ()), tmp_path)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == 4.0


@pytest.mark.parametrize("folder", [".venv/lib/site-packages", "deps"])
def test_what_is_installed_in_the_project_folder_is_not_first_party(
    folder: str, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment, or a folder that was given to pip install --target."""
    site = project.root / folder
    (site / "vendored-1.0.dist-info").mkdir(parents=True)
    (site / "vendored.py").write_text("def f(): return 1")
    monkeypatch.syspath_prepend(str(site))
    module = project("own", own="import vendored\nfrom vendored import f\ndef g(): return f()")
    assert set(first_party_modules(module.g, project.root)) == {"own"}
    assert set(first_party_modules(module.g, project.root, ["vendored"])) == {"own", "vendored"}


def test_the_users_own_registrations_with_cloudpickle_stay(project: Any, tmp_path: Path) -> None:
    module = project("reg", reg="def f(): return 1", other="")
    before = cloudpickle.list_registry_pickle_by_value()
    cloudpickle.register_pickle_by_value(module)
    try:
        pack_call(module.f, project_root=project.root, path=tmp_path / "call")
        with pytest.raises(NotPicklable):
            pack_call(module.f, (threading.Lock(),), project_root=project.root, path=tmp_path / "call")
        assert cloudpickle.list_registry_pickle_by_value() == before | {"reg"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_whatever_is_imported_or_removed_meanwhile_a_call_is_packed(project: Any, tmp_path: Path) -> None:
    """The collector runs at each object that is made, and imports at each run: as another thread may at any line."""
    own = project("own", own="def train():\n    return 1\n")
    before, made = sys.modules.copy(), 0

    def imports(phase: str, _info: dict[str, int]) -> None:
        nonlocal made
        if phase == "start" and made < 20_000:
            made += 1
            name = f"imported_meanwhile_{made}"
            sys.modules[name] = types.ModuleType(name)
            os.environ[name] = "1"
            sys.modules.pop(f"imported_meanwhile_{made - 3}", None)
            os.environ.pop(f"imported_meanwhile_{made - 3}", None)

    threshold = gc.get_threshold()
    gc.callbacks.append(imports)
    gc.set_threshold(1)
    try:
        for _ in range(5):
            assert "own" in first_party_modules(own.train, project.root)
            copies.environ()
            copies.members(sys)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(imports)
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]
        for name in [name for name in os.environ if name.startswith("imported_meanwhile_")]:
            del os.environ[name]
    assert made > 1


def test_calls_are_packed_from_many_threads_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                pack_call(double, (number,), project_root=Path(__file__).parent, path=tmp_path / f"call{number}")
                function, args, _ = payload.load(tmp_path / f"call{number}")
                assert function(*args) == 2 * number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


class Wrapped:
    """A wrapper that a decorator leaves under the function's name: it is sent as the plain function."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("a decorated function runs plainly on a host")

    def __reduce__(self) -> Any:
        return payload.itself, (self.__wrapped__,)


@Wrapped
def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)  # type: ignore[no-any-return]


def test_a_decorated_function_inside_the_payload_is_the_plain_one(tmp_path: Path) -> None:
    assert there_and_back(tmp_path, lambda n: factorial(n) + 0, 5) == 120
    assert there_and_back(tmp_path, factorial, 4) == 24


# Data


@dataclasses.dataclass
class Settings:
    train: Any
    name: str = "x"


class Slotted:
    __slots__ = ("source",)

    def __init__(self, source: Any) -> None:
        self.source = source


def test_data_is_a_path_on_the_host_wherever_it_is(tmp_path: Path) -> None:
    here = [Data(tmp_path) for _ in range(6)]
    bound = here[5]

    def read(first: Any, *, settings: Any) -> Any:
        return [first, settings.train["deep"][0][1].source, settings.name, bound]

    packed = pack_call(
        read, (here[0],), {"settings": Settings({"deep": [(here[1], Slotted(here[2]))]}, name=here[0])},  # type: ignore[arg-type]
        project_root=Path(__file__).parent, path=tmp_path / "call",
    )  # fmt: skip
    assert len(packed.data) == 4 and here[0] in packed.data
    paths = [f"/data/{here.index(data)}" for data in packed.data]
    record = on_a_host(packed, tmp_path, paths)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == [
        "/data/0",
        "/data/2",
        "/data/0",
        "/data/5",
    ]


def test_data_without_a_path_on_the_host_is_said(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="number 1"):
        there_and_back(tmp_path, str, Data(tmp_path))


@pytest.mark.parametrize("make", [
    lambda data: {data},
    lambda data: frozenset([data]),
    lambda data: {data: 1},
    lambda data: [{"deep": Settings({data, "x"})}],
    lambda data: {(data, 1)},
    lambda data: OrderedDict([(data, 1)]),
])  # fmt: skip
def test_data_that_would_hash_differently_on_the_host_is_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known only there") as caught:
        pack_call(double, (make(Data(tmp_path)),), project_root=None, path=tmp_path / "call")
    assert "use a list" in str(caught.value) or "a value of the dict" in str(caught.value)
    assert not (tmp_path / "call").exists()


# What cannot travel, and how it is named


class Trainer:
    def __init__(self) -> None:
        self.name = "t"
        self.lock = threading.Lock()


class SlottedTrainer:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Callback:
    def __init__(self, model: Any) -> None:
        self.model = model


engine = threading.Lock()


def uses_engine() -> None:
    with engine:
        pass


def deeply_uses_engine() -> None:
    uses_engine()


def with_default(x: Any = engine) -> None: ...


class HoldsLock:
    shared = threading.Lock()


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("I stay")


def _closure() -> Any:
    session = threading.Lock()

    def train() -> Any:
        return session

    return train


LOCK = "cannot pickle '_thread.lock' object"


@pytest.mark.parametrize(("function", "args", "kwargs", "message"), [
    (double, (1, Trainer()), {}, f"argument 2, attribute .lock of Trainer: {LOCK}"),
    (double, (SlottedTrainer(),), {}, f"argument 1, attribute .lock of SlottedTrainer: {LOCK}"),
    (double, (), {"callbacks": [1, 2, Callback({"net": Trainer()})]},
     f"keyword argument 'callbacks', item 3, attribute .model of Callback, item 'net', attribute .lock of Trainer: {LOCK}"),
    (double, (Settings(deque([engine])),), {}, f"argument 1, attribute .train of Settings, item 1: {LOCK}"),
    (_closure(), (), {}, f"closure variable 'session' of train: {LOCK}"),
    (uses_engine, (), {}, f"global 'engine' used by uses_engine: {LOCK}"),
    (deeply_uses_engine, (), {}, f"global 'uses_engine' used by deeply_uses_engine, global 'engine' used by uses_engine: {LOCK}"),
    (with_default, (), {}, f"a default value of with_default: {LOCK}"),
    (functools.partial(double, Trainer()), (), {}, f"argument 1 of the partial, attribute .lock of Trainer: {LOCK}"),
    (Callback(engine).__init__, (), {}, "the object of the method __init__, attribute .model of Callback"),
    (lambda: HoldsLock.shared, (), {}, f"global 'HoldsLock' used by <lambda>, attribute .shared of class HoldsLock: {LOCK}"),
    (double, ((n for n in ()),), {}, "argument 1: cannot pickle 'generator' object. Pass a list of what it yields"),
    (double, ([Refuses()],), {}, "argument 1, item 1: ValueError: I stay"),
])  # fmt: skip
def test_what_cannot_be_pickled_is_named(function: Any, args: Any, kwargs: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(NotPicklable) as caught:
        pack_call(function, args, kwargs, project_root=Path(__file__).parent, path=tmp_path / "call")
    assert message in str(caught.value)
    assert "inside the function" in str(caught.value)
    assert not (tmp_path / "call").exists()


def test_naming_ends_in_a_cycle_and_in_the_deep(tmp_path: Path) -> None:
    cycle: list[Any] = [threading.Lock()]
    cycle.insert(0, cycle)
    with pytest.raises(NotPicklable, match="argument 1, item 2: cannot pickle"):
        pack_call(double, (cycle,), project_root=None, path=tmp_path / "call")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotPicklable, match="recursion"):
        pack_call(double, (deep,), project_root=None, path=tmp_path / "call")
    while deep:  # taken apart by hand, because the interpreter would recurse
        deep = deep.pop()


def test_a_full_disk_is_not_blamed_on_an_argument(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pack_call(double, (1,), project_root=None, path=tmp_path / "no folder" / "call")


# Back


class ShopError(Exception):
    def __init__(self, item: str) -> None:
        super().__init__(item)
        self.item = item


class Locked(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def fail(kind: str) -> None:
    if kind == "own":
        raise ShopError("apples")
    if kind == "broken":
        raise Locked("no way back")
    try:
        json.loads("{")
    except ValueError as error:
        raise RuntimeError("bad settings") from error


def test_the_users_own_exception_comes_back_as_itself_with_the_remote_traceback(tmp_path: Path) -> None:
    with pytest.raises(ShopError) as caught:
        there_and_back(tmp_path, fail, "own")
    assert caught.value.item == "apples"
    (note,) = caught.value.__notes__
    assert "Raised on host 0 of job j-1" in note and 'ShopError("apples")' in note
    assert "protocol/content/payload.py" not in note


def test_the_cause_of_an_exception_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="bad settings") as caught:
        there_and_back(tmp_path, fail, "chained")
    assert "JSONDecodeError" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_an_exception_that_cannot_come_back_is_named_by_a_stand_in(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="Locked: no way back") as caught:
        there_and_back(tmp_path, fail, "broken")
    assert (caught.value.job_id, caught.value.host, caught.value.cause) == ("j-1", 0, "user")
    assert "could not be pickled" in str(caught.value)


def test_an_exception_whose_class_is_not_here_is_named_by_a_stand_in(tmp_path: Path) -> None:
    (tmp_path / "hostonly.py").write_text("class Rare(Exception): pass\ndef fail(): raise Rare('odd')")

    def call() -> None:
        import hostonly  # type: ignore[import-not-found]

        hostonly.fail()

    packed = pack_call(call, project_root=None, path=tmp_path / "call")
    record = on_a_host(packed, tmp_path, path=[str(tmp_path)])
    failure = failure_of(record)
    error = revive(failure, tmp_path / "out", job_id="j-1", host=2)
    assert isinstance(error, JobFailed)
    assert "hostonly.Rare: odd" in str(error) and "No module named 'hostonly'" in str(error)
    assert "Traceback" in str(error)


def test_a_process_that_attaches_later_catches_the_users_own_exception(project: Any, tmp_path: Path) -> None:
    """The class went out by value; a process other than the submitter's still finds it under its name."""
    module = project(
        "pay",
        pay="class Declined(Exception): pass\ndef charge(): raise Declined('no')\ndef make(): return Declined('kept')",
    )
    for function, role in ((module.charge, "EXCEPTION"), (module.make, "VALUE")):
        packed = pack_call(function, project_root=project.root, path=tmp_path / "call")
        on_a_host(packed, tmp_path)
        later = (
            f"import sys; sys.path[:0] = [{str(project.root)!r}, {str(ROOT)!r}]\n"
            f"from kinetic_orchestration.protocol.content import payload\nerror = payload.load('out', role=payload.{role})\n"
            "import pay\nassert type(error) is pay.Declined"
        )
        done = subprocess.run([sys.executable, "-c", later], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_result_that_cannot_be_sent_back_is_said_with_its_repr(tmp_path: Path) -> None:
    with pytest.raises(ResultNotPicklable, match=r"generator.*<generator object"):
        there_and_back(tmp_path, lambda: (n for n in ()))


def test_a_result_that_cannot_be_read_here_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "hostonly2.py").write_text("class Rare: pass")

    def call() -> Any:
        import hostonly2  # type: ignore[import-not-found]

        return hostonly2.Rare()

    packed = pack_call(call, project_root=None, path=tmp_path / "call")
    record = on_a_host(packed, tmp_path, path=[str(tmp_path)])
    with pytest.raises(ResultNotPicklable, match=r"No module named 'hostonly2'.*kept in"):
        load_value(tmp_path / "out", record["digest"], record["format"], job_id="j-1")


def test_f29_a_changed_result_or_exception_is_refused(tmp_path: Path) -> None:
    record = payload.dump_value([1], tmp_path / "out")
    with pytest.raises(Corrupt, match="j-1"):
        load_value(tmp_path / "out", "0" * 64, record["format"], job_id="j-1")
    failure = wire.Failure(type="ValueError", message="x", digest="0" * 64)
    assert isinstance(revive(failure, tmp_path / "out", job_id="j-1"), Corrupt)
    assert load_value(tmp_path / "out", record["digest"], record["format"]) == [1]


def test_leaving_the_interpreter_on_a_host_does_not_leave_it_here(tmp_path: Path) -> None:
    record = payload.dump_exception(KeyboardInterrupt(), tmp_path / "out")
    error = revive(failure_of(record), tmp_path / "out", job_id="j-1", host=1)
    assert isinstance(error, JobFailed) and "KeyboardInterrupt" in str(error)


WEIGHTS: Any = None


def uses_a_global() -> int:
    return indirectly()


def indirectly() -> int:
    return len(WEIGHTS)


def test_a_large_global_is_named_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WEIGHTS", np.zeros(LARGE + 1, np.uint8))
    closed = WEIGHTS

    def uses_a_closure() -> int:
        return len(closed)

    def large(function: Any, *args: Any) -> tuple[tuple[str, int], ...]:
        call = pack_call(function, args, project_root=None, first_party=[__name__], path=tmp_path / "call")
        return call.large

    ((told, size),) = large(uses_a_global)
    assert told == "the global 'WEIGHTS' used by indirectly" and LARGE < size < LARGE + 10_000
    ((told, _),) = large(uses_a_closure)
    assert told == "the closure variable 'closed' of uses_a_closure"
    assert large(len, WEIGHTS) == ()  # an argument is meant
    monkeypatch.setattr(sys.modules[__name__], "WEIGHTS", bytes(1000))
    assert large(uses_a_global) == ()


def test_packing_a_small_call_is_quick_even_with_many_modules(tmp_path: Path) -> None:
    import time

    pack_call(double, (1,), project_root=None, path=tmp_path / "call")
    seconds = []
    for _ in range(10):
        start = time.thread_time()  # of ours: others may take what there is
        pack_call(double, (1,), project_root=Path(__file__).parent, path=tmp_path / "call")
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.1
    assert os.path.getsize(tmp_path / "call") < 10_000
