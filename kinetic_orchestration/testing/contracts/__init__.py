"""Contracts of every store and every backend, as classes of pytest's that the author of one inherits.

The test session of an author collects these classes, so their assertions tell what they compared as a test's own do.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.store", f"{__name__}.backend")
