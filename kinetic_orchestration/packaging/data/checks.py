"""Refusals of data that the backend of a job cannot have, before anything is asked or sent."""

from __future__ import annotations

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.packaging.data import hub
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.values import Plan


def check(data: Data, plan: Plan) -> None:
    """Raise Unsupported unless the hosts of the job can have the data in the way that was asked for."""
    refused, in_place = f"is refused on the {plan.backend} backend", plan.traits.share_files
    if data.fuse and not in_place:
        raise Unsupported(
            f"{data!r} {refused}: nothing is mounted on its hosts; leave fuse out, and it is copied there before the "
            "function runs, or write stream=True in its place, and the function reads it where it is"
        )
    if data.is_gcs and in_place:
        raise Unsupported(f"Data({data.path!r}) {refused}: it reads no bucket; copy the data here and name the folder")
    if data.stream and not data.is_gcs and not in_place:
        raise Unsupported(
            f"{data!r} {refused}: its hosts cannot read a folder of this machine; put it into a bucket, and name it "
            "there (gs://…), or leave stream out, and it is sent"
        )
    if data.is_hf:
        _check_hub(data, refused)


def check_token(data: Data, plan: Plan) -> None:
    """Raise UsageError unless the hosts of the job get a token, which those of this machine have from here."""
    if plan.traits.share_files or hub.TOKEN in {*plan.secrets, *plan.secret_refs, *plan.env}:
        return
    raise UsageError(
        f"Data({data.path!r}) is private or gated, and the hosts of the job have no token for it: hand yours over with "
        f'capture_env_vars=["{hub.TOKEN}"], or name a secret that has one, with secrets={{"{hub.TOKEN}": "NAME"}}'
    )


def _check_hub(data: Data, refused: str) -> None:
    if "?" in data.path or data.hf_trust_remote_code:
        raise Unsupported(
            f"{data!r} {refused}: hosts fetch files of a repository (hf://datasets/OWNER/NAME@REVISION), and run no "
            "code of it; load rows in the function itself, with datasets.load_dataset(…)"
        )
    hub.parse(data.path)
