"""Work directories on a server: a session uses the folder of its owner beneath a work root, and no other.

The folder is `tenant/user`. A session without a user may use the whole folder of its tenant, and one without tenant and
user the whole root: only keys without a user reach such sessions. A path is checked when it is set and again by every
tool that uses it, because links change, and because the library and imports set work_dirs as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.errors import ToolError
from holdfast.server.schemas.serializers import field_error
from holdfast.session.session import Session

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent
    from holdfast.stores.base import Log, Store

WORK_ROOT_HINT = "start the server with --work-root PATH (or HOLDFAST_WORK_ROOTS)"
NO_TENANT = "@"  # stands for the tenant "", and is the encoded name of no tenant
_ENCODED = re.compile(rb"[^a-z0-9_-]")


def folder_of(tenant: str, user: str | None) -> str:
    """Return the folder of an owner, relative to a work root; "" is the root itself.

    Everything but small letters, digits, "_" and "-" is percent-encoded. So no name leads elsewhere, and no file system
    takes two names for one, also if it ignores case or normalizes Unicode.
    """
    if user is None:
        return _encode_name(tenant)
    return f"{_encode_name(tenant) or NO_TENANT}/{_encode_name(user)}"


def _encode_name(name: str) -> str:
    return _ENCODED.sub(lambda match: b"%%%02X" % match.group()[0], name.encode()).decode("ascii")


def resolve_work_dir(wanted_path: str, roots: Sequence[str | Path], *, tenant: str, user: str | None) -> str:
    """Return the real path of a directory in the folder of an owner; raise InvalidArgument for every other path.

    Links are resolved first, and paths are compared segment by segment, never as texts. The session keeps the resolved
    path.
    """
    if not roots:
        raise field_error("work_dir", f"this server has no work roots, so it takes no work_dir: {WORK_ROOT_HINT}")
    folder = folder_of(tenant, user)
    shown = " or ".join(str(Path(root, folder)) for root in roots)
    real = _find_directory(wanted_path, roots, folder)
    if real is None:
        text = f"sessions of this owner work in {shown}: name that directory, or one in it that exists"
        raise field_error("work_dir", f"{text}, as an absolute path")
    return real


def _find_directory(path: str, roots: Sequence[str | Path], folder: str) -> str | None:
    """Return the real path of a directory if it is in the folder of one of the roots."""
    if not os.path.isabs(path):
        return None
    try:
        real = Path(os.path.realpath(path, strict=True))
        is_directory = real.is_dir()
    except (OSError, ValueError):  # missing, a loop of links, a NUL, too long: one error for all
        return None
    # Only the root is resolved. A folder of an owner that is a link could lead to another owner.
    is_inside = any(real.is_relative_to(Path(os.path.realpath(root), folder)) for root in roots)
    return str(real) if is_directory and is_inside else None


def _resolve_for_tool(roots: Sequence[str], tenant: str, user: str | None, path: str) -> Path:
    found = _find_directory(path, roots, folder_of(tenant, user))
    if found is None:  # the text is for the model, so it names no directory of the server
        raise ToolError("the work_dir of this session is not in the folder of its owner on this server")
    return Path(found)


def guard_work_dir(session: Session, roots: Sequence[str]) -> None:
    """Let a session use its work_dir only if it is in the folder of the session's owner."""
    session.cache.resolve_work_dir = partial(_resolve_for_tool, roots, session.store.tenant, session.log.user_id)


def served_session_class(roots: Sequence[str]) -> type[Session]:
    """Return the class of the sessions whose turns run on a server with these work roots."""

    class ServedSession(Session):
        """A session whose tools use a work_dir only if it is in the folder of the session's owner."""

        @classmethod
        def on_log(cls, store: Store, log: Log, agent: BaseAgent | None = None) -> Self:
            session = super().on_log(store, log, agent)
            guard_work_dir(session, roots)
            return session

    return ServedSession
