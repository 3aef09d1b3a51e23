"""Opens a host's view of its attempt: on files, or on a bucket. Imports only the kind that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.host.view.open_records import open_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol import wire
    from kinetic_orchestration.protocol.assignment import Assignment


def open_view(at: Assignment, compose: Callable[[], wire.Beat], wake: Callable[[], None]) -> View:
    """Return the view of the assignment's store. It starts nothing before its `open`.

    compose: gives this host's beat, on any thread. wake: is called when something new was seen.
    """
    records = open_records(at.store)
    if records.has_files:
        from kinetic_orchestration.host.view.files import FileView

        return FileView(records, at)
    from kinetic_orchestration.host.view.bucket import BucketView

    return BucketView(records, at, compose, wake)
