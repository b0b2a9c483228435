"""Taking in an export from outside. It is text that somebody wrote: nothing of it is believed until it was tried.

An export with a valid chain can still say anything, because everybody can compute a chain. So it is first made a
session in memory and read there as every route would read it; only what can be read becomes a session of the store.
"""

from __future__ import annotations

import orjson
from fastapi import Request

from holdfast.errors import AgentError, InvalidArgument, LimitExceeded
from holdfast.log.events import Draft, Event
from holdfast.log.identifiers import checked_id, checked_owner
from holdfast.log.named_values import columns_of
from holdfast.server.auth import Who
from holdfast.server.new_resources import allowed_work_dir, made_once, own_session
from holdfast.server.schemas import requests as bodies
from holdfast.server.schemas import responses as schemas
from holdfast.server.schemas.serializers import Serving, fact_dict, message_dict, pending_dict, refused, session_full
from holdfast.session.export import Exported, read_jsonl
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore

# What reading a log can raise when it was not written by us; pydantic's errors are ValueErrors.
_HOSTILE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def import_session(who: Who, server: Serving, request: Request, body: bodies.Imported) -> Session:
    owner = who.owner(body.user_id)
    exported = _believed(body.data, server.config.work_roots)
    user_id = owner if owner is not None else checked_owner(exported.user_id, "user_id of the export")
    app_name = body.app_name or checked_owner(exported.app_name, "app_name of the export")

    def adopted(id: str) -> Session:
        return _adopted(who.store, checked_id(id), exported, user_id, app_name)

    return made_once(who, request, body.id or exported.id, lambda id: own_session(who, id), adopted)


def _believed(text: str, roots: tuple[str, ...]) -> Exported:
    try:
        exported = read_jsonl(text)
        verdict = exported.verify()
        if not verdict:
            raise InvalidArgument(f"it does not verify: {verdict.reason}")
        _check_work_dirs(exported, roots)
        _try(exported)
    except LimitExceeded:
        raise
    except AgentError as error:
        raise refused("data", f"the export cannot be imported: {error}") from error
    except _HOSTILE as error:
        raise refused("data", f"the export holds what no log holds ({type(error).__name__})") from error
    return exported


def _check_work_dirs(exported: Exported, roots: tuple[str, ...]) -> None:
    """A fork of any past point works where the session worked then, so every event must name an allowed place."""
    for row in exported.rows:
        event = Event(row)
        named = columns_of(event.type, event.data).get("work_dir")
        if named is not None:
            allowed_work_dir(named, roots)


def _try(exported: Exported) -> None:
    session = _adopted(MemoryStore(), "trial", exported, None, None)
    schemas.FullSession.model_validate_json(orjson.dumps(session_full(session)))
    schemas.Document.model_validate(session.to_dict())
    for message in session.messages:
        schemas.Message.model_validate(message_dict(message))
    for fact in session.facts.all():
        schemas.Fact.model_validate(fact_dict(fact))
    for call in session.pending:
        schemas.Pending.model_validate(pending_dict(call))
    _ = session.unfinished, session.usage, session.cost, session.export(), session.export("html"), session.brief()


def _adopted(store: Store, id: str, exported: Exported, user_id: str | None, app_name: str | None) -> Session:
    log = store.adopt(
        "session",
        id,
        exported.origin,
        exported.rows,
        exported.blobs,
        [Draft(type="session.imported", data={"from": exported.id, "blobs": exported.removed})],
        user_id=user_id,
        app_name=app_name,
    )
    return Session._of(store, log)
