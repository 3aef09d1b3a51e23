"""Values that are kept in Secret Manager for the hosts of a job, and are this deployment's by their labels."""

from __future__ import annotations

from collections.abc import Iterator

from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names


class KeptSecrets:
    """Acts with the credentials of whoever made it, on any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._acting = credentials.as_now()
        self._mark = names.mark(settings.store, settings.deployment)
        self._kept: set[tuple[str, int]] = set()  # attempts whose secrets are there

    def keep(self, asked: Submission) -> None:
        """Store the secrets of an attempt before its hosts exist; a repeated call finds them stored.

        Raises:
            BackendError: Secret Manager refused.
        """
        attempt = asked.job_id, asked.intent.attempt
        if attempt in self._kept:
            return
        labels = {ownership.DEPLOYMENT: resource_labels.label(self._settings.deployment), **self._labels(asked.job_id)}
        with self._acting():
            for variable, value in asked.secrets.items():
                name = names.secret(asked.job_id, variable)
                secret_manager.put(self._settings, name, value, asked.intent.deadline, labels)
        self._kept.add(attempt)

    def secrets(self) -> Iterator[tuple[str, str]]:
        """Yield the job and the secret's name for each secret that was stored for a job of this deployment."""
        with self._acting():
            found = list(secret_manager.with_label(self._settings, ownership.MARK, self._mark))
        for kept in found:
            yield kept.labels.get(ownership.JOB, ""), kept.resource

    def forget(self, secret: str, job_id: str) -> bool:
        """Remove one of them, if its labels name this deployment and the job; True once it is gone."""
        with self._acting():
            return secret_manager.delete(self._settings, secret, self._labels(job_id))

    def _labels(self, job_id: str) -> dict[str, str]:
        return {ownership.MARK: self._mark, ownership.JOB: resource_labels.label(job_id)}
