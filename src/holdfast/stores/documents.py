"""A session as one JSON document: the format of `to_dict`, `store.load` and `store.save`.

The document is what the session is now: messages, state, facts, fields, status, times, usage, budget, retention and an
open turn. It is not the log. Restoring a document into a log with other content appends the differences and rewrites
nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import Conflict, InvalidArgument, SchemaTooNew, SessionExists
from holdfast.log import codec
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_name, check_owner
from holdfast.log.messages import Message
from holdfast.log.times import to_datetime
from holdfast.log.view import MOVES, decode_view
from holdfast.policy.budget import Budget
from holdfast.policy.event_rules import is_amount
from holdfast.policy.retention import Retention
from holdfast.stores.messages import message_draft, messages_of
from holdfast.stores.turn_documents import turn_document, turn_drafts

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store

VERSION = 1
FACT_KINDS = ("fact", "decision", "feature", "progress", "artifact")
_TEXT_FIELDS = ("user_id", "app_name", "title", "system", "work_dir", "active_agent")
_FACT_FIELDS = {"id", "text", "kind", "status", "ref"}


def document_of(store: Store, log: Log) -> dict[str, Any]:
    """Return the whole session, as it is now."""
    info = store.info(log)
    head = store.head(log)
    view = decode_view(head.view)
    created_at, updated_at = _times(store, log, info.updated_at)
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
        "created_at": created_at,
        "updated_at": updated_at,
        "messages": [message.to_dict() for message in messages_of(store, log, head)],
        "state": store.values(log, "state/"),
        "facts": list(store.values(log, "fact/").values()),
        "usage": view.usage,
        "turns": view.turns,
        "budget": store.value(log, "budget"),
        "retention": store.value(log, "retention"),
        "active_agent": view.active,
        "turn": None if view.turn is None else turn_document(store, log, view.turn, head.head),
    }


def _times(store: Store, log: Log, updated_at: int) -> tuple[str, str]:
    """Return when the session was created and last changed. A restored session has the times of its document until it
    is used again."""
    own = to_datetime(log.created_at).isoformat(), to_datetime(updated_at).isoformat()
    found = store.lookup(log, "restored")
    if found is None or found.erased:
        return own
    restored = store.event(log, found.seq)
    created: str = restored.data["created_at"]
    return created, restored.data["updated_at"] if restored.at == updated_at else own[1]


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
    for name in ("created_at", "updated_at"):
        _parse_time(document, name)
    usage = document.get("usage") or {}
    if not isinstance(usage, dict) or not all(is_amount(amount) for amount in usage.values()):
        raise InvalidArgument("'usage' of a session document must be a dict of whole numbers")
    if not is_amount(document.get("turns", 0)):
        raise InvalidArgument("'turns' of a session document must be a whole number")
    if document.get("turn") is not None:
        turn_drafts(document["turn"])
    if document.get("budget") is not None:
        Budget.of(document["budget"])
    if document.get("retention") is not None:
        Retention.of(document["retention"])
    return document


def _parse_time(document: dict[str, Any], name: str) -> int | None:
    """Return a time of the document in microseconds since 1970; None if it has none."""
    value = document.get(name)
    if value is None:
        return None
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1_000_000)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name!r} of a session document must be an ISO time, not {value!r}") from error


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
    fields = _pick_named_fields(document)
    if document.get("budget") is not None:
        fields["budget"] = document["budget"]
    drafts = [Draft(type="session.created", data=fields)]
    if document.get("retention") is not None:
        drafts.append(Draft(type="retention.set", data=document["retention"]))
    drafts += [
        Draft(type="state.set", data={"name": name, "value": value})
        for name, value in document.get("state", {}).items()
    ]
    drafts += [Draft(type="fact.added", data=fact) for fact in _facts_by_id(document).values()]
    drafts += _message_drafts(store, document)
    if document.get("active_agent") is not None:
        drafts.append(Draft(type="agent.assigned", data={"agent": document["active_agent"]}))
    if document.get("turn") is not None:
        drafts += turn_drafts(document["turn"])
    drafts += _record_drafts(document)
    drafts += _status_drafts("open", document.get("status"))
    return store.create(
        "session",
        session_id,
        drafts,
        user_id=document.get("user_id"),
        app_name=document.get("app_name"),
        created_at=_parse_time(document, "created_at"),
    )


def _record_drafts(document: dict[str, Any]) -> list[Draft]:
    """Return the event that keeps what a session did elsewhere: its times, its usage, and whether it was used."""
    if document.get("created_at") is None or document.get("updated_at") is None:
        return []  # a document that was written by hand
    data = {
        "created_at": document["created_at"],
        "updated_at": document["updated_at"],
        "usage": document.get("usage") or {},
        "turns": document.get("turns", 0),
        "started": document.get("status") != "open",
    }
    return [Draft(type="session.restored", data=data)]


def _status_drafts(status: str, wanted: object) -> list[Draft]:
    """Return the moves from one status to another; none for a status that follows from the turns."""
    drafts = []
    ended = {"paused": "pause", "closed": "close", "archived": "archive"}
    if status in ended and wanted != status:
        back = "resume" if status == "paused" else "reopen"
        drafts.append(Draft(type=MOVES[status][back], data={"restored": True}))
    if wanted in ended and wanted != status:
        drafts.append(Draft(type=MOVES["open"][ended[str(wanted)]], data={"restored": True}))
    return drafts


def _comparable_content(document: dict[str, Any]) -> bytes:
    """Encode what only an overwrite can change: messages, state, facts, fields and the open turn."""
    messages = []
    for message in document.get("messages", []):
        plain = Message.of(message).to_dict()
        plain.pop("created_at", None)
        messages.append(plain)
    facts = sorted(_facts_by_id(document).values(), key=lambda fact: str(fact["id"]))
    content = [
        _pick_named_fields(document),
        messages,
        document.get("state", {}),
        facts,
        document.get("active_agent"),
        document.get("turn"),
    ]
    return codec.encode(content, room=codec.WRAPPING_DEPTH)


def _overwrite_log(store: Store, log: Log, document: dict[str, Any]) -> None:
    expected = store.head(log).head
    current = document_of(store, log)
    has_record = "created_at" in document and "updated_at" in document
    document = current | document  # a document that was written by hand may lack fields
    drafts: list[Draft] = []
    if _comparable_content(current) != _comparable_content(document):
        drafts += _content_drafts(store, current, document)
    if document["budget"] != current["budget"]:
        drafts.append(Draft(type="session.changed", data={"budget": document["budget"]}))
    if document["retention"] != current["retention"]:
        kept = {} if document["retention"] is None else document["retention"]
        drafts.append(Draft(type="retention.set", data=Retention.of(kept).to_dict()))
    moves = _status_drafts(current["status"], document["status"])
    record = ("created_at", "updated_at", "usage", "turns", "status")
    if has_record and (drafts or moves or any(document[name] != current[name] for name in record)):
        drafts += _record_drafts(document)
    drafts += moves
    if drafts:
        store.append(log, drafts, expected=expected)


def _content_drafts(store: Store, current: dict[str, Any], document: dict[str, Any]) -> list[Draft]:
    state = document["state"]
    restored = _pick_named_fields(document) | {"state": state, "dropped": sorted(set(current["state"]) - set(state))}
    for name in ("title", "system", "work_dir"):
        if current[name] is not None and document[name] is None:
            restored[name] = None
    if current["metadata"] and not document["metadata"]:
        restored["metadata"] = {}
    if document["active_agent"] is not None:
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
    return drafts if document["turn"] is None else [*drafts, *turn_drafts(document["turn"])]
