"""The first process of a machine of a test's own: makes its disk, starts what the system runs, and waits for the guard.

Started by `machine.play` in namespaces of its own. It also stands for the system's manager of services: whoever writes a
line into /run/start has the program that it names started, as a child of this process and in a group of its own.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

BIND, REMOUNT, READ_ONLY, RECURSIVE, PRIVATE, NO_SUID = 4096, 32, 1, 16384, 1 << 18, 2
DETACH, NEW_GROUPS = 2, 0x02000000
FOLDERS = (
    "boot", "dev/shm", "dev/mqueue", "etc/systemd/system", "home/me", "machine/bin", "machine/code", "machine/here", "machine/python",
    "machine/sbin", "mnt", "opt", "proc", "root", "run/systemd/transient", "run/systemd/system", "run/netns", "srv",
    "sys/fs/cgroup", "tmp", "usr/bin", "usr/lib/python3/dist-packages", "usr/lib/systemd", "usr/lib64", "usr/libexec", "usr/local/bin",
    "usr/local/lib", "usr/sbin", "var/crash", "var/lib/kinetic/kept", "var/lib/systemd/coredump",
    "var/lib/systemd/linger", "var/spool/at", "var/spool/cron", "var/tmp",
)  # fmt: skip
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "/machine/bin/sh",
         "var/run": "/run"}  # fmt: skip
FILES = ("etc/passwd", "etc/hosts", "etc/resolv.conf", "root/.profile", "home/me/notes", "tmp/of-system",
         "usr/lib/python3/dist-packages/some.py", "usr/bin/tool", "var/lib/kinetic/boot.py")  # fmt: skip
HOLD = """
import fcntl, os, sys, time
lock = os.open("/var/lib/kinetic/deadline.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
open("/run/held", "w").close()
while True:
    time.sleep(600)
"""
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def read_only(source: str, target: str) -> None:
    mount(source, target, flags=BIND)
    mount("none", target, flags=BIND | REMOUNT | READ_ONLY)


def furnish(order: dict) -> None:
    """Make the disk, and make it this process's root. Nothing else of the machine below is left but what is read-only."""
    disk = order["disk"]
    mount("none", "/", flags=RECURSIVE | PRIVATE)
    mount("tmpfs", disk, "tmpfs", NO_SUID, "size=256m,mode=755")
    top = Path(disk)
    for folder in FOLDERS:
        (top / folder).mkdir(parents=True, exist_ok=True)
    for name, target in LINKS.items():
        (top / name).symlink_to(target)
    for name in (*FILES, *order["files"]):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    (top / "old").mkdir()
    own = {order["libraries"]: order["libraries"], "/lib64": "/usr/lib64", "/usr/bin": "/machine/bin"}
    own |= {"/usr/sbin": "/machine/sbin", order["python"]: "/machine/python", order["here"]: "/machine/here"}
    own |= {order["code"]: "/machine/code/kinetic_orchestration"}
    for source, target in own.items():
        (top / target[1:]).mkdir(parents=True, exist_ok=True)
        read_only(os.path.realpath(source), f"{disk}{target}")
    mount("proc", f"{disk}/proc", "proc")
    mount("tmpfs", f"{disk}/dev/shm", "tmpfs", data="size=64m")
    mount("mqueue", f"{disk}/dev/mqueue", "mqueue")
    for name, number in {"null": 3, "zero": 5, "urandom": 9}.items():
        os.mknod(top / "dev" / name, 0o20666, os.makedev(1, number))
    if order["group"]:
        Path(order["group"], "cgroup.procs").write_text("0")
        if libc.unshare(NEW_GROUPS):
            raise OSError(ctypes.get_errno(), "no namespace for control groups")
        mount("cgroup2", f"{disk}/sys/fs/cgroup", "cgroup2")
        os.mkdir(f"{disk}/sys/fs/cgroup/startup.service")
        os.mkdir(f"{disk}/sys/fs/cgroup/system.slice")
    os.chdir(disk)
    if libc.syscall(155, b".", b"old"):  # pivot_root of x86-64
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    if libc.umount2(b"/old", DETACH):
        raise OSError(ctypes.get_errno(), "umount")
    os.rmdir("/old")
    if os.path.exists("/work") or os.listdir("/home") != ["me"] or Path("/etc/passwd").read_text() != "etc/passwd":
        sys.exit("this is not the machine of the test")


def start(command: list[str], group: str = "", **more) -> int:
    """Start a program of the system, in a control group of its own if that is named."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if group and os.path.isdir("/sys/fs/cgroup/system.slice"):
            os.makedirs(f"/sys/fs/cgroup/{group}", exist_ok=True)
            Path(f"/sys/fs/cgroup/{group}/cgroup.procs").write_text("0")
        os.setsid()
        if "out" in more:
            os.dup2(more["out"], 1)
        else:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        os.execve(command[0], command, more.get("env", {}))
    finally:
        os._exit(127)


def main() -> None:
    order = json.loads(sys.argv[1])
    furnish(order)
    python = f"/machine/python/bin/{order['name']}"
    env = {
        "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/machine/bin:/machine/sbin", "HOME": "/root", "LANG": "C.UTF-8",
        "LD_LIBRARY_PATH": f"/machine/python/lib:{order['libraries']}", "PYTHONPATH": "/machine/code:/machine/here",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHOME": "/machine/python", "PYTHON": python,
    }  # fmt: skip
    os.environ.clear()
    os.environ.update(env)
    os.mkfifo("/run/start")
    asked = os.open("/run/start", os.O_RDWR)
    start([python, "-c", HOLD], "system.slice/startup-end.service", env=env)
    if order["before"]:
        subprocess.run([python, "-c", order["before"]], env=env, check=True)
    while not os.path.exists("/run/held"):
        os.sched_yield()
    reading, out = os.pipe()
    guard = start(
        [python, "/machine/here/guard.py", json.dumps(order["programs"])], "startup.service", env=env, out=out
    )
    os.close(out)
    serve(asked, reading, guard, env)


def serve(asked: int, reading: int, guard: int, env: dict) -> None:
    import select

    said = b""
    while True:
        ready, _, _ = select.select([asked, reading], [], [])
        if asked in ready:
            for line in os.read(asked, 4096).splitlines():
                wanted = json.loads(line)
                start(
                    wanted["command"],
                    wanted.get("group", "system.slice/mine.service"),
                    env={**env, **wanted.get("env", {})},
                )
        if reading in ready:
            data = os.read(reading, 1 << 16)
            if not data:
                break
            said += data
    os.waitpid(guard, 0)
    sys.stdout.write(said.decode())
    sys.stdout.flush()
    os._exit(0 if said else 1)


main()
