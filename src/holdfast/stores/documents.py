"""A session as one JSON document: the format of `to_dict`, `store.load` and `store.save`.

The document is the view (messages, state, facts, system, title, metadata), not the log. Restoring a document into a log
with other content appends the differences and rewrites nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.errors import Conflict, InvalidArgument, SchemaTooNew, SessionExists
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name, check_owner
from holdfast.log.messages import Message
from holdfast.log.times import to_datetime
from holdfast.log.view import MOVES, decode_view
from holdfast.stores.messages import message_draft, messages_of

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

VERSION = 1
FACT_KINDS = ("fact", "decision", "feature", "progress", "artifact")
_TEXT_FIELDS = ("user_id", "app_name", "title", "system", "work_dir", "active_agent")
_FACT_FIELDS = {"id", "text", "kind", "status", "ref"}


def document_of(store: Store, log: Log) -> dict[str, Any]:
    """Return the whole view of a session."""
    info = store.info(log)
    head = store.head(log)
    return {
        "version": VERSION,
        "id": log.id,
        "user_id": log.user_id,
        "app_name": log.app_name,
        "title": info.title,
        "status": info.status,
        "system": store.value(log, "system"),
        "work_dir": info.work_dir,
        "metadata": info.metadata,
        "created_at": to_datetime(log.created_at).isoformat(),
        "updated_at": to_datetime(info.updated_at).isoformat(),
        "messages": [message.to_dict() for message in messages_of(store, log, head)],
        "state": store.values(log, "state/"),
        "facts": list(store.values(log, "fact/").values()),
        "usage": decode_view(head.view).usage,
        "active_agent": decode_view(head.view).active,
    }


def check_document(document: object) -> dict[str, Any]:
    """Return the document if it can be restored; InvalidArgument or SchemaTooNew names the fault."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"a session document is a dict as to_dict() makes it, not {type(document).__name__}")
    codec.encode(document, room=codec.WRAPPING_DEPTH)
    version = document.get("version")
    if not isinstance(version, int):
        raise InvalidArgument("a session document needs its 'version', as to_dict() writes it")
    if version > VERSION:
        raise SchemaTooNew(f"the document has version {version}, this holdfast knows {VERSION}: upgrade holdfast")
    for name in _TEXT_FIELDS:
        if not isinstance(document.get(name), str | None):
            raise InvalidArgument(f"'{name}' of a session document must be a string or null")
    check_owner(document.get("user_id"), "'user_id' of the document")
    check_owner(document.get("app_name"), "'app_name' of the document")
    for name, kind in (("messages", list), ("facts", list), ("state", dict), ("metadata", dict)):
        if not isinstance(document.get(name, kind()), kind):
            raise InvalidArgument(f"'{name}' of a session document must be a {kind.__name__}")
    for name in document.get("state", {}):
        check_name(name, "a state name")
    _facts_by_id(document)
    return document


def restore_document(store: Store, session_id: str, data: dict[str, Any]) -> Log:
    """Give the session the content of the document: import it, or append the differences."""
    document = check_document(data)
    while True:
        log = store.find("session", session_id)
        try:
            if log is None:
                return _import_document(store, session_id, document)
            _overwrite_log(store, log, document)
            return log
        except (Conflict, SessionExists):
            continue  # another writer came first: read the log again


def _pick_named_fields(document: dict[str, Any]) -> dict[str, Any]:
    found = {name: document[name] for name in ("title", "system", "work_dir") if document.get(name) is not None}
    if document.get("metadata"):
        found["metadata"] = document["metadata"]
    return found


def _message_drafts(store: Store, document: dict[str, Any]) -> list[Draft]:
    return [message_draft(Message.of(message), store.limits) for message in document.get("messages", [])]


def _facts_by_id(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for fact in document.get("facts", []):
        known = isinstance(fact, dict) and set(fact) <= _FACT_FIELDS and all(isinstance(v, str) for v in fact.values())
        if not known or not fact.get("text") or fact.get("kind", "fact") not in FACT_KINDS:
            raise InvalidArgument(
                "a fact in a session document is a dict with 'id', 'text', 'kind', 'status' and 'ref'"
            )
        check_name(fact.get("id"), "the id of a fact")
        found[fact["id"]] = fact
    return found


def _import_document(store: Store, session_id: str, document: dict[str, Any]) -> Log:
    drafts = [Draft(type="session.created", data=_pick_named_fields(document))]
    drafts += [
        Draft(type="state.set", data={"name": name, "value": value})
        for name, value in document.get("state", {}).items()
    ]
    drafts += [Draft(type="fact.added", data=fact) for fact in _facts_by_id(document).values()]
    drafts += _message_drafts(store, document)
    if document.get("active_agent") is not None:
        drafts.append(Draft(type="agent.assigned", data={"agent": document["active_agent"]}))
    drafts += _status_drafts(document.get("status"))
    return store.create(
        "session", session_id, drafts, user_id=document.get("user_id"), app_name=document.get("app_name")
    )


def _status_drafts(status: object) -> Iterable[Draft]:
    if status in ("paused", "closed", "archived"):
        move = {"paused": "pause", "closed": "close", "archived": "archive"}[str(status)]
        yield Draft(type=MOVES["open"][move], data={"restored": True})


def _comparable_content(document: dict[str, Any]) -> bytes:
    """Encode the content that equal documents share: everything but times and counters."""
    messages = []
    for message in document.get("messages", []):
        plain = Message.of(message).to_dict()
        plain.pop("created_at", None)
        messages.append(plain)
    facts = sorted(_facts_by_id(document).values(), key=lambda fact: str(fact["id"]))
    active = document.get("active_agent")
    return codec.encode(
        [_pick_named_fields(document), messages, document.get("state", {}), facts, active], room=codec.WRAPPING_DEPTH
    )


def _overwrite_log(store: Store, log: Log, document: dict[str, Any]) -> None:
    expected = store.head(log).head
    current = document_of(store, log)
    if _comparable_content(current) == _comparable_content(document):
        return
    state = document.get("state", {})
    restored = _pick_named_fields(document) | {
        "state": state,
        "dropped": sorted(set(current["state"]) - set(state)),
    }
    for name in ("title", "system", "work_dir"):
        if current[name] is not None and document.get(name) is None:
            restored[name] = None
    if current["metadata"] and not document.get("metadata"):
        restored["metadata"] = {}
    if document.get("active_agent") is not None:
        restored["active"] = document["active_agent"]
    drafts = [Draft(type="view.restored", data=restored)]
    before, after = _facts_by_id(current), _facts_by_id(document)
    drafts += [Draft(type="fact.removed", data={"id": id}) for id in sorted(before) if id not in after]
    drafts += [
        Draft(type="fact.updated" if id in before else "fact.added", data=fact)
        for id, fact in after.items()
        if before.get(id) != fact
    ]
    drafts += _message_drafts(store, document)
    store.append(log, drafts, expected=expected)
