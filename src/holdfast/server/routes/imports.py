"""Import of an export. An export is untrusted text: it becomes a session only after every route could read it.

A valid chain proves nothing, because every client can compute a chain. So the export first becomes a session in memory
and is read there as every route would read it; only then it becomes a session of the store.
"""

from __future__ import annotations

import orjson
from fastapi import Request

from holdfast.errors import AgentError, InvalidArgument, LimitExceeded
from holdfast.log.events import Draft, Event
from holdfast.log.identifiers import check_id, check_owner
from holdfast.log.named_values import columns_of
from holdfast.server.auth import Caller
from holdfast.server.field_rights import check_imported_fields
from holdfast.server.idempotency import create_once
from holdfast.server.new_resources import find_own_session
from holdfast.server.schemas import requests, responses, sent_messages
from holdfast.server.schemas.serializers import (
    Serving,
    fact_dict,
    field_error,
    message_dict,
    pending_dict,
    session_dict,
)
from holdfast.server.work_dirs import resolve_work_dir
from holdfast.session.export import JsonlExport, read_jsonl
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore

# What reading a log can raise if holdfast did not write it; pydantic's errors are ValueErrors.
_READ_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def import_session(caller: Caller, server: Serving, request: Request, body: requests.Imported) -> Session:
    owner = caller.resolve_owner(body.user_id)
    exported = _read_export(body.data)
    check_imported_fields(caller, exported)
    user_id = owner if owner is not None else check_owner(exported.user_id, "user_id of the export")
    app_name = body.app_name or check_owner(exported.app_name, "app_name of the export")
    _check_work_dirs(exported, server.config.work_roots, caller.tenant, user_id)

    def import_under(id: str) -> Session:
        return _import_export(caller.store, check_id(id), exported, user_id, app_name)

    return create_once(caller, request, body.id or exported.id, lambda id: find_own_session(caller, id), import_under)


def _read_export(text: str) -> JsonlExport:
    try:
        exported = read_jsonl(text)
        verdict = exported.verify()
        if not verdict:
            raise InvalidArgument(f"it does not verify: {verdict.reason}")
        _try_reading(exported)
    except LimitExceeded:
        raise
    except AgentError as error:
        raise field_error("data", f"the export cannot be imported: {error}") from error
    except _READ_ERRORS as error:
        raise field_error("data", f"the export holds what no log holds ({type(error).__name__})") from error
    return exported


def _check_work_dirs(exported: JsonlExport, roots: tuple[str, ...], tenant: str, user_id: str | None) -> None:
    """Raise if an event names a work_dir that the new owner may not use: a fork of any past point uses the work_dir of
    that point."""
    for row in exported.rows:
        event = Event(row)
        named = columns_of(event.type, event.data).get("work_dir")
        try:
            if named is not None:
                resolve_work_dir(named, roots, tenant=tenant, user=user_id)
        except InvalidArgument as error:
            raise field_error("data", f"the export cannot be imported: {error}") from error


def _try_reading(exported: JsonlExport) -> None:
    session = _import_export(MemoryStore(), "trial", exported, None, None)
    responses.FullSession.model_validate_json(orjson.dumps(session_dict(session)))
    responses.Document.model_validate(session.to_dict())
    for message in session.messages:
        sent_messages.Message.model_validate(message_dict(message))
    for fact in session.facts.all():
        responses.Fact.model_validate(fact_dict(fact))
    for call in session.pending:
        responses.Pending.model_validate(pending_dict(call))
    _ = session.unfinished, session.usage, session.cost, session.export(), session.export("html"), session.brief()


def _import_export(store: Store, id: str, exported: JsonlExport, user_id: str | None, app_name: str | None) -> Session:
    log = store.import_log(
        "session",
        id,
        exported.origin,
        exported.rows,
        exported.blobs,
        [Draft(type="session.imported", data=exported.record_data())],
        user_id=user_id,
        app_name=app_name,
    )
    return Session.on_log(store, log)
