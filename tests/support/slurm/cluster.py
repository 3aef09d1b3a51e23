"""A real Slurm on this machine: munged, slurmctld and several slurmd, as processes of a test's own.

Keys, sockets, spools and logs lie below one folder, servers listen on 127.0.0.1, and all of them end by their ids. The
system's services, its key and its configuration are never touched. Nodes share this machine, and so its file system,
as nodes that mount the same folder do.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinetic_orchestration.protocol.system import processes

PROGRAMS = (
    "munged",
    "mungekey",
    "slurmctld",
    "slurmd",
    "slurmstepd",
    "sbatch",
    "squeue",
    "scancel",
    "srun",
    "scontrol",
    "sinfo",
)
PLACES = "/usr/sbin:/usr/bin"
GPUS = 2  # of a node
WITHIN = 60.0

CONFIGURATION = """\
ClusterName=testbed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser={user}
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
JobRequeue=1
KillWait={kill_wait}
MinJobAge={min_job_age}
SlurmdTimeout=10
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
RequeueExit=77
JobSubmitPlugins=lua
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=2000 Gres=gpu:tesla:{gpus} State=UNKNOWN
PartitionName=batch Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n[1-{nodes}] MaxTime=1 State=UP
PartitionName=physics Nodes=n[1-{nodes}] AllowAccounts=physics MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n[1-{nodes}] AllowQos=urgent MaxTime=INFINITE State=UP
PartitionName=one Nodes=n[1-{nodes}] MaxNodes=1 MaxTime=INFINITE State=UP
PartitionName=last Nodes=n{nodes} MaxTime=INFINITE State=UP
"""

# Without a database Slurm knows no accounts and no QOS: a site's own plugin refuses these, with Slurm's own errors
# (ESLURM_INVALID_ACCOUNT and ESLURM_INVALID_QOS of slurm_errno.h).
SUBMIT_PLUGIN = """\
function slurm_job_submit(job, partitions, user)
  if job.account == "nobody" then return 2045 end
  if job.qos == "golden" then return 2066 end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def missing() -> str:
    """Return why no Slurm can be started here, "" if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PLACES) is None]
    if absent:
        return "Slurm is not installed"
    return "" if os.geteuid() == 0 else "slurmd is started by root alone"


class Cluster:
    """A running Slurm.

    Attributes:
        folder: All that it keeps.
        environ: The variables by which any process finds it.
    """

    def __init__(
        self, folder: Path, nodes: int = 3, *, kill_wait: int = 5, min_job_age: int = 300, more: str = ""
    ) -> None:
        """`more`: further lines of slurm.conf."""
        self.folder, self.nodes = folder, [f"n{number}" for number in range(1, nodes + 1)]
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool", *(f"spool/{node}" for node in self.nodes)):
            (folder / name).mkdir(parents=True)
        host = socket.gethostname()
        ports, self._kept = free_ports(nodes + 1)
        for number in range(GPUS):  # Slurm takes devices alone; these are /dev/null by another name
            os.mknod(folder / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (folder / "gres.conf").write_text(
            f"NodeName=n[1-{nodes}] Name=gpu Type=tesla File={folder}/nvidia[0-{GPUS - 1}]\n"
        )
        (folder / "job_submit.lua").write_text(SUBMIT_PLUGIN)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host, folder=folder, port=ports[0], first=ports[1], last=ports[-1], nodes=nodes, gpus=GPUS,
                user="root", kill_wait=kill_wait, min_job_age=min_job_age,
            )
            + more
        )  # fmt: skip
        subprocess.run(["mungekey", "-c", "-k", str(folder / "munge.key")], check=True, env=_environ())
        folder.chmod(0o755)

    def start(self) -> None:
        """Start all servers, and wait until each node is idle."""
        folder = self.folder
        own = {name: folder / f"munge.{name}" for name in ("key", "sock", "pid", "log", "seed")}
        self._start(
            "munged", "--foreground", "--force", "--num-threads=2", f"--key-file={own['key']}", f"--socket={own['sock']}",
            f"--pid-file={own['pid']}", f"--log-file={own['log']}", f"--seed-file={own['seed']}",
        )  # fmt: skip
        self._until(own["sock"].exists, "munged listens")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.await_idle()

    def start_controller(self) -> None:
        """Start slurmctld, with what one before it has left of its jobs."""
        self._start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self._until(lambda: not self.command("scontrol", "ping", check=False).returncode, "slurmctld answers")

    def forget_ended(self) -> None:
        """Have the controller forget the jobs that are over, as it does once MinJobAge has passed."""
        file = self.folder / "slurm.conf"
        before = file.read_text()
        file.write_text(re.sub(r"(?m)^MinJobAge=\d+", "MinJobAge=2", before))
        self.command("scontrol", "reconfigure")
        time.sleep(3.1)
        self.stop("slurmctld")  # it looks once a minute, and when it writes down what it knows
        self.start_controller()
        self.await_idle()
        known = ("squeue", "-h", "-a", "--states=all", "-o", "%i %T")
        self._until(lambda: not self.command(*known).stdout, "no job that is over is known", 2 * WITHIN)
        file.write_text(before)
        self.command("scontrol", "reconfigure")
        self.await_idle()

    def start_node(self, node: str, *, without: Path | None = None) -> None:
        """Start a node. `without`: a folder that it does not see, as one that does not mount it."""
        command = ["slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf")]
        if without is not None:  # in a mount namespace of its own, which goes with it
            hides = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "--propagation=private", "sh", "-c", hides, str(without), *command]
        self._start(*command, name=node)

    def await_idle(self, *nodes: str) -> None:
        """Wait until nodes have no job."""
        wanted = nodes or tuple(self.nodes)
        self._until(lambda: all(self.state_of(node) == "idle" for node in wanted), f"{wanted} are idle")

    def state_of(self, node: str) -> str:
        """Return the state of a node as its controller has it: sinfo may show an older one after a restart."""
        answer = self.command("scontrol", "--oneliner", "show", "node", node, check=False).stdout
        found = re.search(r"State=(\w+)", answer)
        return found[1].lower() if found else ""

    def command(
        self, *words: str, check: bool = True, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        done = subprocess.run(
            words, env={**_environ(), **self.environ, **(environ or {})}, capture_output=True, text=True, timeout=WITHIN, stdin=subprocess.DEVNULL
        )  # fmt: skip
        assert not check or not done.returncode, f"{words}: {done.stderr}"
        return done

    def jobs(self) -> list[str]:
        """Return what is queued or runs, for people."""
        return self.command("squeue", "-h", "-a", "-o", "%i %j %T %r").stdout.splitlines()

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one server, and wait until it is gone."""
        process = self._running.pop(name)
        process.send_signal(number)
        try:
            process.wait(WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def cancel_all(self) -> None:
        """Cancel what is left of jobs, whose they may be: a test has failed."""
        if left := [line.split()[0] for line in self.jobs()]:
            self.command("scancel", *left, check=False)

    def close(self) -> None:
        """Cancel all jobs and end all servers, and what they have left."""
        if "slurmctld" in self._running:
            self.cancel_all()
        for name in sorted(self._running, key=lambda name: name == "munged"):
            self.stop(name)
        self._kept.close()
        for step in processes.marked(f"SLURM_CONF={self.environ['SLURM_CONF']}"):
            if step.pid != os.getpid():
                processes.send(step.pid, signal.SIGKILL)

    def _start(self, *command: str, name: str = "") -> None:
        log = self.folder / f"{name or command[0]}.out"
        with log.open("ab") as out:
            self._running[name or command[0]] = subprocess.Popen(
                command,
                env={**_environ(), **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
            )

    def _until(self, condition: object, what: str, within: float = WITHIN) -> None:
        assert callable(condition)
        deadline = time.monotonic() + within
        while not condition():
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended: {self._said(name)}"
            assert time.monotonic() < deadline, f"not within {within:g} s: {what}; {self._said('slurmctld')}"
            time.sleep(0.05)

    def _said(self, name: str) -> str:
        logs: Sequence[Path] = [
            self.folder / f"{name}.out",
            self.folder / f"{name}.log",
            self.folder / f"slurmd-{name}.log",
        ]
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs if log.exists())


def free_ports(number: int) -> tuple[list[int], socket.socket]:
    """Return consecutive ports of this machine that are free now, below those that the kernel gives away, and what keeps
    others of these tests from them until it is closed: servers bind them only later.
    """
    block = 16
    starts = list(range(20_000, 32_000, block))
    for base in random.sample(starts, len(starts)):
        sockets = [socket.socket() for _ in range(number)]
        kept = socket.socket(socket.AF_UNIX)
        try:
            kept.bind(f"\0kinetic-slurm-{base}")  # goes with its socket, whoever dies
            for port, one in enumerate(sockets, base):
                one.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        else:
            return list(range(base, base + number)), kept
        finally:
            for one in sockets:
                one.close()
    raise OSError("no free ports")


def _environ() -> dict[str, str]:
    """Return a plain environment: nothing of this process's own Slurm."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
    return {**found, "PATH": f"{found.get('PATH', '')}:{PLACES}"}
