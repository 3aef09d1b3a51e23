"""Programs in the shape of Keras Kinetic's run on a cluster with only their import changed: GPUs by its names, its words
for a backend, a cluster, a namespace and an image, and several hosts.

The cluster is once that of a kubeconfig, and once one of GKE, found by its name with a token that Google has just given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kinetic_orchestration.testing.kubernetes.pods.nodes import Node
from tests.end_to_end.kubernetes.cases import Cluster, token_for_all
from tests.support.google_tokens import token_server
from tests.support.jobs import WITHIN
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(2)]

IMAGE = "us-docker.pkg.dev/ours/images/train:7"
Start = Callable[..., "subprocess.Popen[str]"]


# What an orchestrator does for a task of its own, too: there is no Google here that knows this process.
AS_AN_ACCOUNT = """
import os, runpy
from google.oauth2.service_account import Credentials
from kinetic_orchestration.platforms.google.credentials import SCOPE, handed_in
with handed_in(Credentials.from_service_account_file(os.environ["KEY_FILE"], scopes=[SCOPE])):
    runpy.run_path("program.py", run_name="__main__")
"""


@pytest.fixture(params=["kubernetes", "gke"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(backend: str, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts such a program in a process of its own, in a project that needs no package."""
    command, own = ["program.py"], {"TEAM": cluster.namespace}
    with ExitStack() as running:
        if backend == "gke":
            request.getfixturevalue("google")
            tokens = running.enter_context(token_server(token_for_all(cluster.plane, cluster.namespace)))
            tokens.write_key(tmp_path / "key.json")
            command, own = ["-c", AS_AN_ACCOUNT], {**own, "KEY_FILE": str(tmp_path / "key.json")}

        def start(source: str, **environ: str) -> subprocess.Popen[str]:
            folder = tmp_path / "program"
            folder.mkdir()
            changed = re.sub(
                r"^import kinetic$", "import kinetic_orchestration as kinetic", textwrap.dedent(source), flags=re.M
            )
            (folder / "program.py").write_text(changed, encoding="utf-8")
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=folder, env={**os.environ, **own, **environ}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        yield start
        if backend == "gke":
            assert tokens.asked, "no token was asked for"


def ended(program: subprocess.Popen[str]) -> tuple[list[str], str]:
    """The lines that a program printed, and all that it was told."""
    try:
        out, told = program.communicate(timeout=WITHIN)
    except subprocess.TimeoutExpired:
        program.kill()
        out, told = program.communicate()
        raise AssertionError(f"it did not end:\n{out}\n{told}") from None
    assert program.returncode == 0, f"{out}\n{told}"
    return out.splitlines(), told


def gpus(cluster: Cluster, model: str, count: int, *, spot: bool = False) -> Node:
    """A node of GKE with GPUs."""
    labels = {"cloud.google.com/gke-accelerator": model, **({"cloud.google.com/gke-spot": "true"} if spot else {})}
    taints = ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},)
    allocatable = {"nvidia.com/gpu": str(count), "cpu": "208", "memory": "2Ti"}
    return Node(f"{cluster.namespace}-{model}", labels, taints, allocatable, cluster.machine)


def test_its_names_of_gpus_ask_for_nodes_with_these_in_the_cluster_and_namespace_that_a_program_names(
    cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_NAMESPACE", "of-a-setting")  # a program's own word counts more
    cluster.add(gpus(cluster, "nvidia-l4", 4), gpus(cluster, "nvidia-h100-80gb", 8, spot=True))
    program = start(
        """
        import os

        import kinetic

        TEAM = os.environ["TEAM"]


        @kinetic.run(accelerator="gpu-l4x4", backend="gke", cluster="tests", namespace=TEAM)
        def score(rows):
          print(f"scoring {rows} rows")
          return rows * 2


        @kinetic.run(accelerator="h100x8", cluster="tests", namespace=TEAM, spot=True)
        def tune(rates):
          return min(rates)


        jobs = [score.run_async(21), tune.run_async([3e-4, 1e-4])]
        print([job.result() for job in jobs], [job.accelerator for job in jobs])
        print(kinetic.attach(jobs[0].job_id, cluster="tests").logs().strip())
        """,
    )
    out, told = ended(program)
    assert out[-2:] == ["[42, 0.0001] ['l4x4', 'h100x8']", "scoring 21 rows"]
    assert not re.findall("no cluster of GKE is named|no meaning", told), told


def test_pathways_is_one_process_on_each_host_of_a_slice_joined_into_one_world(
    backend: str, cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Keras Kinetic, whose backend of that name starts no server of Pathways either. The value is host 0's."""
    if backend == "gke":
        monkeypatch.delenv("KINETIC_BACKEND")  # a project, a bucket and KINETIC_CLUSTER are named: that is enough
    cluster.pools()
    cluster.single()
    program = start(
        f"""
        import os

        import kinetic


        @kinetic.run(
          accelerator="tpu-v4-8", backend="pathways", container_image="{IMAGE}", namespace=os.environ["TEAM"]
        )
        def sum_over_all():
          import jax
          import jax.numpy as jnp
          from jax.sharding import Mesh, NamedSharding, PartitionSpec

          devices = jax.devices()
          along = NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x"))
          ones = jax.make_array_from_callback((len(devices),), along, lambda index: jnp.ones((1,)))
          whole = jax.jit(lambda value: value.sum(), out_shardings=NamedSharding(along.mesh, PartitionSpec()))(ones)
          print(f"process {{jax.process_index()}} of {{jax.process_count()}} sums up to {{float(whole):g}}")
          return jax.process_index(), jax.process_count(), jax.local_device_count(), float(whole)


        @kinetic.run("tpu-v5litepod-1", "{IMAGE}", backend="pathways", namespace=os.environ["TEAM"])
        def alone():
          import jax

          return jax.process_count()


        job = sum_over_all.run_async()
        print(job.result(stream_logs=True), alone(), job.image_uri)
        """
    )
    pods = wait_until(lambda: (found := cluster.list("pods"))[1:] and found, "two pods", within=WITHIN, pause=0.1)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {IMAGE}
    out, told = ended(program)
    assert out[-1] == f"(0, 2, 4, 8.0) 1 {IMAGE}"
    for host in range(2):
        assert f"process {host} of 2 sums up to 8" in f"{out}{told}", "unlike there, each host's lines are shown"
    assert "no cluster of GKE is named" not in told
