"""The names of a batch's failures that version 0.1 pickled."""

from __future__ import annotations

from kinetic_orchestration.api.batch import BatchError, BatchHandle

__all__ = ["BatchError", "BatchHandle"]
