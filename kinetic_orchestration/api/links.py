"""Addresses of what a person can open in a browser. Pure: whether anything is there, it does not know."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from kinetic_orchestration.plan.configuration.store_address import bucket_path
from kinetic_orchestration.plan.declare.cloud import Compute, TpuVm
from kinetic_orchestration.protocol import names

CONSOLE = "https://console.cloud.google.com"
OBJECTS = "https://storage.cloud.google.com"  # shows an object to signed-in users who may read it


def view(store_url: str, name: str) -> str:
    """The page that shows an object in a bucket; of a file on this machine, or in a store without pages, its
    address."""
    if (path := bucket_path(store_url)) is not None:
        return f"{OBJECTS}/{quote(f'{path}/{name}')}"
    if "://" in store_url:
        return f"{store_url}/{name}"
    return (Path(store_url).absolute() / name).as_uri()


def browse(store_url: str, folder: str = "") -> str:
    """The page of a folder in a bucket; for one on this machine, its address as a file; in a store without pages, its
    address there."""
    if (path := bucket_path(store_url)) is not None:
        return f"{CONSOLE}/storage/browser/{quote('/'.join(filter(None, (path, folder))))}"
    if "://" in store_url:
        return "/".join(filter(None, (store_url, folder)))
    return (Path(store_url).absolute() / folder).as_uri()


def address_of(page: str) -> str:
    """The address in a store that such a page, or a file's address, shows; other text is returned unchanged."""
    for start, scheme in ((f"{CONSOLE}/storage/browser/", "gs://"), (f"{OBJECTS}/", "gs://"), ("file:///", "/")):
        if page.startswith(start):
            return scheme + unquote(page.removeprefix(start).partition("?")[0])
    return page


def of_job(store_url: str, job_id: str, project: str, options: type | None = TpuVm) -> dict[str, str]:
    """The pages where a person finds a job's records, and its slices, its VMs, or the objects of the project's
    clusters: `options` is the class of its backend's options."""
    hosts = {TpuVm: {"tpus_url": tpus(project)}, Compute: {"vms_url": vms(project)}}
    found = hosts.get(options or TpuVm, {"workloads_url": workloads(project)})
    return {"records_url": browse(store_url, names.job(job_id)), **found}


def workloads(project: str) -> str:
    """The page of all workloads in the clusters of a project."""
    return f"{CONSOLE}/kubernetes/workload/overview?project={quote(project)}"


def vms(project: str) -> str:
    """The page of all VMs of Compute Engine of a project."""
    return f"{CONSOLE}/compute/instances?project={quote(project)}"


def tpus(project: str) -> str:
    """The page of all Cloud TPUs of a project."""
    return f"{CONSOLE}/compute/tpus?project={quote(project)}"
