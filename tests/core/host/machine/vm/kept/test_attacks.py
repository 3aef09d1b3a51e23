"""A program of the job before, which is root, tries to survive into the next job of the same slice.

It plays on a machine of the test's own (`tests.support.own_machine`), with the agent's own code as on a VM: what it changes,
starts and mounts is real, and none of it is this machine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.host.machine.vm.kept import kernel
from tests.support.own_machine.machine import play

pytestmark = pytest.mark.slow

IMPORTS = "import ctypes, os, subprocess, sys, time\nfrom attack import *\n"
STAYS = "open('/run/mine', 'w').close(); import time; time.sleep(600)"
# Services of the system: one waits until it is told to listen, the program of the other is there, and starts late.
SERVICES = """
import os, shutil
shutil.copy(os.path.realpath(os.environ["PYTHON"]), "/usr/libexec/service")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execv("/usr/libexec/service", ["service", "-c", '''
import os, socket, time
held = []
while True:
    if os.path.exists("/run/listen"):
        name = open("/run/listen").read()
        one = socket.socket(socket.AF_UNIX if name.startswith("@") else socket.AF_INET)
        one.bind(name.replace("@", chr(0)) if name.startswith("@") else ("", int(name)))
        one.listen()
        held.append(one)
        os.unlink("/run/listen")
    time.sleep(0.01)
'''])
    os._exit(0)
os.wait()
"""
LISTENS = """
open("/run/listen.part", "w").write("{0}")
os.rename("/run/listen.part", "/run/listen")
while os.path.exists("/run/listen"): time.sleep(0.005)
"""
DOCKER = """#!/machine/bin/sh
case "$*" in
  ps*) cat /var/lib/docker/containers ;;
  rm*) for one; do sed -i "/^$one$/d" /var/lib/docker/containers; done ;;
  image*) echo sha256:of-the-image ;;
  network*) : ;;
  volume*) cat /var/lib/docker/volumes ;;
  *) echo "unknown: $*" >&2; exit 1 ;;
esac
"""
WITH_DOCKER = f"""
import os
os.makedirs("/var/lib/docker")
for name, text in {{"containers": "of-system\\n", "volumes": "old\\n"}}.items():
    open(f"/var/lib/docker/{{name}}", "w").write(text)
open("/usr/bin/docker", "w").write({DOCKER!r})
os.chmod("/usr/bin/docker", 0o755)
open("/run/docker.sock", "w").close()
"""


NEW = "is new, and neither a service of the system nor known as a job's"


class Attack(NamedTuple):
    name: str
    program: str
    why: str  # the doubt, or a part of it


FILES = [
    Attack("a library for all programs", "put('/etc/ld.so.preload', '')", "/etc/ld.so.preload is new, where only the system writes"),
    Attack("a script of each login", "put('/etc/profile.d/mine.sh')", "/etc/profile.d is new"),
    Attack("another name server", "put('/etc/resolv.conf')", "/etc/resolv.conf was changed"),
    Attack("another metadata server", "put('/etc/hosts', '10.0.0.6 metadata.google.internal')", "/etc/hosts was changed"),
    Attack(
        "a changed file with its old size and time",
        "old = os.stat('/etc/passwd'); put('/etc/passwd', 'x' * old.st_size)\n"
        "os.utime('/etc/passwd', ns=(old.st_atime_ns, old.st_mtime_ns))",
        "/etc/passwd was changed",
    ),
    Attack("a program that is root's for all", "os.chmod('/usr/bin/tool', 0o4755)", "/bin/tool was changed"),
    Attack("a program before others on the path", "put('/usr/local/bin/docker')", "/usr/local/bin/docker is new"),
    Attack("a program less", "os.unlink('/usr/bin/tool')", "/bin/tool was removed"),
    Attack("a line of cron", "put('/etc/cron.d/mine')", "by which the system may have started something"),
    Attack("a crontab", "put('/var/spool/cron/root')", "by which the system may have started something"),
    Attack("a command of at", "put('/var/spool/at/a00001')", "by which the system may have started something"),
    Attack("a unit", "put('/etc/systemd/system/mine.service')", "by which the system may have started something"),
    Attack("a passing unit", "put('/run/systemd/transient/run-u1.service')", "by which the system may have started"),
    Attack("a timer of a user", "put('/root/.config/systemd/user/mine.timer')", "by which the system may have started"),
    Attack("a user whose units run always", "put('/var/lib/systemd/linger/me')", "by which the system may have started"),
    Attack("a key for logins", "put('/root/.ssh/authorized_keys')", "/root/.ssh/authorized_keys is new"),
    Attack("a home of an account", "put('/home/you/notes')", "/home/you is new, where only the system writes"),
    Attack("a changed file at home", "put('/root/.profile', 'true')", "/root/.profile was changed"),
    Attack("a module of every Python", "put('/usr/lib/python3/dist-packages/mine.pth')", "/usr/lib/python3/dist-packages"),
    Attack("a changed library", "put('/usr/lib/python3/dist-packages/some.py')", "some.py was changed, which is of the system"),
    Attack("a library of this machine", "put('/usr/local/lib/libmine.so')", "/usr/local/lib"),
    Attack("a dump of memory", "put('/var/crash/program.core')", "/var/crash/program.core is new"),
    Attack("a name for a network", "put('/run/netns/mine')", "/run/netns/mine is new"),
    Attack("a folder of a service", "put('/tmp/systemd-private-00-mine.service-x/tmp/file')", "/tmp/systemd-private-00"),
    Attack("a folder in place of tmp", "os.rename('/tmp', '/aside'); os.mkdir('/tmp')", "/tmp was changed"),
    Attack("a link in place of a home", "os.rename('/home/me', '/aside-too'); os.symlink('/etc', '/home/me')", "/home/me was"),
]  # fmt: skip
IMMUTABLE = "put('{0}'); subprocess.run(['chattr', '+i', '{0}'], check=True)"
MOUNTS = [
    Attack("a file that cannot be changed", IMMUTABLE.format("/tmp/kept-file"), "/tmp/kept-file could not be removed"),
    Attack("other files over those of the system", "os.mkdir('/tmp/d'); mount('/tmp/d', '/etc', flags=4096)", "/etc"),
    Attack(
        "another file over a program", "put('/tmp/x'); mount('/tmp/x', '/usr/bin/other', flags=4096)", "/bin/other was",
    ),
    Attack("other options", "mount('none', '/srv', flags=32 | 4096 | 1)", "mounted otherwise"),
    Attack("something unmounted", "attempt('umount2', b'/dev/shm', 2)", "/dev/shm was changed"),
]  # fmt: skip
PROCESSES = [
    Attack("a process by way of the system", f"by_system(python({STAYS!r})); os.unlink('/run/mine')", NEW),
    Attack(
        "one that goes by another's name and lock",
        "by_system(python(\"import ctypes; ctypes.CDLL(None).prctl(15, b'kinetic-end', 0, 0, 0); "
        "held = open('/var/lib/kinetic/deadline.lock'); \""
        f" {STAYS!r}), mark='/run/mine'); os.unlink('/run/mine')",
        NEW,
    ),
    Attack(
        "a service that holds an accelerator",
        "put('/dev/accel0')\n"
        f"by_system(['/usr/libexec/service', '-c', 'held = open(\"/dev/accel0\"); ' {STAYS!r}], mark='/run/mine')",
        "hold its devices",
    ),
    Attack("a service that listens for it", LISTENS.format("8471"), "tcp port 8471 of 00000000"),
    Attack("the same without a file", LISTENS.format("@mine"), "something listens that did not before: unix @mine"),
    Attack("another name of the machine", "attempt('sethostname', b'mine', 4)", "/proc/sys/kernel/hostname=mine"),
    Attack("the job's own, for ever", IMMUTABLE.format("/var/lib/kinetic/run/job-1/file"), "could not be emptied"),
]  # fmt: skip


def _played(folder: Path, attacks: list[Attack], **more: Any) -> dict[str, Any]:
    found = play(folder, *(IMPORTS + attack.program for attack in attacks), **more)
    return {attack.name: (said, why) for attack, said, why in zip(attacks, found["said"], found["why"], strict=True)}


@pytest.fixture(scope="module")
def doubts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the attacks, all on one machine that is remembered anew after each."""
    folder = tmp_path_factory.mktemp("machine")
    return _played(folder, [*FILES, *MOUNTS, *PROCESSES], before=MOUNT_SRV + SERVICES, files=("usr/bin/other",))


MOUNT_SRV = """
import sys; sys.path.insert(0, "/machine/here")
from attack import mount
mount("tmpfs", "/srv", "tmpfs")
"""


@pytest.mark.turn(1)
@pytest.mark.parametrize("attack", [*FILES, *MOUNTS, *PROCESSES], ids=lambda attack: attack.name)
def test_a_job_that_changes_the_system_leaves_a_doubt(doubts: dict[str, Any], attack: Attack) -> None:
    said, why = doubts[attack.name]
    assert said == "", "its program did what it is to do"
    assert attack.why in why


CLEANED = {
    "children that left their session": "escape(['/machine/bin/sleep', '600'])",
    "one that left its group": (
        "import threading\nif os.path.exists('/sys/fs/cgroup/system.slice'):\n"
        "    os.makedirs('/sys/fs/cgroup/system.slice/ssh.service', exist_ok=True)\n"
        "    open('/sys/fs/cgroup/system.slice/ssh.service/cgroup.procs', 'w').write('0')\n"
        "escape(['/machine/bin/sleep', '600'])"
    ),
    "one that starts another for ever": (
        "if os.fork() == 0:\n    os.setsid()\n    os.dup2(os.open('/dev/null', os.O_RDWR), 1)\n"
        "    while os.fork() == 0: time.sleep(0.002)\n    os._exit(0)"
    ),
    "one of the system with its marker": (
        f"by_system([*python({STAYS!r})], 'startup.service', mark='/run/mine'); os.unlink('/run/mine')"
    ),
    "files": (
        "for path in ('tmp/a/b', 'var/tmp/c', 'dev/shm/d', 'root/.netrc', 'root/.config/gcloud/credentials.db',\n"
        "             'root/.docker/config.json', 'root/.cache/huggingface/token', 'home/me/.aws/credentials',\n"
        "             'tmp/libtpu_lockfile', 'tmp/tpu_logs/log', 'root/.local/lib/python3.11/site-packages/mine.pth',\n"
        "             'root/.bashrc', 'var/lib/kinetic/run/job-1/secret', 'var/lib/kinetic/kept/secret', 'var/lib/kinetic/private/left'):\n"
        "    put(f'/{path}')\n"
        "os.symlink('/etc', '/tmp/link'); os.mkfifo('/tmp/pipe'); os.mkdir('/tmp/shut', 0); put('/tmp/of-system', 'mine')"
    ),
    "memory, semaphores and queues": (
        "attempt('shmget', 7, 4096, 0o1600); attempt('semget', 7, 1, 0o1600); attempt('msgget', 7, 0o1600)\n"
        "attempt('mq_open', b'/mine', os.O_CREAT | os.O_RDWR, 0o600, None)"
    ),
    "mounts": (
        "os.makedirs('/tmp/m'); mount('tmpfs', '/tmp/m', 'tmpfs'); mount('tmpfs', '/tmp/m', 'tmpfs'); put('/tmp/m/x')\n"
        "mount('tmpfs', '/mnt', 'tmpfs'); put('/mnt/y')\n"
        "put('/tmp/z'); mount('/tmp/z', '/proc/sys/kernel/core_pattern', flags=4096)"
    ),
    "a lease of DHCP": "put('/etc/hosts.new', 'etc/hosts'); os.rename('/etc/hosts.new', '/etc/hosts')",
    "a service that starts late": (
        "by_system(['/usr/libexec/service', '-c', 'import socket; one = socket.socket(); one.bind((\"\", 22)); '\n"
        f"           'one.listen(); ' {STAYS!r}])"
    ),
}
LOOKS = r"""
found = [os.path.join(folder, name) for top in ('/tmp', '/var/tmp', '/dev/shm', '/dev/mqueue', '/mnt', '/root', '/home',
         '/var/lib/kinetic/private', '/var/lib/kinetic/run', '/var/lib/kinetic/kept') for folder, names, files in os.walk(top) for name in (*files, *names)]
print(sorted(found))
print([line.split()[:2] for kind in ('shm', 'sem', 'msg') for line in list(open(f'/proc/sysvipc/{kind}'))[1:]])
print([line.split()[1] for line in open('/proc/self/mounts') if line.split()[1].startswith(('/tmp', '/mnt', '/proc/'))])
"""
NOTHING = (
    "['/home/me', '/home/me/notes', '/root/.profile', '/var/lib/kinetic/kept/baseline.json', "
    "'/var/lib/kinetic/run/job-1']\n[]\n[]\n"
)


def test_what_is_the_jobs_own_goes_and_the_next_program_sees_nothing_of_it(tmp_path: Path) -> None:
    programs = [IMPORTS + one for attack in CLEANED.values() for one in (attack, LOOKS)]
    found = play(tmp_path, *programs, before=SERVICES)
    assert dict(zip(CLEANED, zip(found["said"][::2], found["why"][::2], strict=True), strict=True)) == dict.fromkeys(
        CLEANED, ("", "")
    )
    names = list(CLEANED)
    seen = {names[number]: said.replace("'/tmp/of-system', ", "") for number, said in enumerate(found["said"][1::2])}
    assert seen == dict.fromkeys(names, NOTHING)
    assert list(found["left"].values()) == ["/usr/libexec/service"]
    assert found["armed"]


def test_what_the_page_says_is_not_seen_is_not_seen(tmp_path: Path) -> None:
    """docs/training/capacity.md: a service's own program, data elsewhere, and the caches that all share."""
    hides = (
        f"by_system(['/usr/libexec/service', '-c', {STAYS!r}])\n"
        "put('/var/lib/other/data'); put('/var/lib/kinetic/cache/compile/entry')"
    )
    looks = "print([os.path.exists(path) for path in ('/var/lib/other/data', '/var/lib/kinetic/cache/compile/entry')])"
    found = play(tmp_path, IMPORTS + hides, IMPORTS + looks, before=SERVICES)
    assert found["why"] == ["", ""]
    assert found["said"][1] == "[True, True]\n"
    assert list(found["left"].values()) == ["/usr/libexec/service"]


def test_containers_go_and_those_of_the_system_stay(tmp_path: Path) -> None:
    start = "open('/var/lib/docker/containers', 'a').write('mine\\n')"
    shows = "print(open('/var/lib/docker/containers').read())"
    volume = "open('/var/lib/docker/volumes', 'a').write('mine\\n')"
    found = play(tmp_path, start, shows, volume, before=WITH_DOCKER)
    assert found["why"] == ["", "", "docker has a new volume, mine"]
    assert found["said"][1] == "of-system\n\n"


def test_a_docker_that_runs_only_now_is_a_doubt_and_nothing_of_it_goes(tmp_path: Path) -> None:
    starts = "import os; os.rename('/var/lib/docker/sock', '/run/docker.sock')"
    before = f"{WITH_DOCKER}\nos.rename('/run/docker.sock', '/var/lib/docker/sock')"
    found = play(tmp_path, starts, "print(open('/var/lib/docker/containers').read())", before=before)
    assert found["why"][0] == "docker runs, which it did not before"
    assert found["said"][1] == "of-system\n\n"


def test_a_process_that_took_the_lock_of_the_deadline_is_not_taken_for_it(tmp_path: Path) -> None:
    takes = f"""
import fcntl, os, signal, time
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{{pid}}/cmdline").read().split(chr(0))
    if words[1:2] == ["-c"] and words[2].startswith("\\nimport fcntl, os, sys"):
        os.kill(int(pid), signal.SIGKILL)
held = open("/var/lib/kinetic/deadline.lock")
fcntl.flock(held, fcntl.LOCK_EX)
{STAYS}
"""
    found = play(tmp_path, f"{IMPORTS}by_system(python({takes!r}))")
    assert NEW in found["why"][0]


def test_a_control_group_that_the_job_has_left_is_a_doubt(tmp_path: Path) -> None:
    leaves = "open('/proc/self/cgroup').read(); os.makedirs('/sys/fs/cgroup/startup.service/mine')"
    found = play(tmp_path, f"{IMPORTS}{leaves}")
    if not found["groups"]:
        pytest.skip("no control groups here")
    assert found["why"] == ["there is a new control group in its kernel: mine"]


def test_modules_from_outside_of_the_kernel_are_told_from_those_that_it_loads_by_itself() -> None:
    """Read from lines as Linux writes them (kernel/module/procfs.c): this machine's kernel may have no modules."""
    lines = (
        "nvidia_uvm 1523712 0 - Live 0x0000000000000000 (POE)\nrootkit 16384 0 - Live 0x0000000000000000 (OE)\n"
        "fuse 172032 3 - Live 0x0000000000000000\nunsigned 16384 0 - Live 0x0000000000000000 (E)\n"
    )
    assert kernel.foreign(lines) == ["rootkit", "unsigned"]
