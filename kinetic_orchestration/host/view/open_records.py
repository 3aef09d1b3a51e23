"""Opens the records of a store, and a host's view of its attempt on them: below a folder, or in a bucket.

Imports only the kind that is asked for, since the other one is never needed in the same process.
"""

from __future__ import annotations

from kinetic_orchestration.host.machine import buckets

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol import wire
    from kinetic_orchestration.protocol.assignment import Assignment


def open_records(store: str) -> Any:
    """Return the records at an address, which ask again while the store refuses for a moment.

    Both kinds have the same verbs.
    """
    if buckets.in_bucket(store):
        return buckets.open_store(store)
    from kinetic_orchestration.host.view.retrying_records import RetryingRecords

    return RetryingRecords(store)


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
