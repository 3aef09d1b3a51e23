"""A pipeline file's imports of its orchestrator reach a host only if the call itself needs them."""

from tests.core.packaging.requirements.test_remote import Desk, desk  # noqa: F401 - a fixture

VALUE = "class Value:\n    def __init__(self, value): ...\nasset = None\n"
FILE = """\
import alpha
import dagster_mine as dg

asset = dg.asset

def plain(value):
    return alpha.name, value

def values(value):
    return dg.Value(value)

def inside(value):
    import dagster_mine
    return dagster_mine

def annotated(value) -> dg.Value:
    return value
"""


def test_hosts_get_it_where_the_call_names_it(desk: Desk) -> None:  # noqa: F811
    desk.install("alpha", **{"alpha/__init__.py": "name = 1\n"})
    desk.install("dagster_mine", "2.5", **{"dagster_mine/__init__.py": VALUE})
    desk.write("pipeline.py", FILE)
    of_call = {
        name: desk.locked(desk.function("pipeline", name), 1) for name in ("plain", "values", "inside", "annotated")
    }
    assert of_call.pop("plain") == ["alpha==1.0"]
    assert set(map(tuple, of_call.values())) == {("alpha==1.0", "dagster-mine==2.5")}


def test_a_list_of_requirements_gets_what_it_lacks(desk: Desk) -> None:  # noqa: F811
    desk.install("alpha", **{"alpha/__init__.py": "name = 1\n"})
    desk.install("dagster_mine", "2.5", **{"dagster_mine/__init__.py": VALUE})
    desk.write("pipeline.py", FILE)
    assert desk.locked(desk.function("pipeline", "plain"), 1, requirements=["alpha"]) == ["alpha==1.0"]
    found = desk.locked(desk.function("pipeline", "values"), 1, requirements=["alpha"])
    assert found == ["alpha==1.0", "dagster-mine==2.5"]
    found = desk.locked(desk.function("pipeline", "values"), 1, requirements=["dagster_mine>=2"])
    assert found == ["dagster-mine==2.5"]
