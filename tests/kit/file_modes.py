"""The modes of the files that SQLite opens, seen at the moment when it opens them."""

from __future__ import annotations

import os
from typing import Self

import apsw


class ModeVFS(apsw.VFS):
    """Notes the mode that each file has at the moment when SQLite opens it, and just after."""

    def __init__(self) -> None:
        self.name = f"modes{id(self)}"
        self.modes: list[tuple[str, int]] = []
        super().__init__(self.name, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unregister()

    def _note(self, path: str) -> None:
        try:
            self.modes.append((os.path.basename(path), os.stat(path).st_mode & 0o777))
        except FileNotFoundError:
            pass

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is not None:
            self._note(path)
        file = apsw.VFSFile("", name, flags)
        if path is not None:
            self._note(path)
        return file
