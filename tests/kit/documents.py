"""A user's own store, as small as it gets."""

from __future__ import annotations

import json
from typing import Any

from holdfast.stores import SessionStore


class DictStore(SessionStore):
    """A user's own store: four methods over a dict of JSON texts."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.kept[session_id] = json.dumps(data)

    def load(self, session_id: str) -> dict[str, Any] | None:
        text = self.kept.get(session_id)
        return None if text is None else json.loads(text)

    def delete(self, session_id: str) -> bool:
        return self.kept.pop(session_id, None) is not None

    def list_sessions(self) -> list[str]:
        return list(self.kept)
