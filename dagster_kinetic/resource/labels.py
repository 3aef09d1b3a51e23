"""Labels of the cloud's resources that name the run that asked for a job: bills are grouped by them, and they lead to
it.

The text is Dagster's; the backend knows which characters a label may hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_kinetic import _compat

_OWN_NAMES = {"dagster/job": "pipeline", "dagster/run-id": "run"}  # as jobs of all orchestrators have them
_TEAM = "team:"  # leads an asset's owner that is no address


def labels_of(context: _compat.Context) -> dict[str, str]:
    """pipeline, step, run, asset, owner, and what else Dagster knows of its run: partition, location, commit."""
    info: Mapping[str, str] = _compat.execution_info(context)
    told = {_OWN_NAMES.get(name, name.replace("/", "-")): value for name, value in info.items()}
    assets = _compat.specs_of(context)
    told["step"] = _compat.step_key(context)
    if len(assets) == 1:
        told["asset"] = assets[0].key.to_user_string()
    owners = [owner for spec in assets for owner in spec.owners]
    owner = owners[0].removeprefix(_TEAM) if owners else info.get("dagster/user", "")
    return {name: value for name, value in {**told, "owner": owner}.items() if value}
