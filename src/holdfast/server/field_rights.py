"""Fields that not every key may send.

A device (the role chat) says what to do and not how: it sends a few fields only. The limits of a user are set by the
application, and not by a key of that user. The fields are checked before anything is looked up, so that a refusal is
the same for every id.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from holdfast.errors import Forbidden
from holdfast.log.events import Event
from holdfast.server.auth import Caller
from holdfast.session.export import JsonlExport

DEVICE_SESSION_FIELDS = frozenset(("id", "title", "user_id", "app_name", "exist_ok"))
DEVICE_MESSAGE_FIELDS = frozenset(("message", "agent_id", "metadata", "on_busy", "timeout"))
DEVICE_RETRY_FIELDS = frozenset(("agent_id", "actor"))
DEVICE_DECISION_FIELDS = frozenset(("approved", "reason", "answer", "actor"))
APPLICATION_FIELDS = frozenset(("system", "budget", "retention"))


def sent_fields(body: BaseModel) -> set[str]:
    """Return the fields of a request, under the names that its client knows."""
    return {type(body).model_fields[name].alias or name for name in body.model_fields_set}


def check_device_fields(caller: Caller, sent: Iterable[str], allowed: frozenset[str]) -> None:
    """Raise Forbidden if a key that may not write sends a field that is not among those of a device."""
    refused = sorted(set(sent) - allowed)
    if refused and not caller.has_role("write"):
        raise Forbidden(f"this key may {caller.role}, and {', '.join(refused)} needs write: leave it out")


def check_application_fields(caller: Caller, sent: Iterable[str]) -> None:
    """Raise Forbidden if a key of one user sends a field that limits the user."""
    refused = sorted(set(sent) & APPLICATION_FIELDS)
    if refused and not caller.is_application:
        raise Forbidden(f"{', '.join(refused)} is the application's to set: use a key without a user, or an admin's")


def check_imported_fields(caller: Caller, exported: JsonlExport) -> None:
    """Raise Forbidden if a key of one user imports a session with a system prompt or a budget."""
    if caller.is_application:
        return
    for row in exported.rows:
        if row.type in ("session.created", "session.changed"):
            check_application_fields(caller, (name for name, value in Event(row).data.items() if value is not None))
