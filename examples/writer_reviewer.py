"""A writer and a reviewer, in rounds until the draft is good: `python -m examples.writer_reviewer`. No key is needed.

The writer's draft is stored in the state of the session, where the reviewer reads it. The writer reads the remarks of
the reviewer as messages, because agents that share a session see each other's answers. Without HOLDFAST_MODEL both
follow a few rules.
"""

from __future__ import annotations

import os
import re
from typing import Any

from holdfast import Agent, Runner, Session
from holdfast.flow import LoopAgent
from holdfast.models import ModelRequest

GOOD = "The draft is good."
QUESTION = "Write about climate change."


def _write(request: ModelRequest) -> str:
    """Write a sentence, and one more for each remark of the reviewer."""
    remarks = " ".join(message.text for message in request.messages if message.text.startswith("[reviewer]"))
    draft = "The climate is getting warmer."
    if "number" in remarks:
        draft += " The last ten years were the warmest since people began to measure it, in 1850."
    if "what we can do" in remarks:
        draft += " We can burn less and insulate more."
    return draft


def _review(request: ModelRequest) -> str:
    """Ask for a number, then for a next step. The instructions contain the draft: "{draft}"."""
    draft = request.system_texts[0].split("Draft: ")[1]
    if not re.search(r"\d", draft):
        return "Too vague: add a number."
    return GOOD if "We can" in draft else "And then? Say what we can do."


def flow() -> LoopAgent:
    writer = Agent(
        name="writer",
        instructions="Write what the user asks for, in at most three sentences, and heed the reviewer. Only the text.",
        output_key="draft",  # the state that gets the answer, in the same append as the answer
        **_model(_write),
    )
    reviewer = Agent(
        name="reviewer",
        instructions=f"Make one remark that improves the draft; if none is needed, say: {GOOD}\nDraft: {{draft}}",
        **_model(_review),
    )
    return LoopAgent(
        name="writing",
        sub_agents=[writer, reviewer],
        max_iterations=5,
        condition=lambda output: GOOD not in output.text,  # true: another round
    )


def _model(rules: Any) -> dict[str, Any]:  # noqa: ANN401 - a function of a request
    return {} if os.environ.get("HOLDFAST_MODEL") else {"provider": "scripted", "script": rules}


def main() -> None:
    session = Session(store="memory:")
    print(f"user: {QUESTION}")
    for message in Runner(flow()).run_stream(QUESTION, session=session):  # each message as soon as it is stored
        print(f"{message.author}: {message.text}")
    (ended,) = session.events(types="loop.ended")
    print(f"\n{ended.data['iterations']} rounds, ended by the {ended.data['reason']}.")
    print(f"The draft: {session.get_state('draft')}")
    print(f"It was one turn: {len(session)} messages, the question once, {session.usage.total_tokens} tokens.")


if __name__ == "__main__":
    main()
