"""Handover of a long task: the brief of a session, and a successor session that begins with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from holdfast.concurrency import twin
from holdfast.errors import ToolError
from holdfast.log.events import Draft
from holdfast.log.identifiers import check_id
from holdfast.log.messages import Message
from holdfast.log.ranges import clip_ranges
from holdfast.log.view import decode_view
from holdfast.session.brief import brief_text
from holdfast.session.git_head import git_head
from holdfast.stores.messages import message_draft, messages_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent_base import BaseAgent
    from holdfast.log.view import Turn
    from holdfast.prompt.session_cache import SessionCache
    from holdfast.stores.base import Log, Store
    from holdfast.turn.response import Pending

LAST_MESSAGES = 4


class SuccessorMethods:
    """The methods of `Session` that hand its task over: `brief`, `successor`."""

    store: Store
    agent: BaseAgent | None
    log: Log
    cache: SessionCache
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
        def on_log(cls, store: Store, log: Log, agent: BaseAgent | None = None) -> Self: ...

    def brief(self) -> str:
        """Return the brief for a successor, as Markdown: facts by kind, open work, decisions, the last messages,
        the git head of `work_dir`. Rules make it, so it calls no model and the same session gives the same text."""
        return self._compose_brief()

    def _compose_brief(self) -> str:
        store, log = self.store, self.log
        head = store.head(log)
        view = decode_view(head.view)
        work_dir = self.work_dir
        last = [message for message in messages_of(store, log, head, limit=LAST_MESSAGES * 2) if message.text]
        return brief_text(
            session_id=log.id,
            title=self.title,
            system=self.system,
            facts=list(store.values(log, "fact/").values()),
            unfinished=None if view.turn is None else self._question_of(view.turn),
            pending=[f"{call.name} ({call.call_id})" for call in self.pending],
            last=[(message.role, message.text) for message in last[-LAST_MESSAGES:]],
            work_dir=None if work_dir is None else str(work_dir),
            git=None if work_dir is None else self._read_git_head(work_dir),
            turns=view.turns,
            messages=store.count(log, clip_ranges(view.visible, head.head)),
        )

    def _read_git_head(self, work_dir: Path) -> str | None:
        try:
            return git_head(self.cache.resolve_work_dir(str(work_dir)))
        except ToolError:  # a server does not use this directory
            return None

    def successor(self, session_id: str | None = None) -> Self:
        """Create a session for the same task. It begins with the brief, and has the facts, system prompt, title, owner,
        metadata, work_dir, budget and retention of this session, which does not change."""
        store, log = self.store, self.log
        name = store.clock.new_id() if session_id is None else check_id(session_id)
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
        message = Message.user(self._compose_brief(), metadata={"brief": log.id})
        drafts.append(message_draft(message, store.limits))
        made = store.create("session", name, drafts, user_id=log.user_id, app_name=log.app_name)
        return self.on_log(store, made, self.agent)

    brief_async = twin(brief)
    successor_async = twin(successor)
