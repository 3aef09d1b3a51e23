"""The one owner of every object's name in a store, shared by client and agent.

A name is relative to `<store>/<deployment>/`. What the client writes lies under `in/`, what hosts write under
`out/`; the verdict is the one record that both may create.
"""

from __future__ import annotations

DEPLOYMENT = "deployment.json"


def blob(digest: str) -> str:
    """A content-addressed blob. The first letters spread the names, as object stores like it."""
    return f"blobs/{digest[:2]}/{digest}"


def tree(digest: str) -> str:
    """The manifest of a source tree, named by the digest of what it lists."""
    return f"trees/{digest}.json"


def project(key: str) -> str:
    """Where the newest tree of one project is remembered, so that an edit sends only a delta."""
    return f"projects/{key}.json"


def identity(key: str) -> str:
    return f"identities/{key}.json"


def group(group_id: str) -> str:
    return f"groups/{group_id}.json"


def group_end(group_id: str) -> str:
    """No more jobs are submitted to the group: all are, or somebody wants no more."""
    return f"groups/{group_id}.end.json"


JOBS = "jobs/"
BEATS = "beats/"


def job(job_id: str) -> str:
    return f"jobs/{job_id}/"


def spec(job_id: str) -> str:
    return f"jobs/{job_id}/in/spec.json"


def cancel(job_id: str) -> str:
    return f"jobs/{job_id}/in/cancel.json"


def owner(job_id: str) -> str:
    """The sign of life of whoever must not be outlived by the job."""
    return f"jobs/{job_id}/in/owner.json"


def intent(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/in/attempts/{attempt}/intent.json"


def placement(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/in/attempts/{attempt}/placement.json"


def verdict(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/attempts/{attempt}/verdict.json"


def hosts(job_id: str, attempt: int) -> str:
    return f"jobs/{job_id}/out/{attempt}/hosts/"


def host(job_id: str, attempt: int, index: int, what: str) -> str:
    """One host's own records: started.json, exit.json, done.json, result, exception, log/<segment>."""
    return f"jobs/{job_id}/out/{attempt}/hosts/{index}/{what}"


def segment(job_id: str, attempt: int, index: int, number: int) -> str:
    return host(job_id, attempt, index, f"log/{number:06d}")


def beat(job_id: str, attempt: int, index: int) -> str:
    return f"beats/{job_id}/{attempt}/{index}"


def output_dir(job_id: str) -> str:
    return f"outputs/{job_id}"


def checkpoint_dir(identity_key: str) -> str:
    return f"checkpoints/{identity_key}"
