"""Making things over HTTP: the work_dir they may have, and the same thing for the same Idempotency-Key.

A server may die between making something and remembering its answer. So the id that a key makes is noted before it is
made; whoever repeats the request finds the note, and what was made under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

from holdfast.errors import InvalidArgument, SessionExists
from holdfast.log.events import Draft
from holdfast.policy.retention import Retention
from holdfast.server.agent_catalog import AgentExists
from holdfast.server.auth import Who
from holdfast.server.idempotency import KEPT, scope_of
from holdfast.server.schemas.serializers import refused
from holdfast.session.session import Session
from holdfast.stores.base import Log

SPACE = "made"
T = TypeVar("T")
FLAG = "start the server with --work-root PATH (or HOLDFAST_WORK_ROOTS)"


def made_once(
    who: Who, request: Request, asked: str | None, find: Callable[[str], T | None], make: Callable[[str], T]
) -> T:
    """What `make` makes under the asked id, or a new one; or what an earlier try of the same request made."""
    store, place = who.store, scope_of(request, who)
    id = asked or store.ids.new()
    if place is None:
        return make(id)
    expires = store.ids.now() + KEPT
    noted = store.put_slip(SPACE, place, id.encode(), only_new=True, expires=expires)
    if noted is not None and (asked is None or noted == asked.encode()):
        id = noted.decode()
        found = find(id)
        if found is not None:
            return found
    elif noted is not None:  # of an earlier request with this key, which failed
        store.put_slip(SPACE, place, id.encode(), expires=expires)
    try:
        return make(id)
    except (AgentExists, SessionExists):
        store.drop_slip(SPACE, place)  # it was not ours: the next try must not take it for that
        raise


def own_session(who: Who, id: str) -> Session | None:
    """A session of theirs, if it is there."""
    log = who.store.find("session", id)
    return None if log is None or not sees(who, log) else Session._of(who.store, log)


def sees(who: Who, log: Log) -> bool:
    return who.user is None or log.user_id == who.user


class NewSession(Session):
    """A session that is made, and never one that was there before, however close the race."""

    def _open_or_create(
        self,
        name: str,
        fields: dict[str, Any],
        first: list[Draft],
        user_id: str | None,
        app_name: str | None,
        kept: Retention | None,
    ) -> Log:
        created = [Draft(type="session.created", data=fields)]
        if kept is not None:
            created.append(Draft(type="retention.set", data=kept.to_dict()))
        return self.store.create("session", name, [*created, *first], user_id=user_id, app_name=app_name)


def allowed_work_dir(asked: str, roots: Sequence[str | Path]) -> str:
    """The real path of a directory beneath a root. Links are resolved first and paths compared step by step, never as
    texts; what is kept is the resolved path, so a link that changes later leads nowhere else."""
    if not roots:
        raise _refused(f"this server has no work roots, so it takes no work_dir: {FLAG}")
    if not os.path.isabs(asked):
        raise _refused("write work_dir as an absolute path")
    try:
        real = Path(os.path.realpath(asked, strict=True))
        is_directory = real.is_dir()
    except (OSError, ValueError):  # not there, a loop of links, a NUL, too long: what lies outside is not told apart
        real, is_directory = None, False
    if real is None or not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise _refused(f"work_dir does not name a directory beneath a work root of this server: make it, or {FLAG}")
    if not is_directory:
        raise _refused("work_dir is not a directory")
    return str(real)


def _refused(text: str) -> InvalidArgument:
    return refused("work_dir", text)
