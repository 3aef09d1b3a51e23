"""Pods of running jobs on a real control plane and on the emulated one, entered as users do, and what is in the way."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.kubernetes.cases import Cluster, run
from tests.support.entered import KINOR, SECONDS, forwarded, kinor, page, program_of
from tests.support.jobs import wait_running
from tests.support.terminals import read_out
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(4)]


def test_a_pod_is_entered_and_its_port_is_here_and_a_right_that_lacks_is_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    gate, ports = tmp_path / "gate", tmp_path / "port"
    cluster.pools()
    job = run(program_of(tmp_path / "project").serves, str(gate), str(ports))
    wait_running(job)
    wait_until(lambda: all((tmp_path / f"port-{host}").exists() for host in range(2)))
    enters(cluster, job)
    port = int((tmp_path / "port-1").read_text())
    with forwarded("port-forward", job.job_id, f"{port}:0", "--host", "1") as told:
        assert page(told["address"], "3000000") == b"host 1" + b"x" * 3_000_000
        assert page(told["address"]) == b"host 1"  # the next connection
    lacks(cluster, job, tmp_path)
    gate.touch()
    assert job.result(timeout=120) == "gone through"
    cluster.wait_until_empty()
    shown = kinor("shell", job.job_id, "--", "true")
    assert shown.code == 5 and "it has ended" in shown.err


def enters(cluster: Cluster, job: Any) -> None:
    script = 'read line; echo "$KINETIC_SLICE $line $1"; echo wrong >&2; exit 7'
    shown = kinor("shell", job.job_id, "--host", "1", "--", "sh", "-c", script, "sh", "a  $b; c", given="given\n")
    assert shown[:2] == (7, "0 given a  $b; c\n") and shown.err.endswith("wrong\n")
    much = "0123456789abcdef" * (2 << 16)  # more than all pipes and sockets on the way hold; its end is told, too
    shown = kinor("shell", job.job_id, "--", "cat", given=much)
    assert shown.code == 0 and shown.out == much, len(shown.out)
    shown = kinor("shell", job.job_id, "--", "sh", "-c", "exit 9", given=much)  # who reads nothing has a code, too
    assert shown.code == 9, shown
    pods = {
        kinor("shell", job.job_id, "--host", str(host), "--", "sh", "-c", "echo $KINETIC_POD").out for host in (0, 1)
    }
    assert pods == {f"{pod['metadata']['uid']}\n" for pod in cluster.pods(job).values()}
    shown = kinor("shell", job.job_id, "--json", "--", "sh", "-c", "echo $0; exit 3")
    assert shown.code == 3 and json.loads(shown.out)["stdout"] == "sh\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen([*KINOR, "shell", job.job_id], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"test -t 0 && echo a term'in'al; exit 4\n")  # typed ahead
        said = read_out(ours)
        assert process.wait(SECONDS) == 4 and b"a terminal" in said, said


def lacks(cluster: Cluster, job: Any, folder: Path) -> None:
    """Enter as an account that may look at jobs, and not enter them; and then as it was granted that."""
    account, where = "looker", f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    cluster.api.create(where, {"metadata": {"name": account}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}]

    def grant(name: str, resources: list[str], verbs: list[str]) -> None:
        rules = [{"apiGroups": ["", "jobset.x-k8s.io", "batch"], "resources": resources, "verbs": verbs}]
        cluster.api.create(f"{rbac}/roles", {"metadata": {"name": name}, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        cluster.api.create(
            f"{rbac}/rolebindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        )

    grant("looks", ["pods", "jobsets", "jobs", "events"], ["get", "list"])
    config = json.loads(cluster.plane.account_kubeconfig(cluster.namespace, account).read_text(encoding="utf-8"))
    own = json.loads(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    own["users"][0]["user"] = config["users"][0]["user"]
    path = folder / "kubeconfig-of-looker"
    path.write_text(json.dumps(own), encoding="utf-8")
    shown = kinor("shell", job.job_id, "--", "true", KUBECONFIG=str(path))
    assert shown.code == 5 and "It takes get and create on pods/exec" in shown.err
    granted = f"kubectl create role kinetic-shell --verb=get,create --resource=pods/exec -n {cluster.namespace}"
    assert granted in shown.err and f"serviceaccount={cluster.namespace}:{account}" in shown.err
    grant("kinetic-shell", ["pods/exec"], ["get", "create"])
    wait_until(lambda: kinor("shell", job.job_id, "--", "true", KUBECONFIG=str(path)).code == 0)
    assert kinetic.attach(job.job_id).job_id == job.job_id
