"""Keras Kinetic's public names that differ here, and their equivalents, as docs/reference/keras-kinetic.md lists them.

`OTHER` has another meaning or name, `ABSENT` does not exist here and names the alternative. All other names mean
the same. Parameters and methods of absent names need no entry of their own. Names and facts only; the names were read
off the package (tests/core/api/keras_kinetic/released.json). Loaded when a missing name is accessed.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

OTHER, ABSENT = "other", "absent"

# Settings that are read, for the sake of programs that hand them on, and mean nothing.
WITHOUT_EFFECT = ("KINETIC_CLUSTER", "KINETIC_NAMESPACE")


class Row(NamedTuple):
    name: str
    verdict: str
    why: str
    equivalent: str = ""


class Group(NamedTuple):
    title: str
    other: Mapping[str, tuple[str, str]]  # name → its name here, what differs
    absent: Mapping[str, str]  # name → the reason, and what to use

    def rows(self) -> Iterator[Row]:
        for name, (equivalent, why) in self.other.items():
            yield Row(name, OTHER, why, equivalent or name)
        for name, why in self.absent.items():
            yield Row(name, ABSENT, why)


_NO_CLUSTER = "there is no cluster: a job runs on VMs of its own, or on this machine"
_ELSEWHERE = "elsewhere warned about once, without effect"
_CLUSTER = (
    "on `gke` a name, without a default (there `kinetic-cluster`); on `kubernetes` a context of the kubeconfig; "
    f"{_ELSEWHERE}"
)
_NAMESPACE = f"on `gke` and `kubernetes`, where a context may have a default of its own; {_ELSEWHERE}"
_BACKEND = (
    "also `local`, `tpu-vm`, `compute`, `kubernetes`. `gke` and `pathways` mean GKE if a cluster, a project and a "
    "bucket are named, or the cluster of `KINETIC_BACKEND=kubernetes`, which `pathways` always means where that is "
    "set; without one they warn. Several hosts are no other backend: one process each, joined, in one JobSet"
)
_IMAGE = "only an image that you name, of pods or on VMs: none is built; on this machine without effect"
_WHERE = (
    "on `gke` where the cluster of that name is looked for, by default anywhere (there in `us-central1-a`); on "
    "`tpu-vm` and `compute` where the hosts are; elsewhere without effect, with a warning"
)
_ZONE = "of its newest attempt, on a cluster CLUSTER/NAMESPACE; empty before there is one, and on this machine"
_PLACED = "`zone` is CLUSTER/NAMESPACE of a job on a cluster"
_STORE = "accepted, without effect: `KINETIC_STORE` and `KINETIC_DEPLOYMENT` say which jobs there are"
_PLACE = "as the setting; `KINETIC_STORE` and `KINETIC_DEPLOYMENT` say which jobs there are"
_BOUNDED = "accepted, without effect: freeing hosts is bounded by itself"
_PUSHED = "accepted, without effect: the end of a job is an event"
_POD = "Keras Kinetic sets it on its pods"
_PROFILES = "a profile is a table of `profiles.toml`, which an editor writes; `KINETIC_PROFILE` names it"
_POOLS = "a cluster's pools are its administrator's: `kinor doctor --accelerator NAME` prints the line where none fits"
_NAMED = "read where `requirements=` names it; a launch for other machines says when one is there and is not"
_DEBUGGER = "`debug=True` waits for a debugger on loopback, and the log says where"

GROUPS = (
    Group(
        "Names",
        other={
            "kinetic.jobs": ("kinetic", "its names are those of the package"),
            "kinetic.jobs.JobHandle": ("kinetic.JobHandle", ""),
            "kinetic.jobs.attach": ("kinetic.attach", ""),
            "kinetic.jobs.list_jobs": ("kinetic.list_jobs", ""),
        },
        absent={
            "kinetic.jobs.attach_remote_traceback": "what a job raised has its remote traceback as a note",
            "kinetic.debug": _DEBUGGER,
            "kinetic.debug.cleanup_port_forward": "`kinor port-forward JOB PORT` does it",
            "kinetic.debug.print_attach_instructions": "the log says where the debugger listens",
            "kinetic.debug.start_port_forward": "`kinor port-forward JOB PORT` does it",
            "kinetic.debug.wait_for_debug_server": "the log says when the debugger listens",
            "kinetic.data.is_data_ref": "how data travel is no part of the surface",
            "kinetic.data.make_data_ref": "how data travel is no part of the surface",
            "kinetic.data.parse_gcs_uri": "`Data(…).path` is the address",
        },
    ),
    Group(
        "`run`",
        other={
            "run(container_image)": ("", _IMAGE),
            "run(base_image_repo)": ("", "accepted and warned about once, without effect: no image is built"),
            "run(zone)": ("", _WHERE),
            "run(project)": ("", "on this machine without effect, with a warning"),
            "run(capture_env_vars)": ("", "what looks like a secret never goes into the store"),
            "run(cluster)": ("", _CLUSTER),
            "run(namespace)": ("", _NAMESPACE),
            "run(backend)": ("", _BACKEND),
            "run(volumes)": ("", "on other machines each host fetches them, and nothing is mounted"),
            "run(spot)": ("", "on this machine without effect, with a warning"),
            "run(debug)": ("", "`debugpy` listens on loopback of the host; `kinor port-forward JOB 5678` leads there"),
        },
        absent={
            "RemoteCallable(func)": "`run` makes it",
            "RemoteCallable(sync_wrapper)": "`run` makes it",
            "RemoteCallable(async_wrapper)": "`run` makes it",
        },
    ),
    Group(
        "`map`, `attach`, `attach_batch`, `list_jobs`",
        other={
            "map(retries)": ("", "they are attempts of the same job, with the same checkpoints"),
            "map(project)": ("", "accepted and warned about once, without effect: jobs go where `run` says"),
            "map(cluster)": ("", "accepted and warned about once, without effect: jobs go where `run` says"),
            "attach(project)": ("", _PLACE),
            "attach(cluster)": ("", _STORE),
            "attach_batch(project)": ("", _PLACE),
            "attach_batch(cluster)": ("", _STORE),
            "attach_batch(poll_interval)": ("", _PUSHED),
            "list_jobs(project)": ("", _PLACE),
            "list_jobs(zone)": ("", _PLACE),
            "list_jobs(cluster)": ("", _STORE),
            "list_jobs(namespace)": ("", _STORE),
        },
        absent={},
    ),
    Group(
        "`Data`",
        other={"Data(fuse)": ("", "on this machine a local folder is read in place; elsewhere it is refused")},
        absent={"Data.content_hash()": "digests are made when a job is submitted"},
    ),
    Group(
        "`JobHandle`",
        other={
            "JobHandle.backend": ("", "`local`, `tpu-vm`, `compute`, `kubernetes` or `gke`"),
            "JobHandle.zone": ("", _ZONE),
            "JobHandle.bucket_name": ("", "of the store; empty where that is a folder"),
            "JobHandle.image_uri": ("", "`container_image`, or empty: no image is built"),
            "JobHandle.status()": ("", "a cancelled job is `CANCELLED`"),
            "JobHandle.to_dict()": ("", "with `store` and `deployment`; without `zone` and what is of a cluster"),
            "JobHandle.from_dict()": ("", "as `attach`, for what `to_dict()` here gave"),
            "JobHandle.result(cleanup)": ("", "frees hosts; records go by retention"),
            "JobHandle.result(cleanup_timeout)": ("", _BOUNDED),
            "JobHandle.result(cleanup_poll_interval)": ("", _BOUNDED),
            "JobHandle.cancel()": ("", "waits until the hosts are gone; `result()` then raises `JobCancelled`"),
            "JobHandle.cancel(cleanup_timeout)": ("", "how long it waits for the end"),
            "JobHandle.cancel(cleanup_poll_interval)": ("", _BOUNDED),
            "JobHandle.cleanup()": ("", "frees hosts of a job that has ended; of a running job it does nothing"),
            "JobHandle.cleanup(k8s)": ("", "frees its hosts"),
            "JobHandle.cleanup(gcs)": ("", "accepted, without effect: records go by retention"),
            "JobHandle.cleanup(cleanup_timeout)": ("", _BOUNDED),
            "JobHandle.cleanup(cleanup_poll_interval)": ("", _BOUNDED),
        },
        absent={
            "JobHandle.cluster_name": _PLACED,
            "JobHandle.namespace": _PLACED,
            "JobHandle.k8s_name": "`peek().resource` is the name of its JobSet or its queued resource",
            "JobHandle.from_job_context()": "`run_async` and `attach` make handles",
            "JobHandle.debug_attach()": _DEBUGGER,
        },
    ),
    Group(
        "`BatchHandle`, `BatchError`, `JobStatus`",
        other={
            "BatchHandle.as_completed(poll_interval)": ("", _PUSHED),
            "BatchHandle.results(cleanup)": ("", "frees hosts; records go by retention"),
            "BatchHandle.cleanup()": ("", "as that of `JobHandle`"),
            "BatchHandle.cleanup(k8s)": ("", "frees their hosts"),
            "BatchHandle.cleanup(gcs)": ("", "accepted, without effect: records go by retention"),
            "JobStatus.NOT_FOUND": ("", "only of a job whose records are gone: a cancelled one is `CANCELLED`"),
        },
        absent={"BatchHandle.unavailable_children": "`submission_failures` has jobs that cannot be read, too"},
    ),
    Group(
        "Settings",
        other={
            "KINETIC_PROFILE": ("", "names a table of `profiles.toml`"),
            "KINETIC_CLUSTER": ("", f"on `kubernetes` (a context) and `gke`. Elsewhere {_NO_CLUSTER}"),
            "KINETIC_NAMESPACE": ("", f"on `kubernetes` and `gke`. Elsewhere {_NO_CLUSTER}"),
            "JOB_ID": ("KINETIC_JOB_ID", "of a program on a host; or `kinetic.current().job_id`"),
            "profile name": ("KINETIC_PROFILE", "the name of the table"),
            "profile cluster": ("", "as `KINETIC_CLUSTER`"),
            "profile namespace": ("", "as `KINETIC_NAMESPACE`"),
        },
        absent={
            "GCS_BUCKET": "a program on a host has `KINETIC_OUTPUT_DIR`, or `kinetic.current()`",
            "KINETIC_BASE_IMAGE_REPO": "no image is built; `container_image=` names one",
            "KINETIC_CONTEXT_SIZE_WARN_MB": "a large project is told with its largest files, at a size of our own",
            "KINETIC_DEBUG": f"{_POD}; here `debug=True`",
            "KINETIC_DEBUG_PORT": f"{_POD}; here the log says where the debugger listens",
            "KINETIC_DEBUG_WAIT_LEADER": f"{_POD}; here host 0 is the one that waits",
            "KINETIC_DEBUG_WAIT_TIMEOUT": f"{_POD}; here the log says how long the debugger is waited for",
            "KINETIC_FORCE_DESTROY": "no bucket is made, and none is removed",
            "KINETIC_LOG_LEVEL": "lines of our own go to stderr and begin with `kinetic:`; Python's warnings have `-W`",
            "KINETIC_NO_DEFAULT_EXCLUDES": "`!NAME` in a `.kineticignore` brings back what is left out",
            "KINETIC_PACKAGE_ROOT": "the folder with a `.kineticignore`, which may be empty, is the project",
            "KINETIC_PAYLOAD_SIZE_WARN_MB": "give what is large as `Data`",
            "KINETIC_PROFILES_FILE": "`KINETIC_PROFILE_FILE` names a TOML file of profiles",
            "KINETIC_RESERVATION": "`TpuVm(reservation=…)` or `Compute(reservation=…)` names one, on GKE "
            "`Kubernetes(reservation=…)`",
        },
    ),
    Group(
        "Files",
        other={
            ".kineticignore": ("", "in any folder, with the patterns of `.gitignore`; `!NAME` brings back"),
            "requirements.txt": ("run(requirements)", _NAMED),
            "pyproject.toml": ("run(requirements)", _NAMED),
        },
        absent={
            "~/.kinetic/profiles.json": _PROFILES,
            "~/.kinetic/pulumi-cli": "nothing is set up in advance",
        },
    ),
    Group(
        "Commands",
        other={
            "kinetic accelerators": ("kinor accelerators", "with prices"),
            "kinetic config show": ("kinor doctor", "each value with where it came from"),
            "kinetic down": ("kinor deinit", "of a project; no cluster is removed"),
            "kinetic init": ("kinor init", "a project; no cluster is made or joined"),
            "kinetic jobs cancel": ("kinor cancel", ""),
            "kinetic jobs cleanup": ("kinor reap", "for all jobs; records go by retention"),
            "kinetic jobs list": ("kinor jobs", ""),
            "kinetic jobs logs": ("kinor logs", ""),
            "kinetic jobs result": ("kinor result", ""),
            "kinetic jobs status": ("kinor status", ""),
            "kinetic status": ("kinor doctor", "`kinor status ID` is of a job"),
        },
        absent={
            "kinetic build-image": "no image is built; `container_image=` names one",
            "kinetic jobs debug": _DEBUGGER,
            "kinetic pool add": _POOLS,
            "kinetic pool list": _POOLS,
            "kinetic pool remove": _POOLS,
            "kinetic profile create": _PROFILES,
            "kinetic profile ls": _PROFILES,
            "kinetic profile rm": _PROFILES,
            "kinetic profile show": _PROFILES,
            "kinetic profile unset": _PROFILES,
            "kinetic profile use": _PROFILES,
            "kinetic up": "no cluster is made; on Cloud TPU `kinor init` sets up a project",
        },
    ),
)  # fmt: skip


@functools.cache
def table() -> dict[str, Row]:
    """Return the names of Keras Kinetic that differ here, with their counterparts."""
    return {row.name: row for group in GROUPS for row in group.rows()}


def row_of(name: str) -> Row | None:
    """Return the entry of a name, or of the absent function or method whose parameter it is."""
    rows = table()
    if name in rows:
        return rows[name]
    whose = rows.get(f"{name.partition('(')[0]}()")
    return whose if whose is not None and whose.verdict == ABSENT else None


def without(owner: str, name: str, message: str) -> str:
    """Return the text of an AttributeError, extended by the counterpart if the name is one of Keras Kinetic's.

    Args:
        owner: The object's name.
        name: The attribute.
        said: The text.
    """
    row = next((found for text in (name, f"{name}()") if (found := row_of(f"{owner}.{text}"))), None)
    return f"{message}: {_plain(row.why)}" if row is not None and row.why else message


def without_effect(environ: Mapping[str, str], ignored: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the variables of Keras Kinetic that are set without effect, each with its counterpart.

    Args:
        environ: The variables.
        ignored: Options without a meaning on the backend of the job.
    """
    for row in table().values():
        if row.name.startswith("KINETIC_") and environ.get(row.name):
            if row.verdict == ABSENT:
                yield row.name, _plain(row.why)
            elif row.name in WITHOUT_EFFECT and row.name.removeprefix("KINETIC_").lower() in ignored:
                yield row.name, _NO_CLUSTER


def unread_profiles(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the file of Keras Kinetic's profiles if there is one, and what is read instead."""
    path = os.path.join(environ.get("HOME", ""), ".kinetic", "profiles.json")
    return (path, _plain(_PROFILES)) if environ.get("HOME") and os.path.isfile(path) else None


def equivalent_command(words: Sequence[str]) -> str:
    """Return the counterpart of a command of Keras Kinetic; "" for another command, or for one of the same name."""
    rows = table()
    for count in (2, 1):
        command = " ".join(words[:count])
        row = rows.get(f"kinetic {command}")
        if row is not None and row.verdict == ABSENT:
            return f"Keras Kinetic's {command!r} is not here: {_plain(row.why)}"
        if row is not None and (count == 2 or len(words) == 1) and row.equivalent != f"kinor {command}":
            return f"Keras Kinetic's {command!r} is {row.equivalent!r} here"
    return ""


def _plain(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"\1", text)
