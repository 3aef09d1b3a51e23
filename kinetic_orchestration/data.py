"""`Data`, where programs written for Keras Kinetic look for it."""

from __future__ import annotations

from kinetic_orchestration.plan.declare.data import Data

__all__ = ["Data"]
