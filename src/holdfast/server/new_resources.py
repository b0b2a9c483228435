"""New sessions over HTTP: the session that is created, and the sessions that a caller may see."""

from __future__ import annotations

from holdfast.server.auth import Caller
from holdfast.session.session import Session
from holdfast.stores.base import Log


def find_own_session(caller: Caller, id: str) -> Session | None:
    """Return the session with this id if it exists and the caller may see it."""
    log = caller.store.find("session", id)
    return None if log is None or not may_see(caller, log) else Session.on_log(caller.store, log)


def may_see(caller: Caller, log: Log) -> bool:
    return caller.user is None or log.user_id == caller.user


class NewSession(Session):
    """A session that is created: an id that is taken raises SessionExists, also if another process was faster."""

    _open_or_create = Session._create_log
