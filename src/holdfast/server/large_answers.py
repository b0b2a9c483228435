"""The memory of large answers while they are built: a tenant builds few of them at once.

Once an answer is sent, `RequestLimits.answer_bytes` counts it. Before that its size is not known, and building it takes
several times its size. So a thread takes a place before it reads much more than `LARGE` bytes for one answer.
"""

from __future__ import annotations

import threading
from types import TracebackType

from holdfast.errors import TooManyRequests
from holdfast.server.auth import Caller
from holdfast.server.rate_limits import SLOT_RETRY_SECONDS, Slots
from holdfast.session.session import Session

LARGE = 1 << 20  # bytes of rows and files
PLACES_PER_TENANT, PLACES = 2, 4  # a tenant always has its first place, whatever the other tenants build
PATIENCE = 20.0  # seconds that a thread waits for a place; a large answer takes about one


class LargeAnswers:
    """The places of a server in which large answers are built."""

    def __init__(self, sending: Slots) -> None:
        self._sending = sending
        self._has_room = threading.Condition()
        self._built: dict[str, int] = {}  # by tenant

    def begin(self, caller: Caller) -> GrowingAnswer:
        """Begin to build an answer, on a thread that may wait."""
        return GrowingAnswer(self, caller)

    def take_place(self, caller: Caller) -> None:
        """Wait for a place. Raises TooManyRequests if clients of this key do not take the answers that it has."""
        self._sending.check(caller.key_id, caller.tenant, LARGE)
        with self._has_room:
            if not self._has_room.wait_for(lambda: self._may_build(caller.tenant), PATIENCE):
                raise TooManyRequests(
                    "this tenant has as many large answers under way as it may", retry_after=SLOT_RETRY_SECONDS
                )
            self._built[caller.tenant] = self._built.get(caller.tenant, 0) + 1
        try:
            self._sending.check(caller.key_id, caller.tenant, LARGE)  # again: others were sent while this one waited
        except TooManyRequests:
            self.leave_place(caller.tenant)
            raise

    def leave_place(self, tenant: str) -> None:
        with self._has_room:
            left = self._built[tenant] - 1
            if left:
                self._built[tenant] = left
            else:
                del self._built[tenant]
            self._has_room.notify_all()

    def _may_build(self, tenant: str) -> bool:
        mine = self._built.get(tenant, 0)
        return not mine or (mine < PLACES_PER_TENANT and sum(self._built.values()) < PLACES)


def estimate_bytes(session: Session) -> int:
    """The bytes of all messages of a session, roughly: its tokens are estimated from them. Files do not count."""
    return 4 * session.store.head(session.log).tokens


class GrowingAnswer:
    """An answer that is being built. A context manager: its place is free when the block ends."""

    def __init__(self, answers: LargeAnswers, caller: Caller) -> None:
        self._answers, self._caller = answers, caller
        self._has_place = False
        self.size = 0  # bytes that were read for it

    def add(self, size: int) -> int:
        """Count bytes that were read, and return how many there are; above `LARGE`, wait for a place."""
        self.size += size
        if self.size > LARGE and not self._has_place:
            self._answers.take_place(self._caller)
            self._has_place = True
        return self.size

    def add_whole_session(self) -> None:
        """Count a whole session with its files. The size is not known, so it counts as large."""
        self.add(LARGE + 1)

    def __enter__(self) -> GrowingAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_place:
            self._has_place = False
            self._answers.leave_place(self._caller.tenant)
