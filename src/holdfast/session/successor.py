"""Handing a long task over: a brief of what a successor needs, and a new session that starts from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.concurrency import twin
from holdfast.log.events import Draft
from holdfast.log.identifiers import checked_id
from holdfast.log.messages import Message
from holdfast.log.view import cut, view_of
from holdfast.session.brief import brief_text, git_head
from holdfast.stores.documents import message_draft, messages_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent_base import Askable
    from holdfast.log.view import Turn
    from holdfast.stores.base import Log, Store
    from holdfast.turn.response import Pending

LAST_WORDS = 4


class Handover:
    """The methods of a session that carry its task to another one."""

    store: Store
    agent: Askable | None
    _log: Log
    if TYPE_CHECKING:

        @property
        def title(self) -> str | None: ...
        @property
        def system(self) -> str | None: ...
        @property
        def work_dir(self) -> Path | None: ...
        def _question_of(self, turn: Turn) -> str: ...
        @property
        def pending(self) -> list[Pending]: ...
        @classmethod
        def _of(cls, store: Store, log: Log, agent: Askable | None = None) -> Self: ...

    def brief(self) -> str:
        """What a successor needs, as Markdown: facts by kind, open work, last decisions, last words, the git head of
        `work_dir`. Made by rules, so it costs nothing and says the same each time."""
        return self._brief()

    def _brief(self) -> str:
        store, log = self.store, self._log
        head = store.head(log)
        view = view_of(head.view)
        work_dir = self.work_dir
        last = [message for message in messages_of(store, log, head, limit=LAST_WORDS * 2) if message.text]
        return brief_text(
            session_id=log.id,
            title=self.title,
            system=self.system,
            facts=list(store.values(log, "fact/").values()),
            unfinished=None if view.turn is None else self._question_of(view.turn),
            pending=[f"{call.name} ({call.call_id})" for call in self.pending],
            last=[(message.role, message.text) for message in last[-LAST_WORDS:]],
            work_dir=None if work_dir is None else str(work_dir),
            git=None if work_dir is None else git_head(work_dir),
            turns=view.turns,
            messages=store.count(log, cut(view.visible, head.head)),
        )

    def successor(self, session_id: str | None = None) -> Self:
        """A new session for the same task: it begins with the brief, and has this one's facts, system prompt, owner,
        metadata, work_dir, budget and retention. The old session stays as it is."""
        store, log = self.store, self._log
        name = store.ids.new() if session_id is None else checked_id(session_id)
        info = store.info(log)
        created: dict[str, Any] = {"predecessor": log.id}
        named = {"title": info.title, "metadata": info.metadata or None, "work_dir": info.work_dir}
        named |= {field: store.value(log, field) for field in ("system", "budget")}
        created |= {field: value for field, value in named.items() if value is not None}
        drafts = [Draft(type="session.created", data=created)]
        retention = store.value(log, "retention")
        if retention is not None:
            drafts.append(Draft(type="retention.set", data=retention))
        drafts += [Draft(type="fact.added", data=fact) for fact in store.values(log, "fact/").values()]
        message = Message.user(self._brief(), metadata={"brief": log.id})
        drafts.append(message_draft(message, store.limits))
        made = store.create("session", name, drafts, user_id=log.user_id, app_name=log.app_name)
        return self._of(store, made, self.agent)

    brief_async = twin(brief)
    successor_async = twin(successor)
