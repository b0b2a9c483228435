"""Stores of logs. A store knows nothing of models, agents or the rules of sessions.

The names are loaded when asked for, so that `import holdfast` does not pay for drivers that are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.stores.base import SessionStore
    from holdfast.stores.memory import MemoryStore
    from holdfast.stores.postgres import PostgresStore
    from holdfast.stores.sqlite import SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "SQLiteStore", "SessionStore"]

_HOMES = {"MemoryStore": "memory", "PostgresStore": "postgres", "SQLiteStore": "sqlite", "SessionStore": "base"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
