"""The whole emulator: real hosts, real servers, the command and the fixtures; and that nothing of it outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, prlimit
from typing import Any

import pytest
import requests

from kinetic_orchestration.platforms.kubernetes.api import kubeconfig
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import Emulator, random_faults
from tests.core.platforms.kubernetes.attempts import plan_of, rendered
from tests.support import instances
from tests.support.waits import wait_until

ZONE = "us-east5-a"
PARENT = f"projects/p/locations/{ZONE}"
WAIT = 30.0

# What a host does that deletes its own slice with nothing but the system's Python and its metadata server.
SUICIDE = """\
#!/bin/sh
exec python3 - <<'END'
import json, os, urllib.request

def ask(url, method="GET", data=None, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
        return answer.read().decode()

base = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/"
google = {"Metadata-Flavor": "Google"}
ask(base + "guest-attributes/kinetic/state", "PUT", b"up", **google)
token = json.loads(ask(base + "service-accounts/default/token", **google))["access_token"]
identity = ask(base + "service-accounts/default/identity?audience=me&format=full", **google)
print("identity", identity.count("."), flush=True)
resource = ask(base + "attributes/resource", **google)
url = f"{os.environ['KINETIC_EMULATOR']}/v2/{resource}?force=true"
print(ask(url, "DELETE", Authorization=f"Bearer {token}"), flush=True)
END
"""


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with Emulator(zones={ZONE: None}) as cloud:
        yield cloud


def create(cloud: Emulator, name: str = "q", accelerator: str = "v6e-8", script: str = "sleep 600") -> str:
    """A queued resource of one slice; its name."""
    resource = f"{PARENT}/queuedResources/{name}"
    node = {
        "acceleratorType": accelerator,
        "runtimeVersion": "v2-alpha-tpuv6e",
        "metadata": {"startup-script": script, "resource": resource},
    }
    spec = {"parent": PARENT, "nodeId": name, "node": node}
    url = f"{cloud.rest.url}/v2/{PARENT}/queuedResources"
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    requests.post(url, params={"queuedResourceId": name}, json=body, timeout=WAIT).raise_for_status()
    return resource


def delete(cloud: Emulator, resource: str) -> None:
    url = f"{cloud.rest.url}/v2/{resource}"
    requests.delete(url, params={"force": "true"}, timeout=WAIT).raise_for_status()


def ready(cloud: Emulator, node: str = "q") -> None:
    cloud.wait_until(lambda: (cloud.node(node) or {}).get("state") == "READY", WAIT, f"{node} READY")


def consoles(cloud: Emulator, node: str = "q") -> list[str]:
    return [vm.console() if vm is not None else "" for vm in cloud.vms(node)]


def test_hosts_are_real_and_gone_with_their_slice(cloud: Emulator) -> None:
    script = "echo bucket $TENSORSTORE_GCS_HTTP_URL; echo host $KINETIC_ROOT; sleep 600"
    resource = create(cloud, accelerator="v6e-16", script=script)
    ready(cloud)
    cloud.wait_until(lambda: all("host /" in text for text in consoles(cloud)), WAIT, "four startup scripts")
    assert all(f"bucket {cloud.storage.url}\n" in text for text in consoles(cloud)), "as Orbax looks for it"
    pids = [pid for vm in cloud.vms("q") if vm is not None for pid in vm.processes()]
    assert len(pids) >= 4
    assert len(cloud.ledger.leaks()) == 6
    delete(cloud, resource)
    cloud.wait_until_empty(WAIT)
    assert [pid for pid in pids if (found := processes.find(pid)) is not None and not found.zombie] == []
    cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_host_deletes_its_own_slice_by_its_own_account(cloud: Emulator) -> None:
    cloud.slow_delete(10.0)  # until all of it was seen
    create(cloud, script=SUICIDE)
    ready(cloud)
    cloud.wait_until(lambda: "operations/" in consoles(cloud)[0], WAIT, "its delete call")
    assert "identity 2" in consoles(cloud)[0]
    attributes = cloud.call("GetGuestAttributes", {"name": f"{PARENT}/nodes/q"})["guestAttributes"]
    assert attributes[0]["queryValue"]["items"] == [{"namespace": "kinetic", "key": "state", "value": "up"}]
    assert cloud.count("DeleteQueuedResource", "vm") == 1
    cloud.wait_until_empty(2 * WAIT)


def test_a_host_without_the_permission_is_refused_and_stays(cloud: Emulator) -> None:
    cloud.deny("vm", "tpu.nodes.delete")
    resource = create(cloud, script=SUICIDE)
    ready(cloud)
    cloud.wait_until(lambda: "403" in consoles(cloud)[0], WAIT, "a refusal")
    assert cloud.queued_resource("q") is not None
    delete(cloud, resource)
    cloud.wait_until_empty(WAIT)


def test_preemption_reboot_and_power_failure_reach_the_processes(cloud: Emulator) -> None:
    script = "trap 'echo told' TERM; echo boot; while :; do sleep 0.05; done"
    resource = create(cloud, accelerator="v6e-16", script=script)
    ready(cloud)
    cloud.wait_until(lambda: all("boot" in text for text in consoles(cloud)), WAIT, "boots")
    cloud.reboot("q", 1)
    cloud.wait_until(lambda: consoles(cloud)[1].count("boot") == 2, WAIT, "a second boot")
    cloud.power_off("q", 2)
    cloud.wait_until(lambda: not cloud.hosts("q")[2].alive, WAIT, "a dead host")  # type: ignore[union-attr]
    assert (cloud.node("q") or {})["state"] == "READY"
    cloud.preempt("q", notice=1.0)
    cloud.wait_until(lambda: (cloud.node("q") or {})["state"] == "PREEMPTED", WAIT, "PREEMPTED")
    cloud.wait_until(lambda: not any(item.startswith("VM") for item in cloud.ledger.leaks()), WAIT, "no hosts")
    delete(cloud, resource)
    cloud.wait_until_empty(WAIT)


def test_hosts_can_be_furnished_differently(cloud: Emulator) -> None:
    cloud.furnish({"clock_skew": 600.0}, worker=1)
    create(
        cloud, accelerator="v6e-16", script="python3 -c 'import time; print(int(time.time()), flush=True)'; sleep 600"
    )
    ready(cloud)
    cloud.wait_until(lambda: all(text.strip() for text in consoles(cloud)), WAIT, "four clocks")
    clocks = [int(text) for text in consoles(cloud)]
    assert 540 < clocks[1] - clocks[0] < 660  # they boot side by side
    cloud.sweep()
    cloud.wait_until_empty(WAIT)


@pytest.mark.parametrize("backend", ["gke", "kubernetes"])
def test_environ_names_a_kubeconfig_of_the_cluster_whatever_the_backend(cloud: Emulator, backend: str) -> None:
    path = cloud.environ(backend=backend)["KUBECONFIG"]
    with Api(kubeconfig.load({}, path=path)) as api:
        made = api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "trainer"}})
    assert made["metadata"]["name"] == "trainer"


def test_environ_is_what_a_client_needs_and_its_bucket_is_there(cloud: Emulator) -> None:
    environ = cloud.environ(project="mine", store="gs://my-bucket/prefix", deployment="prod")
    assert environ == {
        "KINETIC_BACKEND": "tpu-vm",
        "KINETIC_PROJECT": "mine",
        "KINETIC_STORE": "gs://my-bucket/prefix",
        "KINETIC_DEPLOYMENT": "prod",
        "KINETIC_ZONES": ZONE,
        **cloud.addresses(),
    }
    bucket = requests.get(f"{environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/my-bucket", timeout=WAIT)
    assert bucket.json()["name"] == "my-bucket"
    assert cloud.environ() == cloud.environ()


@pytest.mark.slow
def test_an_idle_emulator_uses_no_processor() -> None:
    others = set(os.listdir("/proc/self/task"))  # threads that earlier tests have left may be at work
    with Emulator(zones={ZONE: None}) as cloud:
        create(cloud)
        ready(cloud)
        cloud.vms("q")

        def ticks() -> int:
            found = 0
            for thread in set(os.listdir("/proc/self/task")) - others:
                with contextlib.suppress(OSError):  # it has just ended
                    stat = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="utf-8")
                    found += sum(map(int, stat.rpartition(") ")[2].split()[11:13]))
            return found

        before = ticks()
        time.sleep(2.0)
        assert ticks() - before <= 4  # of two hundred, from the moment when there is nothing more to do
        cloud.sweep()


def test_waiting_in_vain_says_what_there_is(cloud: Emulator) -> None:
    create(cloud)
    with pytest.raises(
        TimeoutError, match=r"an empty cloud did not happen within 0.1 s; there is:\n.*queuedResources/q"
    ):
        cloud.wait_until_empty(0.1)
    cloud.sweep()


def test_closing_ends_hosts_threads_servers_and_files(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with Emulator(zones={ZONE: None}) as cloud:
        create(cloud)
        ready(cloud)
        vm = cloud.vms("q")[0]
        assert vm is not None
        pids, root = vm.processes(), cloud.root
        rest, storage = cloud.rest.url, cloud.storage.url
        idle = requests.Session()
        idle.get(f"{rest}/certs", timeout=WAIT)
        cloud.slow("ListNodes", 60.0)
        hanging = threading.Thread(target=lambda: _quietly(requests.get, f"{rest}/v2/{PARENT}/nodes"))
        hanging.start()
        cloud.wait_until(lambda: cloud.count("ListNodes") == 1, WAIT)
    cloud.close()
    idle.close()
    hanging.join(WAIT)
    assert [pid for pid in pids if (found := processes.find(pid)) is not None and not found.zombie] == []
    assert not root.exists()
    for url in (rest, storage):
        with pytest.raises(requests.ConnectionError):
            requests.get(url, timeout=5)
    wait_until(lambda: {thread for thread in threading.enumerate() if thread not in threads} == set())


def _quietly(call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args, timeout=WAIT)
    except requests.RequestException:
        pass


def test_a_given_root_is_used_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "wölken und mehr"
    with Emulator(root, zones={ZONE: None}) as cloud:
        create(cloud, script="echo $KINETIC_ROOT; sleep 600")
        ready(cloud)
        cloud.wait_until(lambda: consoles(cloud)[0].startswith(f"{root}/"), WAIT, "its root")
        cloud.sweep()
        cloud.wait_until_empty(WAIT)
    assert root.is_dir()


_STARTS_ONE = """\
import sys, time
from kinetic_orchestration.testing import Emulator
sys.path.insert(0, {folder!r})
from test_emulator import create, ready
with Emulator(zones={{"us-east5-a": None}}) as cloud:
    cloud.furnish({{"disk": {disk}}})
    create(cloud, script="sleep 600 & exec setsid sleep 600")
    ready(cloud)
    cloud.wait_until(lambda: len(cloud.vms("q")[0].processes()) >= 2, 30)
    print(*cloud.vms("q")[0].processes(), flush=True)
    print(cloud.root, cloud.storage.url.rpartition(":")[2].partition("/")[0], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "disk", [0, pytest.param(8, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk"))]
)
def test_hosts_and_store_die_with_an_emulator_that_was_killed(
    disk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one takes its files away, and the disks that its hosts had of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where no emulator of another test removes what this one has left
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = _STARTS_ONE.format(folder=str(Path(__file__).parent), disk=disk)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        pids = [int(pid) for pid in emulator.stdout.readline().split()]
        root, port = emulator.stdout.readline().rsplit(maxsplit=1)
        assert len(pids) >= 2
        emulator.kill()
    wait_until(lambda: all((found := processes.find(pid)) is None or found.zombie for pid in pids))
    wait_until(lambda: not _listens(int(port)))
    assert Path(root).parent == tmp_path
    assert Path(root).exists()
    assert (root in Path("/proc/self/mounts").read_text()) == (disk > 0)
    with Emulator(zones={ZONE: None}, hosts=False):
        assert not Path(root).exists()
        assert root not in Path("/proc/self/mounts").read_text()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_random_faults_with_real_hosts_leave_nothing_behind(cloud: Emulator) -> None:
    kinds = ("preemption", "reboot", "gone", "power failure", "never boots")
    faults = random_faults(cloud, 11, rate=0.5, limit=12, kinds=kinds, within=0.5)
    for index in range(6):
        create(cloud, f"q{index}")
    cloud.wait_until(lambda: cloud.ledger.count("ready", "node") == 6, WAIT, "six nodes")
    wait_until(lambda: faults.met)
    for queued in cloud.queued_resources():
        delete(cloud, queued["name"])
    cloud.wait_until_empty(WAIT)


# The command


def _command(*options: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "kinetic_orchestration.cli", "emulator", *options]
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run below nohup, the command does not
    try:
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, inherited)


def _environment(command: subprocess.Popen[str], until: str = "KINETIC_EMULATOR_GRPC") -> dict[str, str]:
    assert command.stdout is not None
    found: dict[str, str] = {}
    while until not in found:
        word, _, rest = command.stdout.readline().strip().partition(" ")
        assert word == "export"
        name, _, value = rest.partition("=")
        found[name] = shlex.split(value)[0]
    return found


class _Elsewhere:
    """An emulator of another process, as `create` and `delete` need it."""

    def __init__(self, url: str) -> None:
        self.rest = self
        self.url = url


def test_the_command_leads_to_compute_engine_and_bills_its_instances() -> None:
    with _command("--backend", "compute", "--zone", ZONE, "--provision", "0.01") as command:
        assert command.stdout is not None and command.stderr is not None
        environ = _environment(command)
        assert (environ["KINETIC_BACKEND"], environ["KINETIC_ZONES"]) == ("compute", ZONE)
        url = f"{environ['KINETIC_EMULATOR']}/compute/v1/projects/p/zones/{ZONE}/instances"
        made = requests.post(url, json=instances.body(zone=ZONE), timeout=60).json()
        assert made["status"] == "RUNNING"
        while not (line := command.stdout.readline()).endswith("RUNNING\n"):
            assert line
        assert f"instance         {ZONE}/ko-a" in line
        command.send_signal(signal.SIGINT)
        told = command.stderr.read()
        assert "0 queued resources and 0 nodes and 1 instances were made, READY for" in told
        assert f"instance projects/p/zones/{ZONE}/instances/ko-a" in told and "disk projects/p" in told
        assert command.wait(WAIT) == 1


@pytest.mark.parametrize("tidy", [True, False])
def test_the_command_prints_what_to_paste_and_what_happens_and_ends_with_the_bill(tidy: bool) -> None:
    with _command("--zone", ZONE, "--provision", "0.01", "--deployment", "dev") as command:
        assert command.stdout is not None and command.stderr is not None
        environ = _environment(command)
        assert environ["KINETIC_DEPLOYMENT"] == "dev"
        there: Any = _Elsewhere(environ["KINETIC_EMULATOR"])
        resource = create(there)
        last = "READY"
        if tidy:
            delete(there, resource)
            last = "queued resource  us-east5-a/q  deleted"
        lines: list[str] = []
        while not lines or last not in lines[-1]:
            lines.append(command.stdout.readline())
            assert lines[-1]
        assert "queued resource  us-east5-a/q" in lines[0]
        command.send_signal(signal.SIGINT)
        told = command.stderr.read()
        assert "1 queued resources and 1 nodes were made, READY for" in told
        assert ("nothing was left" in told) is tidy
        assert (f"queued resource {resource}" in told) is not tidy
        assert command.wait(WAIT) == (0 if tidy else 1)


@pytest.mark.slow
@pytest.mark.turn(5)
def test_the_command_speaks_json_and_can_be_silent() -> None:
    with _command("--zone", f"{ZONE}=4", "--json", "--faults", "0.5", "--seed", "3") as command:
        assert command.stdout is not None
        assert json.loads(command.stdout.readline())["environment"]["KINETIC_ZONES"] == ZONE
        command.send_signal(signal.SIGTERM)
        assert json.loads(command.stdout.readline())["left"] == []
        assert command.wait(WAIT) == 0
    with _command("--zone", ZONE, "--print-env") as command:
        assert command.stdout is not None and command.stderr is not None
        _environment(command)
        command.send_signal(signal.SIGINT)
        assert (command.stdout.read(), command.stderr.read()) == ("", "")
    with _command("--zone", f"{ZONE}=many") as command:
        assert command.stderr is not None
        assert "after the = comes the number of chips" in command.stderr.read()
        assert command.wait(WAIT) == 2


@pytest.mark.parametrize("tidy", [True, False])
def test_the_command_has_a_cluster_by_a_kubeconfig_and_its_bill_names_the_sets_that_go_on(tidy: bool) -> None:
    sets = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
    with _command("--backend", "kubernetes") as command:
        assert command.stdout is not None and command.stderr is not None
        environ = _environment(command, until="STORAGE_EMULATOR_HOST")
        assert (environ["KINETIC_BACKEND"], "KINETIC_EMULATOR" in environ) == ("kubernetes", False)
        with Api(kubeconfig.load({}, path=environ["KUBECONFIG"])) as api:
            api.create(sets, {**rendered(plan_of("v5e-8")), "metadata": {"name": "it"}})
            if tidy:
                api.delete(f"{sets}/it")
        command.send_signal(signal.SIGINT)
        told = command.stderr.read()
        assert ("nothing was left" in told) is tidy
        assert ("JobSet default/it" in told) is not tidy
        assert command.wait(WAIT) == (0 if tidy else 1)


def test_an_event_of_the_cluster_has_the_time_at_which_it_happened(cloud: Emulator) -> None:
    """Not that of the last call of the cloud, which jobs on a cluster of a kubeconfig never make."""
    with Api(kubeconfig.load({}, path=cloud.environ(backend="kubernetes")["KUBECONFIG"])) as api:
        before = time.time()
        api.create("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", rendered(plan_of("v5e-8")))
        told = wait_until(lambda: [one for one in list(cloud.history) if one.kind == "JobSet"], "the set is heard of")
    assert before <= told[0].time <= time.time()


@contextlib.contextmanager
def _bounded(*options: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A command that is killed if it does not end, and the emulator that it runs."""
    with _command("--zone", ZONE, "--provision", "0.01", *options) as command:
        try:
            yield command, _Elsewhere(_environment(command)["KINETIC_EMULATOR"])
        finally:
            command.kill()


def _states(there: Any) -> set[str]:
    answer = requests.get(f"{there.url}/v2/{PARENT}/queuedResources", timeout=WAIT)
    return {queued["state"]["state"] for queued in answer.json().get("queuedResources", ())}


@pytest.mark.parametrize("reader", ["does not read", "has left"])
def test_the_command_goes_on_and_ends_whoever_reads_its_lines(reader: str) -> None:
    with _bounded() as (command, there):
        assert command.stdout is not None and command.stderr is not None
        if reader == "has left":
            command.stdout.close()
        else:
            fcntl.fcntl(command.stdout, fcntl.F_SETPIPE_SZ, 4096)
        for index in range(24):  # more lines than the pipe holds
            create(there, f"q{index}", script="")
        wait_until(lambda: _states(there) == {"ACTIVE"})
        command.send_signal(signal.SIGINT)
        assert command.wait(WAIT) == 1
        assert "24 queued resources and 24 nodes were made" in command.stderr.read()


@pytest.mark.parametrize("store", [False, True])
def test_the_command_answers_again_once_there_are_file_descriptors_again(store: bool) -> None:
    with _command("--zone", ZONE) as command:
        try:
            environ = _environment(command)
            url = environ["STORAGE_EMULATOR_HOST" if store else "KINETIC_EMULATOR"]
            most = len(os.listdir(f"/proc/{command.pid}/fd")) + 20
            _, hard = prlimit(command.pid, RLIMIT_NOFILE)
            prlimit(command.pid, RLIMIT_NOFILE, (most, hard))
            port = int(url.split(":")[2].partition("/")[0])
            silent = [socket.create_connection(("127.0.0.1", port), WAIT) for _ in range(40)]
            wait_until(lambda: len(os.listdir(f"/proc/{command.pid}/fd")) >= most - 3)
            time.sleep(0.2)  # it fails to accept the next one
            for connection in silent:
                connection.close()
            path = "/storage/v1/b?project=p" if store else f"/v2/{PARENT}/queuedResources"
            assert requests.get(url + path, timeout=WAIT).status_code == 200
            command.send_signal(signal.SIGINT)
            assert command.wait(WAIT) == 0
        finally:
            command.kill()


def test_the_command_ends_while_clients_and_a_host_that_ignores_signals_hold_on() -> None:
    script = "trap '' TERM INT HUP; echo $$; (setsid sleep 600 &); sleep 600"
    with _bounded() as (command, there):
        create(there, script=script)
        wait_until(lambda: _states(there) == {"ACTIVE"})
        pids = [process.pid for process in processes.descendants(command.pid)]
        port = int(there.url.split(":")[2].partition("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port), WAIT) for _ in range(40)]
        for connection in silent[20:]:
            connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n")
        command.send_signal(signal.SIGINT)
        command.send_signal(signal.SIGTERM)
        assert command.wait(WAIT) == 1
        wait_until(lambda: all((found := processes.find(pid)) is None or found.zombie for pid in pids))
        for connection in silent:
            connection.close()


def test_the_command_ends_in_order_when_its_terminal_does() -> None:
    with _bounded() as (command, there):
        assert command.stderr is not None
        delete(there, create(there))
        wait_until(lambda: not _states(there))
        command.send_signal(signal.SIGHUP)
        assert command.wait(WAIT) == 0
        assert "nothing was left" in command.stderr.read()
        assert not list(Path(tempfile.gettempdir()).glob(f"emulated-cloud-{command.pid}-*"))


def test_hosts_that_were_not_booted_yet_are_not_booted_for_the_end(tmp_path: Path) -> None:
    hosts = 0
    with Emulator(tmp_path, zones={ZONE: None}, keep=True) as cloud:
        for index in range(3):
            create(cloud, f"q{index}", accelerator="v6e-256")
        for index in range(3):
            ready(cloud, f"q{index}")
            hosts += len(cloud.hosts(f"q{index}"))
    assert len(list(tmp_path.glob("hosts/*/*/*-w-*"))) < hosts


# The fixtures


def _pytest(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(tests), encoding="utf-8")
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "kinetic_orchestration.testing.fixtures",
        "-o",
        "markers=slow",  # of this module, from which tests borrow
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run([*argv, "test_it.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_fixture_gives_an_environment_and_fails_a_test_that_leaves_something(tmp_path: Path) -> None:
    done = _pytest(
        tmp_path,
        f"""
        import os, sys
        import kinetic_orchestration.testing.fixtures as fixtures
        fixtures._PATIENCE = 0.3
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_emulator import create, ready

        def test_tidy(tpu_cloud):
            assert os.environ["KINETIC_EMULATOR"] == tpu_cloud.rest.url

        def test_untidy(tpu_cloud):
            create(tpu_cloud, "forgotten")
            ready(tpu_cloud, "forgotten")

        def test_session(tpu_cloud_session):
            assert "KINETIC_EMULATOR" not in os.environ
        """,
    )
    # Of this project's marks, which the imported file has, that run knows nothing: it warns.
    assert re.search(r"3 passed, (\d+ warnings?, )?1 error", done.stdout), done.stdout
    assert "AssertionError: 3 left in the emulated cloud" in done.stdout
    assert "queuedResources/forgotten" in done.stdout


def test_the_plugin_costs_an_import_of_nothing() -> None:
    program = (
        "import sys; import pytest; before = set(sys.modules); import kinetic_orchestration.testing.fixtures; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [
        "kinetic_orchestration",
        "kinetic_orchestration.testing",
        "kinetic_orchestration.testing.fixtures",
    ]
