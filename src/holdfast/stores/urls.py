"""From what a user names (a URL, an object, nothing) to a store of logs."""

from __future__ import annotations

import atexit
import os
import threading

from holdfast.errors import InvalidArgument
from holdfast.stores.base import SessionStore, Store

_REQUIRED_METHODS = ("save", "load", "delete", "list_sessions")
_EXAMPLES = {"SQLiteStore": "SQLiteStore('sessions.db')", "PostgresStore": "PostgresStore('postgresql://host/name')"}
_lock = threading.Lock()
_by_url: dict[str, Store] = {}  # one store per URL and process, so that all its sessions share a writer
_adapters: dict[int, Store] = {}  # by identity; the adapter keeps its object alive, so an id is never used twice


def open_store(store: Store | SessionStore | str | None) -> Store:
    """The store behind an object, a URL, or None: `HOLDFAST_STORE`, else the memory of this process."""
    if isinstance(store, Store):
        return store
    if store is None:
        store = os.environ.get("HOLDFAST_STORE") or "memory:"
    if isinstance(store, str):
        return _store_for_url(store)
    if isinstance(store, type):
        name = store.__name__
        raise InvalidArgument(
            f"store={name} is a class: pass an object of it, such as {_EXAMPLES.get(name, f'{name}(...)')}"
        )
    missing = [name for name in _REQUIRED_METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise InvalidArgument(
            f"store={store!r} is no store: it lacks {', '.join(missing)}. "
            "Use SQLiteStore(path), PostgresStore(dsn), MemoryStore(), a URL, or a class with those four methods"
        )
    from holdfast.stores.document_store import DocumentStore

    with _lock:
        found = _adapters.get(id(store))
        if found is None or found.is_closed:
            found = _adapters[id(store)] = DocumentStore(store)
        return found


@atexit.register
def _close_all() -> None:
    """Close the stores that were opened by URL: no caller owns them."""
    for store in _by_url.values():
        store.close()


def _store_for_url(url: str) -> Store:
    with _lock:
        found = _by_url.get(url)
        if found is None or found.is_closed:
            found = _by_url[url] = _open_url(url)
        return found


def _open_url(url: str) -> Store:
    if url in ("memory:", "memory://"):
        from holdfast.stores.memory import MemoryStore

        return MemoryStore()
    if url.startswith("sqlite:///"):
        from holdfast.stores.sqlite import SQLiteStore

        return SQLiteStore(url.removeprefix("sqlite:///"), key=os.environ.get("HOLDFAST_KEY") or None)
    if url.startswith(("postgresql://", "postgres://")):
        from holdfast.stores.postgres import PostgresStore

        return PostgresStore(url, key=os.environ.get("HOLDFAST_KEY") or None)
    scheme = url.partition(":")[0][:20] if ":" in url else "(no scheme)"  # the rest may hold a password
    raise InvalidArgument(
        f"a store URL with {scheme!r} is not understood: use 'sqlite:///path/to/file.db' (four slashes for an absolute "
        "path), 'postgresql://user@host/database' or 'memory:'"
    )
