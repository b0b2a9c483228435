"""The messages of a session: read, add, search, clear and rewind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.concurrency import property_twin, twin
from holdfast.errors import Conflict, InvalidArgument
from holdfast.log.arguments import check_limit
from holdfast.log.events import Draft
from holdfast.log.messages import Message
from holdfast.log.ranges import clip_ranges
from holdfast.log.search_words import words
from holdfast.log.view import View, decode_view
from holdfast.stores.messages import message_draft, message_of, messages_of

if TYPE_CHECKING:
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.base import Log, Store


class HistoryMethods:
    """The methods of `Session` for messages: `messages`, `history`, `add_message`, `add_messages`, `send_message`,
    `clear`, `search`, `rewind`, and `len(session)`."""

    store: Store
    log: Log
    cache: SessionCache
    if TYPE_CHECKING:

        @property
        def id(self) -> str: ...
        @property
        def head(self) -> int: ...
        def prune_if_due(self) -> None: ...
        def _view(self) -> View: ...

    @property
    def messages(self) -> list[Message]:
        """A copy of every visible message, oldest first."""
        return messages_of(self.store, self.log, self.store.head(self.log))

    def __len__(self) -> int:
        head = self.store.head(self.log)
        return self.store.count(self.log, clip_ranges(decode_view(head.view).visible, head.head))

    def __bool__(self) -> bool:
        return True  # an empty session is still a session

    def history(self, limit: int | None = None, role: str | None = None) -> list[Message]:
        """Return all messages, or the last `limit`, of one role if `role` is given, oldest first."""
        if limit is not None:
            check_limit(limit)
        if role is not None:
            Message(role)  # raises for an unknown role
        return messages_of(self.store, self.log, self.store.head(self.log), limit=limit, role=role)

    def add_message(self, message: Message | Mapping[str, Any], *, once: str | None = None) -> int:
        """Record one message and return its event number. Messages with the same key `once` are stored only once."""
        return self.add_messages([message], once=once)

    def add_messages(self, messages: Iterable[Message | Mapping[str, Any]], *, once: str | None = None) -> int:
        """Record messages in one commit and return the number of the last event of the log."""
        if isinstance(messages, (Message, Mapping, str)):
            raise InvalidArgument("add_messages takes a list of messages; for one message use add_message")
        limits = self.store.limits
        drafts = [message_draft(Message.of(message), limits) for message in messages]
        if not drafts:
            return self.head
        done = self.store.append(self.log, drafts, once=once)
        if done.has_retention:
            self.prune_if_due()
        return done.last

    def send_message(self, message: Message | Mapping[str, Any], *, once: str | None = None) -> int:
        """Record a message without calling a model; the same as `add_message`."""
        return self.add_messages([message], once=once)

    def clear(self, *, actor: str | None = None) -> None:
        """Remove all messages from the view, and temp state. System prompt, state, facts and the log stay."""
        self.store.append(self.log, [Draft(type="view.cleared", actor=actor)])
        self.cache.temp.clear()

    def search(self, query: str, limit: int = 20) -> list[Message]:
        """Return the last `limit` messages that contain every word of the query, oldest first."""
        check_limit(limit)
        if not isinstance(query, str):
            raise InvalidArgument(f"search takes words, not {type(query).__name__}")
        wanted = list(dict.fromkeys(words(query)))
        if not wanted or not limit:
            return []
        seqs = self.store.search(self.log, wanted, self._view().visible, limit)
        return [message_of(self.store, self.log, row) for seq in seqs for row in self.store.read(self.log, seq, seq)]

    def rewind(self, to: int, *, actor: str | None = None) -> None:
        """Set messages and session state back to how they were after event `to`. The log keeps the later events."""
        while True:
            head = self.store.head(self.log).head
            turn = self.store.view(self.log, self._check_seq(to, head)).turn
            to = to if turn is None else turn.first - 1  # a point inside a turn means the point before that turn
            view = self.store.view(self.log, to)
            now, then = self.store.refs(self.log, "state/", head), self.store.refs(self.log, "state/", to)
            changed = {name.removeprefix("state/"): then.get(name) for name in now if now[name] != then.get(name)}
            data: dict[str, Any] = {"to": to, "ranges": clip_ranges(view.visible, to), "state": changed}
            if view.active is not None:
                data["active"] = view.active
            try:
                self.store.append(self.log, [Draft(type="view.rewound", data=data, actor=actor)], expected=head)
                return
            except Conflict:  # another writer appended first: compare with the new head
                continue

    def _check_seq(self, at: object, head: int) -> int:
        if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= head:
            raise InvalidArgument(f"{at!r} is not the number of an event of session {self.id!r}: use 1 to {head}")
        return at

    add_message_async = twin(add_message)
    add_messages_async = twin(add_messages)
    clear_async = twin(clear)
    history_async = twin(history)
    length_async = twin(__len__)
    messages_async = property_twin("messages")
    rewind_async = twin(rewind)
    search_async = twin(search)
    send_message_async = twin(send_message)
