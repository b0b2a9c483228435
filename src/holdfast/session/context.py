"""The prompt of a session: as the next model call would send it, or as a past model call sent it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.concurrency import twin

if TYPE_CHECKING:
    from holdfast.agent_base import BaseAgent
    from holdfast.stores.base import Log, Store
    from holdfast.turn.sent_context import Context


class ContextMethods:
    """The method of `Session` that shows the prompt: `context`."""

    store: Store
    agent: BaseAgent | None
    log: Log

    def context(self, call: int | None = None, *, agent: BaseAgent | None = None) -> Context:
        """Return the prompt that the next model call would send, part by part, with token counts.

        With `call=`, the number of a `model.called` event, return the prompt that this call sent.
        """
        from holdfast.turn.sent_context import preview_context, read_sent_context

        if call is not None:
            return read_sent_context(self.store, self.log, call)
        if agent is None and self.agent is None and not os.environ.get("HOLDFAST_MODEL"):
            from holdfast.agent import Agent

            agent = Agent(provider="echo")  # no model is configured yet, and the prompt does not depend on the model
        runtime = self._new_runtime(agent, None, {})  # type: ignore[attr-defined]
        return preview_context(runtime)

    context_async = twin(context)
