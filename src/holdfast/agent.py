"""The agent: who answers. It carries what it was given and opens sessions."""

from __future__ import annotations

from typing import Any

from holdfast.session import Session
from holdfast.stores.base import SessionStore, Store
from holdfast.stores.opening import open_store


class Agent:
    """A named configuration that opens sessions: `Agent(name="support", store=store).session()`."""

    def __init__(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        store: Store | SessionStore | str | None = None,
    ) -> None:
        self.name, self.description = name, description
        self.store: Store | None = None if store is None else open_store(store)

    def session(self, session_id: str | None = None, **options: Any) -> Session:  # noqa: ANN401 - those of Session
        """A session with this agent: opened if the id exists, else created. Takes what `Session` takes."""
        return Session(session_id, agent=self, **options)
