"""A place of Airflow's for secrets that takes its time, and has none."""

from __future__ import annotations

import time
from typing import Any

from airflow.sdk.bases.secrets_backend import BaseSecretsBackend


class SlowSecrets(BaseSecretsBackend):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get_connection(self, conn_id: str, team_name: str | None = None) -> Any:
        time.sleep(self.seconds)
