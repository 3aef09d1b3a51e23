"""The table of a set-up as others read it: lines of gcloud, and a module for Terraform."""

from __future__ import annotations

from typing import Final

LOOKED_UP: Final = "000000000000"  # as the number of a project, which none has: a rendering looks it up
