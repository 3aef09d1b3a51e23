"""The documents that a real API server publishes of its API: asked for once, and kept beside its programs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tests.support import go_programs
from tests.support.exchanges.openapi import Documents
from tests.support.kubernetes.control_plane import ControlPlane


def documents() -> Documents | None:
    """Return the documents, for which a server of this machine may run for a moment; None where none was ever built."""
    built = go_programs.known_control_plane()
    if built is None:
        return None
    kept = built.with_name(f"{built.name}.openapi.json")
    with go_programs.locked(kept.with_suffix(".lock")):  # of the workers of a first run, one asks
        if not kept.exists():
            with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder, "plane"), built) as real:
                found = real.documents()
            fresh = kept.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(found), encoding="utf-8")
            fresh.replace(kept)
    return Documents(json.loads(kept.read_text(encoding="utf-8")))
