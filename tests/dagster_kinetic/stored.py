"""The records of a run in Dagster, as its pages read them."""

from typing import Any

import dagster as dg


def logs_of(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """The captured logs, by their names in the menu of the run's page."""
    manager, found = instance.compute_log_manager, {}
    for entry in instance.all_logs(result.run_id):
        if entry.is_dagster_event and entry.dagster_event.event_type_value == "LOGS_CAPTURED":
            data = entry.dagster_event.logs_captured_data
            key = manager.build_log_key_for_run(result.run_id, data.file_key)
            found[data.step_keys[0]] = (manager.get_log_data(key).stdout or b"").decode()
    return found


def captured(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
    """The step's output in the UI, stdout and then stderr."""
    keys = [
        event.logs_captured_data.file_key for event in result.all_events if event.event_type_value == "LOGS_CAPTURED"
    ]
    manager = instance.compute_log_manager
    data = manager.get_log_data(manager.build_log_key_for_run(result.run_id, keys[0]))
    return (data.stdout or b"").decode() + (data.stderr or b"").decode()


def made_of(result: dg.ExecuteInProcessResult, key: str) -> dict[str, Any]:
    """The metadata of the one materialization of an asset."""
    [made] = [each for each in result.get_asset_materialization_events() if each.asset_key == dg.AssetKey(key)]
    return {name: value.value for name, value in made.materialization.metadata.items()}


def plotted(result: dg.ExecuteInProcessResult) -> list[str]:
    """The values of the last observation and materialisation that an asset's page plots, in its order."""
    seen = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    [made] = result.get_asset_materialization_events()
    told = {**seen[-1].metadata, **made.materialization.metadata}
    return sorted(
        name for name, value in told.items() if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
    )


def messages(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(result.run_id)]
