"""The schemas that the stand-ins for Terraform's providers serve: of Google's, the resources that a set-up needs.

Facts: google 6.50.0, as its bindings for the Terraform CDK have them (npm, @cdktf/provider-google 16.12.1: names, types,
what is required, which blocks may come once), and website/docs/r of hashicorp/terraform-provider-google for the rest;
hashicorp/time 0.13. Blocks and arguments that nobody needs here are left out: the real schemas have these and more,
which `python -m tests.support.terraform.real` checks where the real providers can be had.

`name:type` with `!` is required, with `?` optional, with `+` computed, with `?+` both of the latter.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_TYPES: Final = {"string": "string", "bool": "bool", "number": "number"}
_TYPES |= {"list": ["list", "string"], "set": ["set", "string"], "map": ["map", "string"]}  # type: ignore[dict-item]
_FLAGS: Final = {"!": ("required",), "?": ("optional",), "+": ("computed",), "?+": ("optional", "computed")}


def _schema(attributes: str, **blocks: Schema) -> Schema:
    found: Schema = {}
    for word in attributes.split():
        name, _, rest = word.partition(":")
        kind = rest.rstrip("!?+")
        found[name] = {"type": _TYPES[kind], **dict.fromkeys(_FLAGS[rest.removeprefix(kind)], True)}
    return {"attributes": found, "block_types": blocks} if blocks else {"attributes": found}


def _resource(attributes: str, **blocks: Schema) -> Schema:
    return _schema(f"id:string?+ {attributes}", **blocks)


def _nested(mode: str, attributes: str, *, least: int = 0, most: int = 0, **blocks: Schema) -> Schema:
    limits = {name: count for name, count in (("min_items", least), ("max_items", most)) if count}
    return {"nesting_mode": mode, "block": _schema(attributes, **blocks), **limits}


def _times(*names: str) -> Schema:
    return _nested("single", " ".join(f"{name}:string?" for name in names))


_CONDITION: Final = _nested("list", "title:string! description:string? expression:string!", most=1)
_ALLOWED: Final = _nested("set", "protocol:string! ports:list?")
_MADE: Final = _times("create", "update", "delete")

_GOOGLE: Final[dict[str, Schema]] = {
    "google_project_service": _resource(
        "project:string?+ service:string! disable_dependent_services:bool? disable_on_destroy:bool?",
        timeouts=_times("create", "read", "update", "delete"),
    ),
    "google_project_iam_custom_role": _resource(
        "role_id:string! title:string! description:string? permissions:set! project:string?+ stage:string? deleted:bool+ "
        "name:string+"
    ),
    "google_project_iam_member": _resource(
        "project:string! role:string! member:string! etag:string+", condition=_CONDITION
    ),
    "google_service_account": _resource(
        "account_id:string! display_name:string? description:string? disabled:bool? project:string?+ "
        "create_ignore_already_exists:bool? email:string+ member:string+ name:string+ unique_id:string+",
        timeouts=_times("create"),
    ),
    "google_service_account_iam_member": _resource(
        "service_account_id:string! role:string! member:string! etag:string+", condition=_CONDITION
    ),
    "google_storage_bucket": _resource(
        "name:string! location:string! project:string?+ labels:map? storage_class:string? force_destroy:bool? "
        "uniform_bucket_level_access:bool?+ public_access_prevention:string?+ requester_pays:bool? rpo:string?+ "
        "default_event_based_hold:bool? enable_object_retention:bool? effective_labels:map+ terraform_labels:map+ "
        "project_number:number+ self_link:string+ url:string+ time_created:string+ updated:string+",
        soft_delete_policy=_nested("list", "retention_duration_seconds:number? effective_time:string+", most=1),
        versioning=_nested("list", "enabled:bool!", most=1),
        logging=_nested("list", "log_bucket:string! log_object_prefix:string?+", most=1),
        encryption=_nested("list", "default_kms_key_name:string!", most=1),
        hierarchical_namespace=_nested("list", "enabled:bool!", most=1),
        lifecycle_rule=_nested(
            "list",
            "",
            action=_nested("set", "type:string! storage_class:string?", least=1, most=1),
            condition=_nested(
                "set",
                "age:number? created_before:string? custom_time_before:string? days_since_custom_time:number? "
                "days_since_noncurrent_time:number? matches_prefix:list? matches_storage_class:list? "
                "matches_suffix:list? noncurrent_time_before:string? num_newer_versions:number? send_age_if_zero:bool? "
                "with_state:string?+",
                least=1,
                most=1,
            ),
        ),
        timeouts=_times("create", "read", "update"),
    ),
    "google_storage_bucket_iam_member": _resource(
        "bucket:string! role:string! member:string! etag:string+", condition=_CONDITION
    ),
    "google_compute_network": _resource(
        "name:string! description:string? auto_create_subnetworks:bool? routing_mode:string?+ mtu:number?+ "
        "delete_default_routes_on_create:bool? project:string?+ gateway_ipv4:string+ network_id:string+ "
        "numeric_id:string+ self_link:string+",
        timeouts=_MADE,
    ),
    "google_compute_subnetwork": _resource(
        "name:string! network:string! region:string?+ ip_cidr_range:string?+ description:string? project:string?+ "
        "private_ip_google_access:bool?+ purpose:string?+ role:string? stack_type:string?+ creation_timestamp:string+ "
        "fingerprint:string+ gateway_address:string+ self_link:string+ subnetwork_id:number+",
        log_config=_nested(
            "list",
            "aggregation_interval:string? filter_expr:string? flow_sampling:number? metadata:string? "
            "metadata_fields:set?",
            most=1,
        ),
        timeouts=_MADE,
    ),
    "google_compute_firewall": _resource(
        "name:string! network:string! description:string? direction:string?+ disabled:bool? priority:number? "
        "source_ranges:set?+ destination_ranges:set?+ source_tags:set? source_service_accounts:set? target_tags:set? "
        "target_service_accounts:set? project:string?+ creation_timestamp:string+ self_link:string+",
        allow=_ALLOWED,
        deny=_ALLOWED,
        log_config=_nested("list", "metadata:string!", most=1),
        timeouts=_MADE,
    ),
    "google_compute_router": _resource(
        "name:string! network:string! region:string?+ description:string? project:string?+ "
        "encrypted_interconnect_router:bool? creation_timestamp:string+ self_link:string+",
        timeouts=_MADE,
    ),
    "google_compute_router_nat": _resource(
        "name:string! router:string! region:string?+ project:string?+ source_subnetwork_ip_ranges_to_nat:string! "
        "nat_ip_allocate_option:string? nat_ips:set? drain_nat_ips:set? auto_network_tier:string?+ type:string? "
        "enable_dynamic_port_allocation:bool?+ enable_endpoint_independent_mapping:bool?+ endpoint_types:list?+ "
        "min_ports_per_vm:number?+ max_ports_per_vm:number? icmp_idle_timeout_sec:number? udp_idle_timeout_sec:number? "
        "tcp_established_idle_timeout_sec:number? tcp_transitory_idle_timeout_sec:number? "
        "tcp_time_wait_timeout_sec:number?",
        log_config=_nested("list", "enable:bool! filter:string!", most=1),
        timeouts=_MADE,
    ),
}
_GOOGLE_DATA: Final = {
    "google_project": _resource(
        "project_id:string? number:string+ name:string+ org_id:string+ folder_id:string+ billing_account:string+ "
        "auto_create_network:bool+ deletion_policy:string+ labels:map+ effective_labels:map+ terraform_labels:map+ "
        "tags:map+"
    )
}

PROVIDERS: Final[dict[str, dict[str, Any]]] = {
    "google": {
        "provider": _schema(
            "project:string? region:string? zone:string? credentials:string? access_token:string? "
            "impersonate_service_account:string? billing_project:string? user_project_override:bool?"
        ),
        "resource_schemas": _GOOGLE,
        "data_source_schemas": _GOOGLE_DATA,
    },
    "time": {
        "provider": _schema(""),
        "resource_schemas": {
            "time_sleep": _schema("id:string+ create_duration:string? destroy_duration:string? triggers:map?")
        },
        "data_source_schemas": {},
    },
}

NUMBER: Final = "123456789012"  # of every project

# What a cloud adds to a resource, as far as it follows from what is asked.
_ADDED: Final = {
    ("google_service_account", "email"): "{account_id}@{project}.iam.gserviceaccount.com",
    ("google_service_account", "member"): "serviceAccount:{account_id}@{project}.iam.gserviceaccount.com",
    ("google_service_account", "name"): "projects/{project}/serviceAccounts/{account_id}@{project}.iam.gserviceaccount.com",
    ("google_project_iam_custom_role", "name"): "projects/{project}/roles/{role_id}",
    ("google_project_iam_custom_role", "id"): "projects/{project}/roles/{role_id}",
    ("google_compute_network", "id"): "projects/{project}/global/networks/{name}",
    ("google_compute_subnetwork", "id"): "projects/{project}/regions/{region}/subnetworks/{name}",
    ("google_compute_router", "id"): "projects/{project}/regions/{region}/routers/{name}",
    ("google_project", "number"): NUMBER,
    ("google_project", "id"): "projects/{project_id}",
}  # fmt: skip


def added(kind: str, name: str, asked: dict[str, Any], otherwise: object) -> object:
    """Return what a cloud would add as `name` to a resource of this kind; `otherwise` if nobody can know."""
    form = _ADDED.get((kind, name))
    return otherwise if form is None else form.format(**asked)
