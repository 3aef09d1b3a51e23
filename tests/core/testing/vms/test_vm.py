"""Emulated VMs: real process trees that run the startup script at every boot, and of which nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms import vm as vms
from kinetic_orchestration.testing.vms.vm import Machines, Vm, find_python, route_to_index
from tests.support.interpreters import OLDEST, required
from tests.support.waits import wait_until

SLEEP = "#!/bin/sh\necho up\nexec sleep 600\n"

# Its own session, no parent, another name, no environment, no open file: nothing by which one could find it.
DAEMON = """#!/usr/bin/env python3
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["quiet", "600"], {})
    os._exit(0)
os.wait()
print("gone into the background", flush=True)
"""


@pytest.fixture(params=["namespace", "session"])
def isolate(request: pytest.FixtureRequest) -> bool:
    """True with pid namespaces, False as on a machine that permits none."""
    if request.param == "namespace" and vms._namespace() is None:
        pytest.skip("this machine permits no pid namespace")
    return request.param == "namespace"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a röom"


@pytest.fixture
def room(folder: Path, isolate: bool) -> Iterator[Machines]:
    with Machines(folder, token=_token, sign_identity=_identity, isolate=isolate, python=sys.executable) as room:
        yield room
    assert not [path for path in folder.rglob("*") if path.is_file()]


def _token(node: str, worker: int) -> str:
    return f"emulator-token/{node}/{worker}"


def _identity(audience: str, machine: Machine) -> str:
    return f"{machine.name} for {audience}"


def machine(script: str = SLEEP, **more: object) -> Machine:
    values: dict[str, object] = {"metadata": {"startup-script": script}} | more
    return Machine("a-project", "us-central2-b", "slice-a", "v4-8", "2x2x1", "tpu-ubuntu2204-base", **values)  # type: ignore[arg-type]


def _says(vm: Vm, text: str, times: int = 1) -> None:
    wait_until(lambda: vm.console().count(text) >= times)


def _gone(pids: list[int]) -> None:
    """Wait for the processes to end, which takes only as long as another parent needs to reap them."""
    wait_until(lambda: all((found := processes.find(pid)) is None or found.zombie for pid in pids))


def test_the_startup_script_runs_and_finds_all_it_needs_in_its_environment(room: Machines) -> None:
    room.environ["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:1"
    program = """#!/usr/bin/env python3
import json, os, sys, urllib.request
url = "http://%s/computeMetadata/v1/instance/attributes/instance-id" % os.environ["GCE_METADATA_HOST"]
with urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})) as reply:
    node = reply.read().decode()
print(json.dumps({"env": dict(os.environ), "node": node, "python": sys.executable, "cwd": os.getcwd()}))
"""
    os.environ["LEAK_OF_A_TEST"] = "1"
    try:
        vm = room.create(machine(program))
    finally:
        del os.environ["LEAK_OF_A_TEST"]
    _says(vm, "\n")
    told = json.loads(vm.console())
    assert told["node"] == "slice-a"
    assert told["python"] == f"{vm.root}/bin/python3"
    assert told["cwd"] == str(vm.root)
    env = told["env"]
    assert env["KINETIC_ROOT"] == str(vm.root)
    assert {env[name].startswith(f"{vm.root}/") for name in ("HOME", "TMPDIR")} == {True}
    assert env["PATH"].split(":")[:2] == [f"{vm.root}/bin", "/usr/bin"]
    assert env["STORAGE_EMULATOR_HOST"] == "http://127.0.0.1:1"
    assert "LEAK_OF_A_TEST" not in env
    assert vm.alive  # a VM does not end with its startup script
    assert vm.boots == 1


def test_a_script_without_an_interpreter_line_is_a_shell_script(room: Machines) -> None:
    vm = room.create(machine("echo from $((40 + 2))"))
    _says(vm, "from 42")


def test_a_script_that_cannot_run_is_told_on_the_console(room: Machines) -> None:
    vm = room.create(machine("#!/no/such/interpreter\n"))
    _says(vm, "startup-script: ")
    assert vm.alive


def test_a_vm_without_a_startup_script_idles(room: Machines) -> None:
    vm = room.create(machine(metadata={}))
    wait_until(lambda: vm.alive and vm._init() and vm.processes() == [])  # once it has laid out its own boot id
    assert vm.alive


def test_destroying_ends_everything_and_removes_the_disk(room: Machines) -> None:
    vm = room.create(machine("#!/bin/sh\nsleep 600 &\n(trap '' TERM; sleep 600) &\necho up\nwait\n"))
    _says(vm, "up")
    wait_until(lambda: [_name(pid) for pid in vm.processes()].count("sleep") == 2)
    pids = vm.processes()
    started = time.monotonic()
    vm.destroy()
    assert time.monotonic() - started < 30  # of the 600 s that they would live
    _gone(pids)
    assert not vm.alive
    assert not vm.root.exists()
    assert vm.processes() == []
    assert room.all() == []
    vm.destroy()  # again does nothing


def test_destroying_ends_a_daemon_that_hides(room: Machines) -> None:
    vm = room.create(machine(DAEMON))
    _says(vm, "gone into the background")
    wait_until(lambda: len(vm.processes()) == 1)
    (hidden,) = vm.processes()
    wait_until(lambda: Path(f"/proc/{hidden}/environ").read_bytes() == b"")
    vm.destroy()
    _gone([hidden])


def test_destroying_ends_what_is_being_born(room: Machines) -> None:
    """Four chains of processes, each of which bears the next one and ends."""
    chain = "next() { sleep 0.005; next & }"
    vm = room.create(machine(f"#!/bin/sh\n{chain}\nnext & next & next & next &\necho up\nsleep 0.1\n"))
    _says(vm, "up")
    before = set(vm.processes())
    wait_until(lambda: before.isdisjoint(vm.processes()))
    process = vm._process
    vm.destroy()
    assert process is not None and process.returncode is not None
    assert processes.marked(f"KINETIC_ROOT={vm.root}") == []  # by name, other tests' servers would be among them


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def test_orphans_are_collected(room: Machines) -> None:
    vm = room.create(machine("#!/bin/sh\nfor i in 1 2 3 4 5; do (sleep 0.01 &) ; done\necho up\nexec sleep 600\n"))
    _says(vm, "up")
    children = Path(f"/proc/{vm._init()}/task/{vm._init()}/children")
    wait_until(
        lambda: [_name(int(pid)) for pid in children.read_text(encoding="ascii").split()] == ["sleep"]
    )  # no zombie


def test_a_reboot_runs_the_script_again_on_the_same_disk(room: Machines) -> None:
    script = '#!/bin/sh\necho x >> "$KINETIC_ROOT/boots"; wc -l < "$KINETIC_ROOT/boots"\necho up\nexec sleep 600\n'
    told: list[tuple[str, int]] = []
    vm = room.create(machine(script), on_boot=lambda vm: told.append((vm.boot_id, vm.boots)))
    _says(vm, "up")
    before, address = vm.processes(), vm.metadata.address
    vm.reboot()
    _says(vm, "up", times=2)
    _gone(before)
    assert vm.console().split() == ["1", "up", "2", "up"]
    assert vm.metadata.address == address
    assert vm.boots == 2
    assert [boots for _, boots in told] == [1, 2]
    assert len({boot_id for boot_id, _ in told}) == 2


def test_a_vm_with_a_disk_of_its_own_keeps_it_through_reboots_and_it_may_be_full_for_a_while(room: Machines) -> None:
    """Its neighbour and this machine have room meanwhile."""
    script = (
        '#!/bin/sh\necho x >> "$KINETIC_ROOT/boots"; cat "$KINETIC_ROOT/boots" | wc -l\n'
        'while sleep 0.02; do head -c 900 /bin/sh >> "$KINETIC_ROOT/tmp/file" && echo written || echo full; done 2>&1\n'
    )
    try:
        vm, other = (room.create(machine(script, disk=disk, worker=worker)) for worker, disk in enumerate((16, 0)))
    except KineticError as error:
        assert "unshare -rm" in str(error)
        pytest.skip(f"no small file system can be mounted here: {error}")
    _says(vm, "written")
    vm.fill_disk()
    _says(vm, "full")
    assert "No space left on device" in vm.console()
    others = other.console().count("written")
    _says(other, "written", times=others + 2)
    assert "full" not in other.console()
    (vm.root / "dev" / "shm" / "file").write_bytes(bytes(9000))
    vm.clear_disk()
    written = vm.console().count("written")
    _says(vm, "written", times=written + 2)
    vm.reboot()
    _says(vm, "2\n")
    assert vm.root.is_mount()
    with pytest.raises(KineticError, match="has no disk of its own"):
        other.fill_disk()
    vm.destroy()
    assert str(vm.root) not in Path("/proc/self/mounts").read_text().replace("\\040", " ")
    with pytest.raises(KineticError, match="has no disk of its own"):
        vm.fill_disk()


def test_the_boot_id_is_where_programs_look_for_it(room: Machines) -> None:
    """In the kernel's own file where there is a namespace, and under the root of the VM everywhere."""
    own = "/proc/sys/kernel/random/boot_id"
    vm = room.create(machine(f'#!/bin/sh\ncat "$KINETIC_ROOT{own}" {own}\necho up\n'))
    _says(vm, "up")
    under, kernel, _ = vm.console().split()
    assert under == vm.boot_id
    assert (kernel == vm.boot_id) is (room.namespace is not None)
    assert Path(own).read_text(encoding="ascii").strip() != vm.boot_id


CHECKPOINT = """#!/usr/bin/env python3
import os, signal, sys, urllib.request
def flag():
    url = "http://%s/computeMetadata/v1/instance/preempted" % os.environ["GCE_METADATA_HOST"]
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})).read().decode()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # waited for, so that none falls between two steps
print("up, preempted:", flag(), flush=True)
while True:
    signal.sigwait({signal.SIGTERM})
    print("SIGTERM, preempted:", flag(), flush=True)
    STUBBORN or sys.exit(0)
"""


def test_a_notice_of_preemption_is_a_flag_then_sigterm_then_the_end(room: Machines) -> None:
    for seconds in (0.8, 8.0):  # a machine may be too busy for it to say so before the first
        vm = room.create(machine(CHECKPOINT.replace("STUBBORN", "True")))
        _says(vm, "up, preempted: FALSE")
        pids = vm.processes()
        started = time.monotonic()
        vm.preempt(seconds)
        wait_until(lambda of=vm: not of.alive)
        assert time.monotonic() - started >= seconds - 0.01
        _gone(pids)
        assert vm.root.exists()  # until it is destroyed
        if "SIGTERM, preempted: TRUE" in vm.console():
            return
    raise AssertionError(vm.console())


def test_a_preempted_vm_is_off_as_soon_as_everything_on_it_has_ended(room: Machines) -> None:
    vm = room.create(machine(CHECKPOINT.replace("STUBBORN", "False")))
    _says(vm, "up")
    vm.preempt(30.0)
    wait_until(lambda: not vm.alive)  # of the 30 s that it was left
    assert "SIGTERM, preempted: TRUE" in vm.console()


def test_a_vm_is_warned_of_its_preemption_before_anything_happens_to_it(room: Machines) -> None:
    vm = room.create(machine(CHECKPOINT.replace("STUBBORN", "False")))
    _says(vm, "up, preempted: FALSE")
    vm.warn()
    assert vm.alive and "SIGTERM" not in vm.console()
    vm.shut_down(30.0)
    wait_until(lambda: not vm.alive)
    assert "SIGTERM, preempted: TRUE" in vm.console()


def test_a_power_button_alone_says_nothing_of_a_preemption(room: Machines) -> None:
    vm = room.create(machine(CHECKPOINT.replace("STUBBORN", "False")))
    _says(vm, "up")
    vm.shut_down(30.0)
    wait_until(lambda: not vm.alive)
    assert "SIGTERM, preempted: FALSE" in vm.console()
    vm.shut_down(1.0)  # of one that is off does nothing


def test_a_vm_without_power_keeps_its_disk_and_boots_again(room: Machines) -> None:
    script = '#!/bin/sh\ncd "$KINETIC_ROOT"\n[ -e mark ] && echo found\ntouch mark\necho up\nsleep 600\n'
    vm = room.create(machine(script))
    _says(vm, "up")
    pids = vm.processes()
    vm.cut()
    assert not vm.alive and vm.root.exists()
    _gone(pids)
    first = vm.boot_id
    vm.reboot()
    _says(vm, "found")
    assert vm.boot_id != first and not vm.metadata.preempted


def test_programs_of_an_image_are_on_the_path(room: Machines) -> None:
    vm = room.create(machine("#!/bin/sh\nanswer one two\n", programs={"answer": '#!/bin/sh\necho "it says $2"\n'}))
    _says(vm, "it says two")


def test_a_preemption_without_notice_ends_all_at_once(room: Machines) -> None:
    vm = room.create(machine(CHECKPOINT.replace("STUBBORN", "False")))
    _says(vm, "up")
    pids = vm.processes()
    vm.preempt(None)
    assert not vm.alive
    _gone(pids)
    assert "SIGTERM" not in vm.console()
    vm.preempt(1.0)  # of one that is off already does nothing


def test_a_preempted_vm_that_was_rebooted_meanwhile_lives(room: Machines) -> None:
    vm, later = (
        room.create(machine("#!/bin/sh\ntrap '' TERM\necho up\nwhile :; do sleep 600; done\n", worker=i, workers=2))
        for i in range(2)
    )
    for each in (vm, later):
        _says(each, "up")
    vm.preempt(0.3)
    vm.reboot()
    _says(vm, "up", times=2)
    later.preempt(0.3)
    wait_until(lambda: not later.alive)  # by the same clock: what was due for the first one before has come
    assert vm.alive


def test_a_frozen_vm_is_alive_but_stuck_until_it_thaws(room: Machines) -> None:
    vm = room.create(machine("#!/bin/sh\ni=0\nwhile :; do i=$((i+1)); echo line $i; sleep 0.01; done\n"))

    _says(vm, "line 5\n")
    vm.freeze()
    # One that ended just before, and that nobody could collect since, is a zombie; and a shell that has just started a
    # child (vfork) is in D, not in T, for as long as that child stands still before its program.
    wait_until(lambda: {_state(pid) for pid in vm.processes()} - {"Z", "D"} == {"T"})
    said = vm.console()
    assert vm.alive
    vm.thaw()
    wait_until(lambda: vm.console() != said)
    vm.freeze()
    vm.destroy()
    assert not vm.alive


def test_chosen_processes_can_be_killed_alone(room: Machines) -> None:
    vm = room.create(machine("#!/bin/sh\nsleep 601 &\nsleep 602 &\nsleep 603 &\necho up\nwait\nexec sleep 604\n"))
    _says(vm, "up")
    wait_until(lambda: len(vm.kill(r"^sleep 60[123] $", 0)) == 3)  # a fork is the shell's copy at first
    assert len(vm.kill(r"^sleep 60[12] $")) == 2
    wait_until(lambda: len(vm.processes()) == 2)
    (left,) = vm.kill(lambda pid: _name(pid) == "sleep", signal.SIGTERM)
    _gone([left])
    assert vm.kill("no such program") == []
    assert vm.alive


def test_maintenance_is_announced_and_taken_back(room: Machines) -> None:
    script = """#!/usr/bin/env python3
import os, urllib.request
etag = "0"
for _ in range(3):
    url = "http://%s/computeMetadata/v1/instance/maintenance-event?wait_for_change=true&timeout_sec=20&last_etag=%s"
    request = urllib.request.Request(url % (os.environ["GCE_METADATA_HOST"], etag), headers={"Metadata-Flavor": "Google"})
    reply = urllib.request.urlopen(request)
    etag = reply.headers["ETag"]
    print(reply.read().decode(), flush=True)
"""
    vm = room.create(machine(script))
    _says(vm, "NONE\n")
    vm.maintenance("TERMINATE_ON_HOST_MAINTENANCE")
    _says(vm, "TERMINATE_ON_HOST_MAINTENANCE\n")
    vm.maintenance("NONE")
    _says(vm, "NONE\n", times=2)


def test_guest_attributes_are_seen_from_outside(room: Machines) -> None:
    script = """#!/usr/bin/env python3
import http.client, os
host, _, token = os.environ["GCE_METADATA_HOST"].partition("/")
connection = http.client.HTTPConnection(host)
path = f"/{token}/computeMetadata/v1/instance/guest-attributes/kinetic/state"
connection.request("PUT", path, b"up", {"Metadata-Flavor": "Google"})
print(connection.getresponse().status, flush=True)
"""
    vm = room.create(machine(script))
    _says(vm, "200")
    assert vm.guest_attributes == {"kinetic": {"state": "up"}}


def test_a_vm_runs_another_python(room: Machines) -> None:
    required(OLDEST)
    python = find_python(OLDEST)
    program = "#!/usr/bin/env python3\nimport ssl, sys\nprint(sys.version_info[:2], sys.prefix == sys.base_prefix)\n"
    vm = room.create(machine(program, python=OLDEST))
    _says(vm, "\n")
    assert vm.console() == "(3, 10) True\n"
    assert (vm.root / "bin" / "python3").resolve() == Path(python.path).resolve()
    assert "shims" not in python.path


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KineticError, match=r"No Python 3\.99 to run an emulated VM with"):
        find_python("3.99")


def test_a_vm_without_a_route_reaches_the_cloud_but_no_index(room: Machines) -> None:
    program = """#!/usr/bin/env python3
import os, urllib.error, urllib.request
print([name for name in os.environ if name.startswith(("PIP_", "UV_"))])
try:
    urllib.request.urlopen("https://index.invalid/simple", timeout=10)
except urllib.error.URLError as error:
    print(error.reason)
url = "http://%s/" % os.environ["GCE_METADATA_HOST"]
print(urllib.request.urlopen(url, timeout=10).status)
"""
    room.index = {"PIP_INDEX_URL": "https://index.invalid/simple", "UV_OFFLINE": "1"}
    vm = room.create(machine(program, index=False))
    _says(vm, "200")
    names, reason, _ = vm.console().splitlines()
    assert names == "[]"
    assert "refused" in reason
    with_route = room.create(machine(program, worker=1, workers=2))
    _says(with_route, "\n")
    assert sorted(eval(with_route.console().splitlines()[0])) == ["PIP_INDEX_URL", "UV_OFFLINE"]


def test_the_route_to_an_index_is_settings_but_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text("[global]\n", encoding="utf-8")
    environ = {
        "UV_DEFAULT_INDEX": "https://index.invalid",
        "UV_CACHE_DIR": "/elsewhere",
        "UV_PYTHON": "3.12",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_TARGET": "/elsewhere",
        "SSL_CERT_FILE": "/certificates",
        "https_proxy": "http://proxy.invalid",
        "PYTHONPATH": "/elsewhere",
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    assert route_to_index(environ) == {
        "PIP_CONFIG_FILE": str(tmp_path / "pip" / "pip.conf"),
        "UV_DEFAULT_INDEX": "https://index.invalid",
        "PIP_FIND_LINKS": "/wheels",
        "SSL_CERT_FILE": "/certificates",
        "https_proxy": "http://proxy.invalid",
    }


CLOCKS = """#!/usr/bin/env python3
import json, os, pathlib, time
path = pathlib.Path(os.environ["KINETIC_ROOT"], "file")
path.touch()
made, now = path.stat(), time.time()
os.utime(path, (0, now - 60.0))
aged = path.stat()
os.utime(path, ns=(0, 10**18 + 1))
found = os.stat("file", dir_fd=os.open(path.parent, os.O_RDONLY), follow_symlinks=False)
print(json.dumps({
    "time": now, "ns": time.time_ns(), "monotonic": time.monotonic(), "ages": [now - made.st_mtime, now - made[8]],
    "aged": [aged.st_atime, now - aged.st_mtime], "exact": found.st_mtime_ns, "size": made.st_size,
}))
print("told")
"""


def test_the_clock_of_a_vm_may_be_wrong(room: Machines) -> None:
    """And it goes by it when it writes and reads the times of its files, too."""
    for worker, skew in enumerate((600.0, -600.0, 0.0)):
        vm = room.create(machine(CLOCKS, clock_skew=skew, worker=worker, workers=3))
        _says(vm, "told")
        said = json.loads(vm.console().splitlines()[0])
        assert abs(said["time"] - time.time() - skew) < 30
        assert abs(said["ns"] / 1e9 - said["time"]) < 30
        assert abs(said["monotonic"] - time.monotonic()) < 30
        assert all(-2 < age < 30 for age in said["ages"])
        assert said["aged"] == [pytest.approx(0.0, abs=0.01), pytest.approx(60.0, abs=0.01)]
        assert (said["exact"], said["size"]) == (10**18 + 1, 0)


EMULATOR = """
import sys, time
from pathlib import Path
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.vm import Machines
room = Machines(Path(sys.argv[1]), token=str, sign_identity=str, isolate=sys.argv[2] == "True", python=sys.executable)
made = [
    room.create(Machine("p", "z", "n", "v4-16", "2x2x2", "", worker=i, workers=2, metadata={"startup-script": script}))
    for i, script in enumerate([sys.argv[3], "exec sleep 600"])
]
deadline = time.monotonic() + 30
while "gone" not in made[0].console() or [len(vm.processes()) for vm in made] != [1, 1]:
    assert time.monotonic() < deadline
    time.sleep(0.01)
made[1].freeze()
print(*(pid for vm in made for pid in [vm._process.pid, vm._init(), *vm.processes()]), flush=True)
time.sleep(600)
"""


def test_a_killed_emulator_leaves_nothing(folder: Path, isolate: bool) -> None:
    """Not a daemon that hides, and not a VM that is frozen."""
    command = [sys.executable, "-c", EMULATOR, str(folder), str(isolate), DAEMON]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as emulator:
        try:
            assert emulator.stdout is not None
            pids = [int(word) for word in emulator.stdout.readline().split()]
            assert len(pids) == 6
            assert all(processes.find(pid) is not None for pid in pids)
        finally:
            emulator.kill()
    _gone(pids)


def test_an_emulator_that_its_program_closes_at_its_exit_ends_its_vms_in_order(folder: Path, isolate: bool) -> None:
    """No executor takes work any more by then."""
    program = EMULATOR.removesuffix("time.sleep(600)\n") + "import atexit; atexit.register(room.close)\n"
    command = [sys.executable, "-c", program, str(folder), str(isolate), DAEMON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    _gone([int(word) for word in done.stdout.split()])
    assert not list(folder.glob("*-w-*"))


def test_vms_are_made_and_destroyed_side_by_side(room: Machines) -> None:
    made: list[Vm] = []
    makers = [
        threading.Thread(target=lambda i=i: made.append(room.create(machine(worker=i, workers=8)))) for i in range(8)
    ]
    for thread in makers:
        thread.start()
    for thread in makers:
        thread.join(30)
    for vm in made:
        _says(vm, "up")
    assert len({vm.metadata.address for vm in made}) == len({vm.root for vm in made}) == 8
    enders = [threading.Thread(target=vm.destroy) for vm in made for _ in range(2)]
    for thread in enders:
        thread.start()
    for thread in enders:
        thread.join(30)
    assert not any(vm.alive for vm in made)
    assert room.all() == []


def test_whoever_is_told_of_a_boot_may_ask_for_anything(room: Machines) -> None:
    seen: list[int] = []
    vm = room.create(machine(), on_boot=lambda vm: seen.append(len(room.all())))
    other = threading.Thread(target=vm.destroy)
    other.start()
    other.join(10)
    assert seen == [1]


def test_nothing_is_left_of_a_closed_room(folder: Path, isolate: bool) -> None:
    def make() -> None:
        with Machines(folder, token=_token, sign_identity=_identity, isolate=isolate, python=sys.executable) as room:
            for worker in range(3):
                _says(room.create(machine(DAEMON, worker=worker, workers=3)), "gone")

    make()  # what is loaded on first use stays
    before = _held()
    make()
    wait_until(lambda: not _held() - before)  # what other tests have left may end meanwhile
    assert not list(folder.rglob("slice-a*"))


def _held() -> set[object]:
    """Threads, files and child processes of this process."""
    files = {name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}
    return {*threading.enumerate(), *files, *(child.pid for child in processes.descendants(os.getpid()))}


def test_a_disk_may_be_kept(folder: Path) -> None:
    for _ in range(2):
        with Machines(folder, token=_token, sign_identity=_identity, python=sys.executable, keep=True) as room:
            vm = room.create(machine())
            _says(vm, "up")
        assert vm.root.is_dir()
    assert len(list(folder.glob("a-project/us-central2-b/slice-a-w-0*"))) == 2


@pytest.mark.slow
def test_idle_vms_cost_no_time(room: Machines) -> None:
    made = [room.create(machine(worker=i, workers=16)) for i in range(16)]
    for vm in made:
        _says(vm, "up")

    wait_until(
        lambda: all([*map(_name, vm.processes())] == ["sleep"] for vm in made)
    )  # each script has come to its end
    pids = [pid for vm in made for pid in (vm._init(), *vm.processes())]
    before = sum(map(_ticks, pids))
    time.sleep(2.0)
    assert sum(map(_ticks, pids)) - before <= 4  # of two hundred, all together


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()[0]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])
