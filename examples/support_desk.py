"""A support desk: triage hands a conversation to billing or tech: `python -m examples.support_desk`. No key is needed.

The agent that gets the conversation sees all of it and keeps it for the next questions, in another process too: the
second half of this example opens the file anew. A refund waits for the approval of a person. Without HOLDFAST_MODEL the
agents follow a few rules.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from holdfast import Agent, Response, Session, tool
from holdfast.log.messages import ToolResult
from holdfast.models import ModelRequest
from holdfast.stores import SQLiteStore
from holdfast.testing import call

SESSION = "alice-1"
MONEY = re.compile(r"charged|refund|bill|money", re.IGNORECASE)
BROKEN = re.compile(r"broken|does not work|crash", re.IGNORECASE)


@tool(approval="always")
def refund(order: int, cents: int) -> str:
    """Pay the price of an order back. A person decides about every call."""
    return f"{cents / 100:.2f} EUR for order {order} are on their way"


# -- answers of the agents without a model -----------------------------------------------------------------------------


def _question(request: ModelRequest) -> str:
    """Return the last message of the user. Messages of other agents begin with their name: "[billing] ..."."""
    return [m.text for m in request.messages if m.role == "user" and not m.text.startswith("[")][-1]


def _name(request: ModelRequest) -> str:
    found = re.search(r"I am (\w+)", " ".join(message.text for message in request.messages))
    return found[1] if found else "there"


def _triage(request: ModelRequest) -> Any:  # noqa: ANN401 - a reply of a scripted model
    if MONEY.search(_question(request)):
        return call("transfer_to_billing", {"reason": "It is about money."})
    if BROKEN.search(_question(request)):
        return call("transfer_to_tech", {"reason": "Something is broken."})
    return f"Hello {_name(request)}, what can we do for you?"


def _billing(request: ModelRequest) -> Any:  # noqa: ANN401
    result = request.messages[-1].parts[0]
    if isinstance(result, ToolResult):
        said = "I am not allowed to pay it back" if result.is_error else "Sorry about that"
        return f"{said}, {_name(request)}: {result.content}."
    if MONEY.search(_question(request)):
        return call("refund", {"order": 17, "cents": 1999})
    return call("transfer_to_triage", {"reason": "This is not about money."})


def _tech(request: ModelRequest) -> str:
    found = re.search(r"order \d+", " ".join(message.text for message in request.messages))
    bought = found[0] if found else "what you bought"
    return f"Hold its button for ten seconds, {_name(request)}. If that does not help, we replace {bought}."


# -- the desk ----------------------------------------------------------------------------------------------------------


def desk() -> Agent:
    """Return the agent that answers first; its handoffs lead to the other agents."""
    tech = Agent(
        name="tech",
        description="Things that do not work.",
        instructions="You repair things, by mail. Be brief.",
        **_model(_tech),
    )
    billing = Agent(
        name="billing",
        description="Bills, payments and refunds.",
        instructions="You settle bills. Refund what was charged twice. What is not about money goes back to triage.",
        tools=[refund],
        **_model(_billing),
    )
    triage = Agent(
        name="triage",
        description="Knows who does what.",
        instructions="You greet people and find out what they need. Do not solve it: hand it over.",
        handoffs=[billing, tech],
        **_model(_triage),
    )
    billing.handoffs.append(triage)  # so that billing can hand the conversation back
    return triage


def _model(rules: Any) -> dict[str, Any]:  # noqa: ANN401
    return {} if os.environ.get("HOLDFAST_MODEL") else {"provider": "scripted", "script": rules}


def _ask(session: Session, text: str) -> Response:
    print(f"\nalice: {text}")
    response = session.run(text)
    _tell(response, after=1)
    return response


def _tell(response: Response, after: int) -> None:
    for message in response.messages[after:]:
        if message.role == "assistant" and message.text:
            print(f"{message.author}: {message.text}")
        elif message.role == "tool":
            print(f"  ({message.author}: {message.text})")


def _first_day(path: Path) -> None:
    with SQLiteStore(path) as store:
        session = desk().session(SESSION, store=store, user_id="alice")
        _ask(session, "Hi, I am Alice.")
        response = _ask(session, "I was charged twice for order 17.")
        while response.status == "waiting":  # no process has to wait: the decision may come tomorrow, from any process
            for each in session.pending:
                print(f"  (waits for a person: {each.name} {each.arguments}; the boss says yes)")
                session.approve(each.call_id, actor="boss")
            seen = len(response.messages)
            response = session.resume() or response
            _tell(response, after=seen)
        print(f"\nThe conversation is {session.active_agent}'s now.")


def _next_day(path: Path) -> None:
    with SQLiteStore(path) as store:
        session = Session.open(SESSION, store=store, agent=desk())
        print(f"The next day, the file is opened again: {len(session)} messages, and it is {session.active_agent}'s.")
        _ask(session, "Thank you! And the kettle does not work.")
        print(f"\nThe conversation is {session.active_agent}'s now.")
        handed = [
            f"{event.data['from']} to {event.data['agent']}"
            for event in session.events(types="agent.started", limit=None)
        ]
        print(f"Handed over: {', '.join(handed)}.")
        paid = session.events(types="approval.decided", limit=None)
        print(
            f"Approved: {len(paid)}, by {paid[0].actor if paid else 'nobody'}. The log verifies: {session.verify().ok}."
        )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-desk-") as folder:
        _first_day(Path(folder) / "sessions.db")
        _next_day(Path(folder) / "sessions.db")


if __name__ == "__main__":
    main()
