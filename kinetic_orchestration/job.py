"""The names of handles that version 0.1 pickled."""

from __future__ import annotations

from kinetic_orchestration.api.handle import JobHandle, _attached

__all__ = ["JobHandle", "_attached"]
