"""Opens the records that a host or its program was told of: below a folder, or in a bucket.

Imports only the kind that is asked for, since the other one is never needed in the same process.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from typing import Any


def open_records(store: str) -> Any:
    """Return the records at an address, which ask again while the store refuses for a moment.

    Both kinds have the same verbs.
    """
    if store.startswith("gs://"):
        from kinetic_orchestration.host.machine.bucket_records import CloudRecords

        return CloudRecords(store)
    from kinetic_orchestration.host.view.retrying_records import Patient

    return Patient(store)
