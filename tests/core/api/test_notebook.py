"""A notebook's cell: its functions run as jobs from a real kernel."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.support import pages

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")


class Notebook:
    """One kernel, and the text that its cells print."""

    def __init__(self, folder: Path) -> None:
        self.sockets = tempfile.mkdtemp()  # and no ports, which are chosen before the kernel binds them; a short name
        self.kernel = manager.KernelManager(kernel_name="python3", transport="ipc", ip=f"{self.sockets}/k")
        self.kernel.start_kernel(cwd=str(folder))
        self.client = self.kernel.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=60)
        except RuntimeError:
            self.close()
            raise

    def begin(self, code: str) -> str:
        return str(self.client.execute(code))

    def outputs(self, cell: str, within: float = 60.0) -> Iterator[tuple[str, str]]:
        """Yield this cell's output, (stream or "error", text), until it is done."""
        deadline = time.monotonic() + within
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != cell:
                continue
            content: dict[str, Any] = message["content"]
            if message["msg_type"] == "stream":
                yield content["name"], content["text"]
            elif message["msg_type"] == "error":
                yield "error", content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return

    def run(self, code: str) -> dict[str, str]:
        told: dict[str, str] = {}
        for name, text in self.outputs(self.begin(code)):
            told[name] = told.get(name, "") + text
        return told

    def close(self) -> None:
        self.client.stop_channels()
        self.kernel.shutdown_kernel(now=True)
        self.kernel.cleanup_resources()
        shutil.rmtree(self.sockets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    for name, text in {
        "helper.py": "import deeper\ndef scale(x):\n    return x * deeper.TEN\n",
        "deeper.py": "TEN = 10\n",
        "unrelated.py": "raise SystemExit\n",
        "rows.csv": "1,2\n",
        "other.ipynb": "{}",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def notebook(folder: Path, shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        found = Notebook(folder)
        try:
            assert "error" not in found.run("import kinetic_orchestration as kinetic")
            yield found
        finally:
            found.close()


def test_a_cells_function_runs_with_the_folder_of_its_notebook(notebook: Notebook, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    told = notebook.run(
        "import os\n"
        "import helper\n"
        "offset = 2\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def work(x):\n"
        "    print('a line of the host')\n"
        "    return helper.scale(x) + offset, sorted(os.listdir(os.path.dirname(helper.__file__)))\n"
    )
    assert "error" not in told, told
    told = notebook.run("value, files = work(4); print(value, files)")
    assert "a line of the host\n" in told["stdout"]
    assert "42 ['deeper.py', 'helper.py', 'other.ipynb', 'rows.csv', 'unrelated.py']\n" in told["stdout"], told
    assert f"kinetic: the folder {folder} travels with the job: no pyproject.toml" in told["stderr"]
    assert "kinetic: succeeded" in told["stderr"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_handle_at_the_end_of_a_cell_is_a_picture_without_a_style_and_one_line_of_text(notebook: Notebook) -> None:
    told = notebook.run(
        "import json, re\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def shown(x):\n"
        "    kinetic.current().log_metrics(step=1, loss=x)\n"
        "    kinetic.current().log_metrics(step=2, loss=x / 2)\n"
        "job = shown.run_async(0.5); job.result()\n"
        "batch = shown.run_async_map([{'x': 1.0}, {'x': 2.0}], name='<b>two</b>'); batch.results()\n"
        "def bundle(each):\n"
        "    from IPython.core.interactiveshell import InteractiveShell\n"
        "    return InteractiveShell.instance().display_formatter.format(each)[0]\n"
        "print('BUNDLES', json.dumps([bundle(job), bundle(batch)]))"
    )
    assert "error" not in told, told
    of_job, of_batch = json.loads(told["stdout"].partition("BUNDLES ")[2].splitlines()[0])
    assert of_job["text/plain"].startswith("<JobHandle job-") and of_batch["text/plain"].startswith("<BatchHandle ")
    assert "shown on cpu (local): SUCCEEDED" in of_job["text/html"] and "2 SUCCEEDED" in of_batch["text/html"]
    assert ">attempt 1<" in of_job["text/html"] and ">loss<" in of_job["text/html"]
    assert "&lt;b&gt;two" in of_batch["text/html"] and of_batch["text/html"].count("<rect") == 1
    for html in (of_job["text/html"], of_batch["text/html"]):
        assert not re.search(r"<(script|style)|\sstyle=|\sclass=|\son\w+=|url\(", html)
        assert not re.search(r"(fill|stroke)=\"#(fff|000|1f2430|667085|e6e8ee)", html)


def test_what_a_cells_function_imports_within_it_travels_and_what_stays_is_named(
    notebook: Notebook, folder: Path
) -> None:
    """The folder is too large here, so only what is imported travels."""
    with (folder / "large.bin").open("wb") as file:
        file.truncate(51 << 20)
    try:
        told = notebook.run(
            "def other(x):\n"
            "    from helper import scale\n"
            "    return scale(x)\n"
            "@kinetic.run(accelerator='cpu')\n"
            "def within(x):\n"
            "    import os\n"
            "    return [other(y) for y in [x]], sorted(os.listdir())\n"
            "print(within(4))\n"
        )
        assert "([40], ['deeper.py', 'helper.py'])\n" in told["stdout"], told
        assert "has more than 1,000 files or 50 MiB" in told["stderr"]
        told = notebook.run(
            "@kinetic.run(accelerator='cpu')\n"
            "def hidden():\n"
            "    return __import__(''.join(['un', 'related']))\n"
            "try:\n"
            "    hidden()\n"
            "except ModuleNotFoundError as error:\n"
            "    print(error.__notes__)\n"
        )
        assert f"unrelated.py lies beside your code, in {folder}, and did not travel" in told["stdout"], told
        assert "install" not in told["stdout"]
    finally:
        (folder / "large.bin").unlink()


def test_a_later_cell_sees_what_an_earlier_one_defined(notebook: Notebook) -> None:
    notebook.run("offset = 7\nclass Model:\n    size = 3\n    def __init__(self, n): self.n = n\n")
    told = notebook.run(
        "job = kinetic.run(accelerator='cpu')(lambda model: Model(model.n + Model.size + offset)).run_async(Model(1))\n"
        "made = job.result()\n"
        "print(type(made) is Model, made.n)"
    )
    assert told["stdout"] == "True 11\n", told


def test_the_users_own_exception_is_shown_in_the_cell(notebook: Notebook) -> None:
    told = notebook.run(
        "class Odd(Exception): pass\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def fail():\n"
        "    raise Odd('in a cell')\n"
        "try:\n"
        "    fail()\n"
        "except Odd as error:\n"
        "    print('caught', error, 'Raised on host 0' in error.__notes__[0])\n"
    )
    assert "caught in a cell True" in told["stdout"], told


def test_a_coroutine_function_of_a_cell_runs_too(notebook: Notebook) -> None:
    told = notebook.run("@kinetic.run(accelerator='cpu')\nasync def slowly(x):\n    return x + 1\nprint(slowly(1))\n")
    assert told["stdout"].endswith("2\n"), told


def test_interrupting_the_kernel_cancels_the_job(notebook: Notebook) -> None:
    cell = notebook.begin(
        "import time\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def forever():\n"
        "    print('begun')\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
        "forever()\n"
    )
    told = {"stdout": "", "stderr": "", "error": ""}
    interrupted = False
    for name, text in notebook.outputs(cell):
        told[name] += text
        if "begun" in told["stdout"] and not interrupted:
            notebook.kernel.interrupt_kernel()
            interrupted = True
    assert told["error"] == "KeyboardInterrupt", told
    found = re.search(r"cancelling (job-\w+)", told["stderr"])
    assert found is not None, told
    assert kinetic.attach(found[1]).status() is kinetic.JobStatus.CANCELLED
    assert notebook.run("print('the kernel lives')")["stdout"] == "the kernel lives\n"


def test_the_cells_of_the_page_run_and_a_later_one_finds_the_job_of_an_earlier(notebook: Notebook) -> None:
    first, submit, fetch, *hosted = pages.blocks("docs/start/notebooks.md")
    assert {re.findall(r"from (\S+) import", text)[-1] for text in hosted} == {"google.colab", "kaggle_secrets"}
    told = notebook.run(first)
    assert "a line of the host\n" in told["stdout"] and told["stdout"].endswith("40\n"), told
    job_id = notebook.run(submit)["stdout"].strip()
    assert re.fullmatch(r"job-\w+", job_id)
    told = notebook.run(f"{fetch}\nprint(fetch({job_id!r}))")
    assert told["stdout"].endswith("40\n"), told
