"""A module that a function of the package imports only when it runs."""

from __future__ import annotations

FACTOR = 3
