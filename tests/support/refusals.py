"""Lists the jobs that can never be, and have to be refused while they are declared: the same table for `run`, Dagster and Airflow.

Each row is the options, variables of the process, and what the refusal says: what is wrong, where, and what to do.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """Options, as JSON; variables; and a pattern of what is said."""

    options: dict[str, Any]
    environ: dict[str, str]
    says: str


GPU_IMAGE = "us-docker.pkg.dev/p/images/train-cuda12:7"
REFUSALS = {
    "an image for GPUs on TPUs": Refusal(
        {"accelerator": "v5e-8", "container_image": GPU_IMAGE}, {},
        rf"container_image='{GPU_IMAGE}' is for GPUs, and v5e-8 has TPUs: leave it out, or name an accelerator with GPUs",
    ),
    "a runtime of TPUs on GPUs": Refusal(
        {"accelerator": [{"accelerator": "l4", "cloud": {"runtime_version": "v2-alpha-tpuv6e"}}]}, {},
        r"runtime_version='v2-alpha-tpuv6e'\) is for TPUs, and l4 has GPUs: leave it out",
    ),
    "an image for one of two": Refusal(
        {"accelerator": ["v5e-8", "l4"], "container_image": GPU_IMAGE}, {},
        r"in the choice of v5e-8: container_image=.* is for GPUs, and v5e-8 has TPUs: .*Choice",
    ),
    "a share that this job can never fit in": Refusal(
        {"accelerator": "v5e-8"}, {"KINETIC_CHIPS": "v5e=4,total=64"},
        r"v5e-8 takes 8 chips of the share v5e=4, and so could never run\. Ask for fewer chips, or raise the share: "
        r"KINETIC_CHIPS='v5e=4,total=64'",
    ),
    "a share that no choice can ever fit in": Refusal(
        {"accelerator": ["v5e-8", "v6e-8"], "capacity": ["spot"]}, {"KINETIC_CHIPS": "v5e=4,v6e=4"},
        r"v5e-8, spot takes 8 chips of the share v5e=4, .*; v6e-8, spot takes 8 chips of the share v6e=4",
    ),
    "a share that no job at all can ever fit in": Refusal(
        {"accelerator": "v5e-8"}, {"KINETIC_CHIPS": "v5e=64,v5p=2"},
        r"KINETIC_CHIPS has 'v5p=2', and the smallest slice of v5p has 4 chips: no job could ever run in that share\. "
        r"Raise it to 4 or more, or leave it out",
    ),
    "keep on GKE": Refusal(
        {"accelerator": "v5e-8", "keep": "10m", "backend": "gke"}, {},
        r"keep= is not possible on the gke backend: a pod ends with its program.* leave keep out",
    ),
    "keep of a container": Refusal(
        {"accelerator": "v5e-8", "keep": "10m", "container_image": "us-docker.pkg.dev/p/images/train:7"}, {},
        r"keep= with container_image= is not possible: what a container leaves .*; leave one of them out",
    ),
    "keep of several processes": Refusal(
        {"accelerator": "l4x4", "keep": "10m", "processes": "gpu"}, {},
        r"keep= with processes= is not possible: no agent of several .*; leave one of them out",
    ),
    "a budget of a month in euros": Refusal(
        {"accelerator": "v5e-8"}, {"KINETIC_BUDGETS": "retrain=500EUR"},
        r"KINETIC_BUDGETS has 'retrain=500EUR': budgets are in US dollars, .* write retrain=500USD",
    ),
    "a budget of a job in euros": Refusal(
        {"accelerator": [{"accelerator": "v5e-8", "limits": {"cost": "40EUR"}}]}, {},
        r"limits\.cost is '40EUR': give US dollars, as list prices are, as a number such as 40",
    ),
    "a batch that one size cannot divide": Refusal(
        {"accelerator": ["v5e-16", "v5e-8"], "global_batch": 30}, {},
        r"global_batch=30 cannot be divided among the hosts of v5e-16 \(4 hosts\); v5e-8 would do",
    ),
    "a batch that no size divides": Refusal(
        {"accelerator": ["v5e-16", "v5e-32"], "reshard": True, "global_batch": 30}, {},
        r"global_batch=30 cannot be divided among the hosts of v5e-16 \(4 hosts\).*give a batch that",
    ),
    "a batch that no job can have": Refusal(
        {"accelerator": "v5e-8", "global_batch": 10**30}, {},
        r"global_batch is 1000000000000000000000000000000: give the samples of one step",
    ),
    "the same accelerator by two of its names": Refusal(
        {"accelerator": ["v5e-8", "v5litepod-8"]}, {}, r"accelerator names v5e-8 twice, also as v5litepod-8: keep one",
    ),
    "the same purchase, said and not said": Refusal(
        {"accelerator": ["v5e-8", {"accelerator": "V5E-8", "capacity": "on-demand"}]}, {},
        r"accelerator names v5e-8 twice, also as V5E-8, on-demand: keep one",
    ),
    "a way that the API which is named lacks": Refusal(
        {"accelerator": ["v6e-8", "v5e-8"], "capacity": ["spot", "flex-start"], "backend": "tpu-vm"}, {},
        r"in the choice of v6e-8, flex-start: v6e-8 does not come by flex-start on the tpu-vm backend, .*"
        r"VMs with backend='compute' do",
    ),
    "GPUs on an API of TPUs": Refusal(
        {"accelerator": ["v5e-8", "h100x8"], "backend": "tpu-vm"}, {},
        r"in the choice of h100x8: h100x8 is no TPU, and the tpu-vm backend runs TPUs alone: .*backend='compute'",
    ),
    "a way in which no such VM comes": Refusal(
        {"accelerator": "h100x4", "capacity": ["on-demand"], "backend": "compute"}, {},
        r"h100x4 \(a3-highgpu-4g\) does not come on demand: add spot=True",
    ),
    "a run that flex-start does not give": Refusal(
        {
            "accelerator": [{"accelerator": "v6e-8", "capacity": ["flex-start"], "limits": {"run": "200h"}}],
            "backend": "compute",
        },
        {},
        r"limits\.run is 200h, and flex-start gives a VM for 10 minutes to 7 days, .*choose a limit from 10m to 167h",
    ),
    "options of a cluster on VMs": Refusal(
        {"accelerator": ["v6e-8", {"accelerator": "v5e-8", "cloud": {"queue": "tpus"}}], "backend": "tpu-vm"}, {},
        r"in the choice of v5e-8: cloud=Kubernetes\(…\) has options of gke and kubernetes, and backend='tpu-vm' is named",
    ),
    "a cluster beside VMs": Refusal(
        {
            "accelerator": [
                {"accelerator": "v6e-8", "cloud": {"runtime_version": "v2-alpha-tpuv6e"}},
                {"accelerator": "v5e-8", "cloud": {"queue": "tpus"}},
            ]
        },
        {},
        r"choices with cloud=Kubernetes\(…\) and with cloud=TpuVm\(…\) cannot be chosen together: leave one kind out",
    ),
}  # fmt: skip

# The same things where they may be, or where only the launch can tell.
ALLOWED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "one choice fits": ({"accelerator": ["v5e-8", "v5e-4"]}, {"KINETIC_CHIPS": "v5e=4"}),
    "another generation": ({"accelerator": "v5e-8"}, {"KINETIC_CHIPS": "v5p=4,user:*=2,pipeline:other=1"}),
    "no chips": ({"accelerator": "cpu"}, {"KINETIC_CHIPS": "v5e=1,total=1"}),
    "a queue of the cluster decides": ({"accelerator": "v5e-8", "backend": "gke"}, {"KINETIC_CHIPS": "v5e=4"}),
    "one process for the one GPU": ({"accelerator": "l4", "keep": "10m", "processes": "gpu"}, {}),
    "nothing is kept on this machine": (
        {"accelerator": "v5e-8", "keep": "10m", "container_image": "a/train:7", "backend": "local"}, {}
    ),
    "an image for GPUs of a project that is named by TPUs": (
        {"accelerator": "l4", "container_image": "docker.pkg.dev/tpu-pytorch-releases/docker/xla:r2.1_cuda_12.1"}, {}
    ),
    "the same accelerator for another time": (
        {"accelerator": ["v5e-8", {"accelerator": "v5litepod-8", "limits": {"run": "2h"}}]}, {}
    ),
    "flex-start for as long as it comes, beside another way": (
        {
            "accelerator": [{"accelerator": "v6e-8", "limits": {"run": "200h"}}], "capacity": ["flex-start", "spot"],
            "backend": "compute",
        },
        {},
    ),
    "an API of TPUs by its name": ({"accelerator": "v5e-8", "backend": "tpu-vm"}, {}),
    "a way that a cluster may have": ({"accelerator": "v5e-8", "capacity": ["flex-start"]}, {}),
    "what VMs have under another name": (
        {"accelerator": [{"accelerator": "v6e-8", "cloud": {"zones": ["us-east5-a"]}}], "backend": "compute"}, {}
    ),
    "dollars": ({"accelerator": "v5e-8"}, {"KINETIC_BUDGETS": "retrain=500USD,*=$300:warn"}),
}  # fmt: skip
