"""The names of all objects in a store, shared by client and agent.

A name is relative to `<store>/<deployment>/`. Objects that the client writes are under `in/`, those that hosts write
under `out/`; the verdict is the one record that both may create.
"""

from __future__ import annotations

RECORD_LIMIT = 16 << 20
"""The bytes of the largest object that is read into memory without asking for a part of it, or for more."""

DEPLOYMENT = "deployment.json"
REAPED = "reaped.json"  # the time of the last search for leftovers
PRICES = "prices.json"  # the list prices that all processes of the deployment count with


def blob(digest: str) -> str:
    """A content-addressed blob. The first letters spread the names, as object stores like it."""
    return f"blobs/{digest[:2]}/{digest}"


def tree(digest: str) -> str:
    """The manifest of a source tree, named by the digest of what it lists."""
    return f"trees/{digest}.json"


def project(key: str) -> str:
    """The record of the newest tree of one project, so that an edit sends only a delta."""
    return f"projects/{key}.json"


def identity(key: str) -> str:
    return f"identities/{key}.json"


TASKS = "tasks/"


def task(key: str) -> str:
    """Return the record of the job that a task of an orchestrator means which has no store of its own for that."""
    return f"{TASKS}{key}.json"


def group(group_id: str) -> str:
    return f"groups/{group_id}.json"


def group_end(group_id: str) -> str:
    """No more jobs are submitted to the group: all are, or it was ended."""
    return f"groups/{group_id}.end.json"


def slice_of(store: str, deployment: str, job_id: str, attempt: int, rival: int = 0) -> str:
    """An attempt's queued resource, and its node. Another store or deployment gives another name, and so does each
    further place of a race."""
    return f"kinetic-{mark(store, deployment)}-{job_id.removeprefix('job-')}-{of_rival(attempt, rival)}"


def of_rival(attempt: int, rival: int) -> str:
    """The end of the name of what is made in one place of an attempt. The first place of a race has the usual one."""
    return f"{attempt}r{rival}" if rival else str(attempt)


def numbered(name: str, number: int) -> list[str]:
    """The parts of what has that name, in their order: the VMs or the groups of an attempt, or its nodes."""
    return [name] if number == 1 else [f"{name}-{index}" for index in range(number)]


MEMBERS = "###[1]"  # of a group of VMs, after its name: three digits, enough for the largest slice, from 001 on
UNTIL = "until"  # the field of a group's description that says until when it may wait for its VMs, in epoch seconds


def members(group: str, hosts: int) -> list[str]:
    """The VMs that a group makes, in the order of its hosts."""
    return [f"{group}-{worker + 1:03}" for worker in range(hosts)]


JOBS_OF_SET = "s"  # the one replicated job of a JobSet, of which each Job is a slice


def pod(jobset: str, slice_: int, host: int) -> str:
    """A pod of a JobSet, without the letters at its end: its host name, too."""
    return f"{jobset}-{JOBS_OF_SET}-{slice_}-{host}"


def set_of(pod: str) -> str:
    """The JobSet whose pod has that whole name."""
    return pod.rsplit("-", 4)[0]


def set_of_job(job: str) -> str:
    """The JobSet whose Job has that name."""
    return job.rsplit("-", 2)[0]


def job_of_slice(name: str) -> str:
    """Return the id of the job of which an attempt's slice has that name."""
    return f"job-{name.rpartition('-')[0].rpartition('-')[2]}"


def attempt_of_slice(name: str) -> tuple[int, int]:
    """Return the attempt of which a slice has that name, and the number of its place in that one's race, if there is
    one; (0, 0) for a name that no slice has."""
    attempt, _, rival = name.rpartition("-")[2].partition("r")
    if not attempt.isdecimal() or not (rival or "0").isdecimal():
        return 0, 0
    return int(attempt), int(rival or 0)


def mark(store: str, deployment: str) -> str:
    """Eight letters that identify the resources of this deployment of this store among all others in a project."""
    from hashlib import sha256

    return sha256(f"{store.rstrip('/')}/{deployment}".encode()).hexdigest()[:8]


WANTS = "shares/wants/"
BOOK = "shares/book.json"  # of all turns, where chips are shared


def wants(job_id: str, attempt: int) -> str:
    """The folder of the object by which an attempt wants its turn, and holds it."""
    return f"{WANTS}{job_id}/{attempt}/"


def uses(job_id: str, attempt: int) -> str:
    """The mark of an attempt whose hosts are requested: by it a book of turns that was lost is made again."""
    return f"{wants(job_id, attempt)}used"


JOBS = "jobs/"
LIVE = "live/"
ROLL = "live.json"  # there once every job that has not ended is below `LIVE`
BEATS = "beats/"
BUDGETS = "budgets/"  # what pipelines have spent: MONTH/PIPELINE/…
TOOLS = "tools/"
WHEELS = "wheels/"


def job(job_id: str) -> str:
    return f"jobs/{job_id}/"


def live(job_id: str) -> str:
    """Return the name of what is there while the job has not ended, and is empty."""
    return f"{LIVE}{job_id}"


def spec(job_id: str) -> str:
    return f"jobs/{job_id}/in/spec.json"


def signature(job_id: str, digest: str) -> str:
    """The signature of a spec by an owner of the deployment's signing key. By digest, because the spec may be
    another's."""
    return f"jobs/{job_id}/in/signatures/{digest}"


def cancel(job_id: str) -> str:
    return f"jobs/{job_id}/in/cancel.json"


def owner(job_id: str) -> str:
    """The heartbeat of the owner, which the job must not outlive."""
    return f"jobs/{job_id}/in/owner.json"


def keeper(job_id: str) -> str:
    """The orchestrator's process that owns the job now: one that was replaced must not end it."""
    return f"jobs/{job_id}/in/keeper.json"


def intent(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/in/attempts/{attempt}/intent.json"


def intents(job_id: str) -> str:
    return f"jobs/{job_id}/in/attempts/"


def verdicts(job_id: str) -> str:
    return f"jobs/{job_id}/attempts/"


def ready(job_id: str, attempt: int) -> str:
    """The time from which its hosts are charged: written by a client that sees them and has no record of host 0."""
    return f"jobs/{job_id}/in/attempts/{attempt}/ready.json"


def refused(job_id: str, attempt: int) -> str:
    """The record that its hosts could not be freed after its verdict."""
    return f"jobs/{job_id}/in/attempts/{attempt}/refused.json"


def freed(job_id: str, attempt: int) -> str:
    """The record that they were freed later."""
    return f"jobs/{job_id}/in/attempts/{attempt}/freed.json"


def told(job_id: str, attempt: int) -> str:
    """The record that somebody tells a collector of it. Created once."""
    return f"jobs/{job_id}/in/attempts/{attempt}/told.json"


def trace(job_id: str) -> str:
    """The record of the span in which it was submitted."""
    return f"jobs/{job_id}/in/trace.json"


def won(job_id: str, attempt: int) -> str:
    """The record of the place that has won a race: the program starts in no other one. Created once, by a host 0."""
    return f"jobs/{job_id}/in/attempts/{attempt}/won.json"


def lost(job_id: str, attempt: int, rival: int) -> str:
    """The record of a place of a race that has failed, with the fields of a verdict: it is not asked again."""
    return f"jobs/{job_id}/in/attempts/{attempt}/lost-{rival}.json"


def held(job_id: str, attempt: int, rival: int) -> str:
    """Since when the hosts of a place that did not win its race were charged for."""
    return f"jobs/{job_id}/in/attempts/{attempt}/held-{rival}.json"


def gone(job_id: str, attempt: int, rival: int) -> str:
    """The record that these were deleted."""
    return f"jobs/{job_id}/in/attempts/{attempt}/gone-{rival}.json"


def verdict(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/attempts/{attempt}/verdict.json"


def left(job_id: str, attempt: int) -> str:
    """The record that one of its hosts had their slice deleted, after all of them had finished."""
    return f"jobs/{job_id}/attempts/{attempt}/left.json"


def hosts(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/out/{attempt}/hosts/"


def host(job_id: str, attempt: int, index: int, what: str) -> str:
    """One host's own records: started.json, exit.json, done.json, result, exception, log/<segment>."""
    return f"jobs/{job_id}/out/{attempt}/hosts/{index}/{what}"


def segment(job_id: str, attempt: int, index: int, number: int) -> str:
    return host(job_id, attempt, index, f"log/{number:06d}")


def beat(job_id: str, attempt: int, index: int) -> str:
    return f"beats/{job_id}/{attempt}/{index}"


def beats_in(job_id: str, attempt: int) -> str:
    """The beats of all hosts of one attempt."""
    return f"beats/{job_id}/{attempt}/"


def beats_of(job_id: str) -> str:
    """The transient objects of its hosts and followers: heartbeats, the ring and the eye."""
    return f"{BEATS}{job_id}/"


def ring(job_id: str) -> str:
    """The notification in a store without a bell: the writer of a cancel or a verdict changes it, so that all hosts
    read them."""
    return f"{BEATS}{job_id}/ring"


def eye(job_id: str) -> str:
    """The mark, in a store without a bell, that the job's log is being read."""
    return f"{BEATS}{job_id}/eye"


SLICES = "slices/"


def lease(slice_: str) -> str:
    """The lease of a slice that is kept after its job, by the name of its resource."""
    return f"{SLICES}{slice_}/lease.json"


def clean(slice_: str, epoch: int, host: int) -> str:
    """The mark of a host that it is clean after the attempt of that epoch, and may be offered."""
    return f"{cleaned(slice_, epoch)}{host}"


def cleaned(slice_: str, epoch: int) -> str:
    """The marks of all hosts of a slice after the attempt of that epoch."""
    return f"{SLICES}{slice_}/clean/{epoch}/"


FACTS = "facts/"


def fact(about: str, size: int) -> str:
    """Name the record of what attempts met lately for hardware of a size.

    `about`: a digest of its backend, place, generation, way, project and reservation.
    """
    return f"{FACTS}{about}/{size}"


def tool(name: str) -> str:
    """A tool that a host without a package index needs first: uv, an interpreter."""
    return f"{TOOLS}{name}"


def wheel(digest: str, name: str) -> str:
    return f"{WHEELS}{digest[:2]}/{digest}/{name}"


def compiled(key: str, entry: str) -> str:
    """An entry of JAX's compile cache, shared by all jobs of the same key."""
    return f"compiled/{key}/{entry}"


def claim(role: str, store: str, *about: object) -> str:
    """Return the claim of a machine about an object that it writes to a store, for Google to sign: the role, the store
    (its address ends with the deployment), and the content. A claim is valid for one object only.
    """
    return "/".join((role, store.rstrip("/"), *map(str, about)))


VALUE = "value"  # roles: of what a job returned,
EXCEPTION = "exception"  # and of what it raised


def secret(job_id: str, variable: str) -> str:
    """The name in Secret Manager of a variable's value, which must not be in the store."""
    return f"kinetic-{job_id}-{variable}"


def output_dir(job_id: str) -> str:
    return f"outputs/{job_id}"


def picture(job_id: str) -> str:
    """The picture of its metrics and devices. Not in its output folder: a program may need to find that empty."""
    return f"{output_dir(job_id)}.svg"


def profile(output: str) -> str:
    """The folder of `profile=` traces in a job's outputs: XProf's log directory."""
    return f"{output.rstrip('/')}/profile"


def xprof(place: str) -> str:
    """The command that opens it."""
    return f"xprof --logdir {place}"


def checkpoint_dir(identity_key: str) -> str:
    return f"checkpoints/{identity_key}"


# ---- how much of an object may be a record ---------------------------------------------------------------------

_SMALL = 64 << 10
_LIMITS = {
    "cancel.json": 4 << 20,
    "owner.json": _SMALL,
    "keeper.json": _SMALL,
    "won.json": _SMALL,
    "intent.json": 2 << 20,  # it names each attempt before it that had hosts
    "verdict.json": 4 << 20,  # with a traceback and the last lines of a log
    "started.json": _SMALL,
    "exit.json": _SMALL,
    "done.json": 1 << 20,
    "profile.json": 1 << 20,
    DEPLOYMENT: _SMALL,
    REAPED: _SMALL,
    ROLL: _SMALL,
    "book.json": 4 << 20,  # with the turns of some thousand attempts
    PRICES: 2 << 20,
}
_PREFIXES = (
    (BEATS, _SMALL),
    (LIVE, _SMALL),
    (FACTS, _SMALL),
    (SLICES, 2 << 20),
    (WANTS, _SMALL),
    (BUDGETS, 1 << 20),
    ("identities/", _SMALL),
    (TASKS, _SMALL),
    ("groups/", 1 << 20),
    ("projects/", _SMALL),
    ("trees/", 512 << 20),  # that of a project of three million files
    ("outputs/", 4 << 20),  # pictures
)


_FILES = (
    (TOOLS, 1 << 30),  # uv, an interpreter
    (WHEELS, 8 << 30),  # those of torch have 1 GB
    ("compiled/", 2 << 30),  # what XLA has made of one function
)
LARGEST_FILE = 1 << 40


def file_limit_of(name: str) -> int:
    """Return the maximum bytes of an object of this name, for a reader that writes it to a file and has no trusted
    size."""
    return next((most for prefix, most in _FILES if name.startswith(prefix)), LARGEST_FILE)


def limit_of(name: str) -> int:
    """The bytes that a record of this name has at most: an object with more is not read."""
    for prefix, most in _PREFIXES:
        if name.startswith(prefix):
            return most
    if "/in/signatures/" in name:
        return _SMALL
    return _LIMITS.get(name.rpartition("/")[2], RECORD_LIMIT)
