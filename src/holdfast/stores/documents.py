"""A session as one JSON document: what `to_dict`, `store.load` and `store.save` speak.

The document is the view (messages, state, facts, system, title, metadata), not the log: restoring one into a log that
says otherwise appends what changed and rewrites nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.errors import Conflict, InvalidArgument, SchemaTooNew, SessionExists
from holdfast.log import codec
from holdfast.log.events import MESSAGE_TYPES, SALT, Draft, Event, Row, message_data, to_datetime
from holdfast.log.identifiers import checked_name, checked_owner
from holdfast.log.messages import Limits, Message, ToolResult, blobs_in, from_data
from holdfast.log.view import MOVES, cut, view_of

if TYPE_CHECKING:
    from holdfast.stores.append import Head
    from holdfast.stores.base import Log, Store

VERSION = 1
FACT_KINDS = ("fact", "decision", "feature", "progress", "artifact")
_TEXTS = ("user_id", "app_name", "title", "system", "work_dir", "active_agent")
REMOVING = ("event.redacted", "session.imported")  # events that say which bytes are gone
_FACT_FIELDS = {"id", "text", "kind", "status", "ref"}


def message_draft(message: Message, limits: Limits, **fields: str | None) -> Draft:
    """The event that adds a message."""
    data, blobs = message.to_data(limits)
    return Draft(type="message.added", data=data, author=message._author, blobs=blobs, **fields)


def message_of(store: Store, log: Log, row: Row) -> Message:
    """The message that a stored event brought; an erased one says so."""
    if row.type == "message.added" and row.header is None and row.body is not None:  # most of them, so without detours
        data, author = codec.decode(row.body[SALT:]), None
    else:
        event = Event(row)
        data, author = message_data(event), event.author
    if not data:
        return _erased(Event(row))
    return from_data(
        data, lambda digest: store.blob(log, digest), author=author, created_at=to_datetime(row.at), seq=row.seq
    )


def _erased(event: Event) -> Message:
    """What is shown of a message whose text is gone: who spoke, and which call it answered."""
    role, call_id = event.data.get("role", "user"), event.data.get("call_id")
    parts: list[Any] = ["[erased]"]
    if role == "tool":
        role, parts = ("tool", [ToolResult(call_id=call_id, content="[erased]")]) if call_id else ("user", parts)
    return Message(role, parts, author=event.author, created_at=to_datetime(event.at), seq=event.seq)


def messages_of(
    store: Store, log: Log, head: Head, *, limit: int | None = None, role: str | None = None
) -> list[Message]:
    """The messages visible at `head`, or the last `limit` of them, oldest first. Reads no more than it needs."""
    found: list[Message] = []  # newest first
    # What came after this head was read may belong to a turn that this view does not know of: it is left out.
    for first, last in reversed(cut(view_of(head.view).visible, head.head)):
        upto = last
        while limit is None or len(found) < limit:
            want = None if limit is None else limit - len(found)
            rows = store.read(log, first, upto, limit=want, reverse=True, types=MESSAGE_TYPES)
            messages = [message_of(store, log, row) for row in rows]
            found += [message for message in messages if role is None or message.role == role]
            if want is None or len(rows) < want:
                break
            upto = rows[-1].seq - 1
            if upto < first:
                break
    return found[::-1]


def document_of(store: Store, log: Log) -> dict[str, Any]:
    """The whole view of a session."""
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
        "usage": view_of(head.view).usage,
        "active_agent": view_of(head.view).active,
    }


def checked(document: object) -> dict[str, Any]:
    """A document that can be restored, or an error that says what is wrong with it."""
    if not isinstance(document, dict):
        raise InvalidArgument(f"a session document is a dict as to_dict() makes it, not {type(document).__name__}")
    codec.encode(document, room=codec.WRAPPING)
    version = document.get("version")
    if not isinstance(version, int):
        raise InvalidArgument("a session document needs its 'version', as to_dict() writes it")
    if version > VERSION:
        raise SchemaTooNew(f"the document has version {version}, this holdfast knows {VERSION}: upgrade holdfast")
    for name in _TEXTS:
        if not isinstance(document.get(name), str | None):
            raise InvalidArgument(f"'{name}' of a session document must be a string or null")
    checked_owner(document.get("user_id"), "'user_id' of the document")
    checked_owner(document.get("app_name"), "'app_name' of the document")
    for name, kind in (("messages", list), ("facts", list), ("state", dict), ("metadata", dict)):
        if not isinstance(document.get(name, kind()), kind):
            raise InvalidArgument(f"'{name}' of a session document must be a {kind.__name__}")
    for name in document.get("state", {}):
        checked_name(name, "a state name")
    _facts(document)
    return document


def restore(store: Store, session_id: str, data: dict[str, Any]) -> Log:
    """Make the session say what the document says, by import or by appending what differs."""
    document = checked(data)
    while True:
        log = store.find("session", session_id)
        try:
            if log is None:
                return _import(store, session_id, document)
            _overwrite(store, log, document)
            return log
        except (Conflict, SessionExists):
            continue  # somebody wrote meanwhile: look again


def _named(document: dict[str, Any]) -> dict[str, Any]:
    found = {name: document[name] for name in ("title", "system", "work_dir") if document.get(name) is not None}
    if document.get("metadata"):
        found["metadata"] = document["metadata"]
    return found


def _messages(store: Store, document: dict[str, Any]) -> list[Draft]:
    return [message_draft(Message.of(message), store.limits) for message in document.get("messages", [])]


def _facts(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for fact in document.get("facts", []):
        known = isinstance(fact, dict) and set(fact) <= _FACT_FIELDS and all(isinstance(v, str) for v in fact.values())
        if not known or not fact.get("text") or fact.get("kind", "fact") not in FACT_KINDS:
            raise InvalidArgument(
                "a fact in a session document is a dict with 'id', 'text', 'kind', 'status' and 'ref'"
            )
        checked_name(fact.get("id"), "the id of a fact")
        found[fact["id"]] = fact
    return found


def _import(store: Store, session_id: str, document: dict[str, Any]) -> Log:
    drafts = [Draft(type="session.created", data=_named(document))]
    drafts += [
        Draft(type="state.set", data={"name": name, "value": value})
        for name, value in document.get("state", {}).items()
    ]
    drafts += [Draft(type="fact.added", data=fact) for fact in _facts(document).values()]
    drafts += _messages(store, document)
    if document.get("active_agent") is not None:
        drafts.append(Draft(type="agent.assigned", data={"agent": document["active_agent"]}))
    drafts += _moves_to(document.get("status"))
    return store.create(
        "session", session_id, drafts, user_id=document.get("user_id"), app_name=document.get("app_name")
    )


def _moves_to(status: object) -> Iterable[Draft]:
    if status in ("paused", "closed", "archived"):
        move = {"paused": "pause", "closed": "close", "archived": "archive"}[str(status)]
        yield Draft(type=MOVES["open"][move], data={"restored": True})


def _content(document: dict[str, Any]) -> bytes:
    """What two documents must share to be the same: everything but times and counters."""
    messages = []
    for message in document.get("messages", []):
        plain = Message.of(message).to_dict()
        plain.pop("created_at", None)
        messages.append(plain)
    facts = sorted(_facts(document).values(), key=lambda fact: str(fact["id"]))
    active = document.get("active_agent")
    return codec.encode([_named(document), messages, document.get("state", {}), facts, active], room=codec.WRAPPING)


def _overwrite(store: Store, log: Log, document: dict[str, Any]) -> None:
    expected = store.head(log).head
    current = document_of(store, log)
    if _content(current) == _content(document):
        return
    state = document.get("state", {})
    restored = _named(document) | {
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
    before, after = _facts(current), _facts(document)
    drafts += [Draft(type="fact.removed", data={"id": id}) for id in sorted(before) if id not in after]
    drafts += [
        Draft(type="fact.updated" if id in before else "fact.added", data=fact)
        for id, fact in after.items()
        if before.get(id) != fact
    ]
    drafts += _messages(store, document)
    store.append(log, drafts, expected=expected)


def bytes_named(event: Event) -> list[str]:
    """The blobs that an event names: parts of its message, a tool's result that was too long for one, a prompt."""
    if event.erased:
        return []
    if event.type == "model.called":
        return [event.data["context"]] if "context" in event.data else []
    if event.type not in MESSAGE_TYPES:
        return []
    whole = event.data.get("whole")
    return [*blobs_in(message_data(event)), *([] if whole is None else [whole])]


def blob_names(rows: Iterable[Row]) -> list[str]:
    """The blobs that the rows name, each once."""
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(bytes_named(Event(row)))
    return list(found)


def blobs_removed(rows: Iterable[Row]) -> set[str]:
    """The blobs that redactions among the rows took away, as they say themselves; or an import, of its original."""
    return {digest for row in rows if row.type in REMOVING for digest in Event(row).data.get("blobs", ())}
