"""The last write of a store, as far as it says that no write can succeed now. A server asks for it when it is asked
whether it is ready: reads may go on for a long time while every write fails."""

from __future__ import annotations

from holdfast.errors import StoreError, StoreFull, StorePoisoned, StoreReadOnly

LASTING_FAULTS = (StoreFull, StoreReadOnly, StorePoisoned)  # they stay until a person or another process acts


class WriteFaults:
    """The part of a store that says whether it takes writes."""

    @property
    def write_fault(self) -> StoreError | None:
        """The error of the last write, if it is one that stays: no space, no permission, a failed flush. None after a
        write that succeeded."""
        return None
