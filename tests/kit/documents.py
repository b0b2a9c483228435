"""Stores of a user's own, as small as they get."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

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


class FileStore(SessionStore):
    """Four methods over a folder, for several processes: a file for each document, replaced as a whole."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def _find_file(self, session_id: str) -> Path:
        return self.folder / f"{quote(session_id, safe='')}.json"

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        written = self.folder / f"{os.getpid()}.part"
        written.write_text(json.dumps(data))
        written.replace(self._find_file(session_id))

    def load(self, session_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._find_file(session_id).read_text())
            return found
        except FileNotFoundError:
            return None

    def delete(self, session_id: str) -> bool:
        try:
            self._find_file(session_id).unlink()
            return True
        except FileNotFoundError:
            return False

    def list_sessions(self) -> list[str]:
        return [unquote(path.stem) for path in self.folder.glob("*.json")]
