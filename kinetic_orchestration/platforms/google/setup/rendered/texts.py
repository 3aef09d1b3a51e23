"""The parts of the Terraform module that no row of the table decides."""

from __future__ import annotations

import json
from typing import Final

from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import variables

VERSIONS: Final = """\
terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6, < 9"
    }
    time = {
      source  = "hashicorp/time"
      version = ">= 0.9, < 1"
    }
  }
}
"""

OUTPUTS: Final = f"""\
output "store" {{
  description = "Where jobs keep their records: KINETIC_STORE."
  value       = "gs://${{google_storage_bucket.store.name}}/{table.FOLDER}"
}}

output "service_account" {{
  description = "Email of the account of the machines: KINETIC_SERVICE_ACCOUNT."
  value       = local.machines
}}

output "network" {{
  description = "Network of the machines: KINETIC_NETWORK."
  value       = var.create_network ? google_compute_network.hosts[0].name : var.network
}}

output "subnetwork" {{
  description = "Subnetwork of the machines: KINETIC_SUBNETWORK; null: the network's own."
  value       = one(google_compute_subnetwork.hosts[*].name)
}}
"""

MINIMAL: Final = """\
# A bucket, an account and its rights. Who applies it owns the project, and submits jobs.
module "kinetic" {
  source = "../.."

  project_id = "my-project"
  region     = "us-west4"
}

output "store" {
  value = module.kinetic.store
}
"""

FULL: Final = """\
# A network without external addresses, two who submit jobs and may open shells, and a bucket of a given name.
module "kinetic" {
  source = "../.."

  project_id     = "my-project"
  project_number = "123456789012"
  region         = "us-west4"
  bucket         = "my-project-training"
  create_network = true
  network        = "kinetic"
  range          = "10.128.0.0/20"
  shell          = true
  submitters     = ["group:research@example.com", "serviceAccount:dagster@my-project.iam.gserviceaccount.com"]
}

output "store" {
  value = module.kinetic.store
}

output "network" {
  value = module.kinetic.network
}
"""

# Rows of checkov's rules, and why each is as it is: https://www.checkov.io/5.Policy%20Index/terraform.html
FINDINGS: Final = {
    "Bucket": (
        "checkov:skip=CKV_GCP_62: what is written, and by whom, is in the jobs' own records.",
        "checkov:skip=CKV_GCP_78: heartbeats and logs are overwritten every few seconds; each version would stay.",
    ),
    "Subnetwork": ("checkov:skip=CKV_GCP_26: hosts of a slice send gigabytes to each other each second.",),
}

_README: Final = """\
# Kinetic Orchestration on a Google project

What `kinor init` makes, as a module for Terraform: a bucket for the records of jobs, an account for their machines, the
roles of both, and on request a network. `kinor init --dry-run --terraform DIR` writes it, from the table that
`kinor init` itself makes everything from, with the answers in `terraform.tfvars`:

```sh
terraform init
terraform apply
```

It has no provider block: credentials are those of the environment, the project is named at each resource. Whoever
applies it needs the roles that `kinor init` names: `roles/serviceusage.serviceUsageAdmin`,
`roles/iam.serviceAccountAdmin`, `roles/iam.roleAdmin`, `roles/resourcemanager.projectIamAdmin`, `roles/storage.admin`,
and with a network `roles/compute.networkAdmin` and `roles/compute.securityAdmin`; an owner has all of them.

* **Bindings are members** (`google_…_iam_member`): no binding of others is touched.
* **Soft delete of the bucket is off**: heartbeats and logs are overwritten, and each version would be kept and billed.
* **APIs stay enabled** after `terraform destroy`, and the bucket stays as long as something is in it.
* **The account of Cloud TPU itself** is made by Google, with the first TPU of the project, and is not part of this.
* A role that was deleted keeps its id for a while. After `destroy` and `apply` within 37 days, bring it back first:
  `gcloud iam roles undelete ID --project=PROJECT`, then `terraform import`.
* What checkov finds is answered in `main.tf`, within each resource.

What this module has made, `terraform destroy` takes back, and not `kinor deinit`.

<!-- BEGIN_TF_DOCS -->
## Requirements

| Name | Version |
|------|---------|
| terraform | >= 1.5 |
| google | >= 6, < 9 |
| time | >= 0.9, < 1 |

## Inputs

| Name | Description | Type | Default | Required |
|------|-------------|------|---------|:--------:|
{inputs}

## Outputs

| Name | Description |
|------|-------------|
| network | Network of the machines: KINETIC\\_NETWORK. |
| service\\_account | Email of the account of the machines: KINETIC\\_SERVICE\\_ACCOUNT. |
| store | Where jobs keep their records: KINETIC\\_STORE. |
| subnetwork | Subnetwork of the machines: KINETIC\\_SUBNETWORK; null: the network's own. |
<!-- END_TF_DOCS -->
"""


def readme() -> str:
    """Return the module's page, with its variables as terraform-docs would write them."""
    rows = sorted(variables.VARIABLES, key=lambda each: (each.default is not None, each.name))
    return _README.replace("{inputs}", "\n".join(map(_row, rows)))


def _row(variable: variables.Variable) -> str:
    default = "n/a" if variable.default is None else f"`{json.dumps(variable.default)}`"
    name = variable.name.replace("_", "\\_")
    needed = "yes" if variable.default is None else "no"
    return f"| {name} | {variable.description} | `{variable.type}` | {default} | {needed} |"
