"""Addresses of what a person opens in a browser."""

from __future__ import annotations

import pytest

from kinetic_orchestration.api import links
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes

pytestmark = pytest.mark.fast


def test_a_job_in_the_cloud_has_pages_of_its_records_and_of_its_slices():
    assert links.of_job("gs://bucket/kinetic/prod", "job-1", "my-project") == {
        "records_url": "https://console.cloud.google.com/storage/browser/bucket/kinetic/prod/jobs/job-1/",
        "tpus_url": "https://console.cloud.google.com/compute/tpus?project=my-project",
    }


def test_a_job_on_vms_has_the_page_of_the_projects_vms():
    assert links.of_job("gs://bucket/kinetic/prod", "job-1", "my-project", Compute) == {
        "records_url": "https://console.cloud.google.com/storage/browser/bucket/kinetic/prod/jobs/job-1/",
        "vms_url": "https://console.cloud.google.com/compute/instances?project=my-project",
    }


def test_a_job_in_a_cluster_of_google_has_pages_of_its_records_and_of_the_clusters_workloads():
    assert links.of_job("gs://bucket/kinetic/prod", "job-1", "my-project", Kubernetes) == {
        "records_url": "https://console.cloud.google.com/storage/browser/bucket/kinetic/prod/jobs/job-1/",
        "workloads_url": "https://console.cloud.google.com/kubernetes/workload/overview?project=my-project",
    }


def test_what_is_odd_in_a_path_is_quoted():
    assert (
        links.browse("gs://bucket/a b", "ü") == "https://console.cloud.google.com/storage/browser/bucket/a%20b/%C3%BC"
    )
    assert links.browse("gs://bucket/out") == "https://console.cloud.google.com/storage/browser/bucket/out"


def test_a_folder_on_this_machine_is_a_file(tmp_path):
    assert links.browse(str(tmp_path), "jobs") == f"{tmp_path.as_uri()}/jobs"


def test_a_store_that_has_no_pages_is_shown_by_its_address():
    assert links.browse("box://there/prod", "jobs/") == "box://there/prod/jobs/"
    assert links.browse("box://there/prod") == links.address_of("box://there/prod") == "box://there/prod"
    assert links.view("box://there/prod", "a/b") == "box://there/prod/a/b"
