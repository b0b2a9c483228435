"""Looking at a prompt: what the model would be sent now, or was sent at some call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.concurrency import twin

if TYPE_CHECKING:
    from holdfast.agent_base import Askable
    from holdfast.stores.base import Log, Store
    from holdfast.turn.sent_context import Context


class Contexts:
    """The method of a session that shows its prompt."""

    store: Store
    agent: Askable | None
    _log: Log

    def context(self, call: int | None = None, *, agent: Askable | None = None) -> Context:
        """What the model would be sent now, part by part, with token counts; with `call=`, the number of a
        `model.called` event, what it was sent then."""
        from holdfast.turn.sent_context import sent_at

        if call is not None:
            return sent_at(self.store, self._log, call)
        if agent is None and self.agent is None and not os.environ.get("HOLDFAST_MODEL"):
            from holdfast.agent import Agent

            agent = Agent(provider="echo")  # nobody to ask yet: what would be sent does not depend on it
        world = self._world(agent, None, {})  # type: ignore[attr-defined]
        found: Context = world.preview()
        return found

    context_async = twin(context)
