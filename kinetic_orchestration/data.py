"""`Data`, at the path from which programs written for Keras Kinetic import it."""

from __future__ import annotations

from kinetic_orchestration.plan.declare.data import Data

__all__ = ["Data"]
