"""`python -m kinetic_orchestration.cli`, where the scripts are not on PATH."""

from __future__ import annotations

import sys

from kinetic_orchestration.cli import main

sys.exit(main())
