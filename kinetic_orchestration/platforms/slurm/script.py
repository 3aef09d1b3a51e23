"""Writes what is sent to Slurm for an attempt: the words of sbatch, and the script that starts its hosts. Pure.

One job of Slurm for an attempt: a batch script on the first node, whose `srun` starts a host on each. A second job of
that name, and one that Slurm has put back into its queue, find the claim of the first and end.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Plan

MARK = "kinetic"
FOLDER = "kinetic-slurm"  # of all attempts' folders, below the shared one
SCRIPT, PRIVATE, CLAIM, LOG, ENDED = "job.sh", "private.json", "claim", "job.out", "ended"
CANCELLED, REQUEUED, TIME_OVER = "cancelled", "requeued", "time"  # what the script may write of its end
NO_FOLDER, NO_PYTHON, TIME_LIMIT = 81, 82, 83  # exit codes of the script
NOTICE = 60  # seconds before the end of its time at which a job is told; Slurm looks once in up to 60 s
SPARE = 300.0  # seconds of a job beside its program's run: the start of its hosts, and their end

# Variables of the submitter that sbatch and hosts get: where programs, libraries and files of this user are. All that
# sbatch has is exported: --export=NONE would have slurmd run a login shell of the user first, which takes a second.
PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "CUDA_HOME", "MODULEPATH"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "XDG_CACHE_HOME", "HF_HOME"),
    *("UV_CACHE_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)

_SCRIPT = """\
#!/bin/sh
PARENT={parent}
RUN={run}
PYTHON={python}
tries=0
until [ -d "$PARENT" ]; do # a folder that is not shared is never there
  tries=$((tries + 1)); [ "$tries" -le 5 ] || exit {no_folder}
  sleep 1
done
tries=0
until [ -d "$RUN" ]; do # it was released, or NFS does not show it yet: a listing has it look again
  tries=$((tries + 1)); [ "$tries" -le 10 ] || exit 0
  ls "$PARENT" >/dev/null; sleep 1
done
exec >>"$RUN/{log}" 2>&1
ended() {{ ln -s "$1" "$RUN/{ended}" 2>/dev/null; }} # the first word counts
if ! ln -s "$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" "$RUN/{claim}"; then
  case "$(readlink "$RUN/{claim}")" in "$SLURM_JOB_ID".*) ended {requeued} ;; esac # this job has had its hosts
  exit 0 # it is another job's
fi
if [ ! -x "$PYTHON" ]; then
  echo "$PYTHON is not on the node $SLURMD_NODENAME: environments of jobs lie on a folder that all nodes mount"
  exit {no_python}
fi
export KINETIC_PLACEMENT="$RUN"
over=
near() {{ # the end of its time, of which Slurm tells the script alone
  over=1; {tell}
}}
end() {{ # any other end, of which Slurm tells the hosts itself: when it has forgotten the job, only this file knows
  mine="COMPLETING/${{SLURM_RESTART_COUNT:-0}}"
  case "$(squeue -h -a -j "$SLURM_JOB_ID" -O 'State:/,RestartCnt:/,TimeLeft:/,Reason:/,PreemptTime:/')" in
    "$mine"/0:00/* | "$mine"/INVALID/*) ;; # its time was over
    "$mine"/*/None/N/A/) ended {cancelled} ;;
    "$mine"/*) ;; # a node is lost, or Slurm has taken it from the job
    COMPLETING/*) ended {requeued} ;;
  esac
}}
trap near USR1
trap end TERM
{step} sh -c '
  exec "$@" host=$SLURM_PROCID boot={boot}/$SLURM_PROCID batch=$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}' sh {host} \\
  <"$RUN/{private}" &
hosts=$!
wait "$hosts"; code=$?
while kill -0 "$hosts" 2>/dev/null; do wait "$hosts"; code=$?; done
rm -f "$RUN/{private}"
[ -z "$over" ] || {{ ended {time_over}; exit {time_limit}; }}
[ "$code" -ne 0 ] || [ ! -e {verdict} ] || rm -rf "$RUN" # without one, what Slurm says is all that is known
exit "$code"
"""

# The host of a job on one node is started by the script itself: a step of its own would be another round by the
# controller. Steps are signalled by the controller, which leaves out the script.
_STEP = "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL --quiet"
_TELL_STEP, _TELL = 'scancel --signal=TERM "$SLURM_JOB_ID"', 'kill -TERM "$hosts"'


def script(run: str, python: str, host: Sequence[str], boot: str, nodes: int, verdict: str) -> str:
    """Return the batch script.

    Args:
        run: The attempt's folder.
        python: The interpreter that starts hosts.
        host: The command of a host, without what only its node knows.
        boot: The token of the attempt's hosts.
        nodes: Their number.
        verdict: The file in the store by which the attempt is decided.
    """
    alone = nodes == 1
    return _SCRIPT.format(
        parent=shlex.quote(run.rpartition("/")[0]),
        run=shlex.quote(run),
        python=shlex.quote(python),
        step="SLURM_PROCID=0" if alone else _STEP.format(nodes=nodes),
        tell=_TELL if alone else _TELL_STEP,
        host=shlex.join(host),
        boot=boot,
        verdict=shlex.quote(verdict),
        log=LOG,
        claim=CLAIM,
        ended=ENDED,
        cancelled=CANCELLED,
        requeued=REQUEUED,
        time_over=TIME_OVER,
        private=PRIVATE,
        no_folder=NO_FOLDER,
        no_python=NO_PYTHON,
        time_limit=TIME_LIMIT,
    )


def words(plan: Plan, name: str, comment: str, affordable: float = 0.0) -> list[str]:
    """Return the words of sbatch, whose script comes by its standard input. `affordable`: as of `time_limit`."""
    cloud = plan.cloud
    found = [
        *("sbatch", "--parsable", f"--job-name={name}", f"--comment={comment}", "--dependency=singleton"),
        *(f"--nodes={plan.hosts}", "--ntasks-per-node=1", "--export=ALL", "--open-mode=append", "--requeue"),
        *("--output=/dev/null", "--chdir=/", "--input=/dev/null", f"--signal=B:USR1@{NOTICE}"),
    ]
    options = ("partition", "account", "qos", "constraint")
    found += [f"--{option}={cloud[option]}" for option in options if cloud.get(option)]
    if wanted := gres(plan):
        found.append(f"--gres={wanted}")
    if cloud.get("cpus"):
        found.append(f"--cpus-per-task={cloud['cpus']}")
    if cloud.get("memory"):
        found.append(f"--mem={cloud['memory']}")
    if limit := time_limit(plan, affordable):
        found.append(f"--time={limit}")
    return found


def gres(plan: Plan) -> str:
    """Return the generic resources of each node: as they were named, else the GPUs of the accelerator."""
    if named := str(plan.cloud.get("gres") or ""):
        return named
    return gpus(plan.slice)


def gpus(slice_: Slice) -> str:
    """Return the GPUs of each host as generic resources; "" for none."""
    if slice_.kind != "gpu":
        return ""
    model = "" if slice_.whichever else f":{slice_.generation}"
    return f"gpu{model}:{slice_.chips_per_host}"


def time_limit(plan: Plan, affordable: float = 0.0) -> str:
    """Return the time limit as sbatch takes it; "" for that of the partition.

    Args:
        plan: The plan of the attempt.
        affordable: Seconds for which the money pays that is left to it; 0 for no limit. Its hosts keep it themselves,
            and are told of no other end before.
    """
    paid = affordable + 2 * NOTICE if affordable else math.inf
    if named := str(plan.cloud.get("time") or ""):
        return named if _seconds(named) <= paid else str(math.ceil(paid / 60))
    limits = [float(limit) + SPARE + NOTICE for limit in (plan.limits.run, plan.limits.total) if limit]
    least = min([paid, *limits])
    return str(math.ceil(least / 60)) if least < math.inf else ""


def _seconds(time: str) -> float:
    """Return the seconds of a time as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, rest = time.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")):
        return math.inf  # a word, as UNLIMITED
    units = (3600, 60, 1) if dash or len(parts) > 2 else (60, 1)
    return int(days or 0) * 86_400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what sbatch is started with, and hosts with it."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "LC_ALL")
    return {name: environ[name] for name in (*PASSED, *kept) if name in environ}


def comment(deployment: str, job_id: str, attempt: int) -> str:
    """Return the mark of a job, by which people see whose it is."""
    return f"{MARK} {re.sub(r'[^A-Za-z0-9._-]', '-', deployment)} {job_id} {attempt}"


def placement(name: str, run: str, hosts: int) -> dict[str, Any]:
    return {"backend": "slurm", "name": name, "run": run, "hosts": hosts, "slices": 1}
