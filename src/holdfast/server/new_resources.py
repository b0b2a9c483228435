"""New sessions over HTTP: the session that is created, the sessions that a caller may see, and the work_dir rule."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import InvalidArgument
from holdfast.server.auth import Caller
from holdfast.server.schemas.serializers import field_error
from holdfast.session.session import Session
from holdfast.stores.base import Log

WORK_ROOT_HINT = "start the server with --work-root PATH (or HOLDFAST_WORK_ROOTS)"


def find_own_session(caller: Caller, id: str) -> Session | None:
    """Return the session with this id if it exists and the caller may see it."""
    log = caller.store.find("session", id)
    return None if log is None or not may_see(caller, log) else Session.on_log(caller.store, log)


def may_see(caller: Caller, log: Log) -> bool:
    return caller.user is None or log.user_id == caller.user


class NewSession(Session):
    """A session that is created: an id that is taken raises SessionExists, also if another process was faster."""

    _open_or_create = Session._create_log


def resolve_work_dir(wanted_path: str, roots: Sequence[str | Path]) -> str:
    """Return the real path of a directory beneath a work root; raise InvalidArgument for every other path.

    Links are resolved first, and paths are compared segment by segment, never as texts. The session keeps the resolved
    path, so that a link that changes later leads nowhere else.
    """
    if not roots:
        raise _work_dir_error(f"this server has no work roots, so it takes no work_dir: {WORK_ROOT_HINT}")
    if not os.path.isabs(wanted_path):
        raise _work_dir_error("write work_dir as an absolute path")
    try:
        real = Path(os.path.realpath(wanted_path, strict=True))
        is_directory = real.is_dir()
    except (
        OSError,
        ValueError,
    ):  # missing, a loop of links, a NUL, too long: one error for all
        real, is_directory = None, False
    if real is None or not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise _work_dir_error(
            f"work_dir does not name a directory beneath a work root of this server: make it, or {WORK_ROOT_HINT}"
        )
    if not is_directory:
        raise _work_dir_error("work_dir is not a directory")
    return str(real)


def _work_dir_error(text: str) -> InvalidArgument:
    return field_error("work_dir", text)
