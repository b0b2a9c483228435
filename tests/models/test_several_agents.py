"""Agents of different providers in one session: what goes over the wire is what each provider accepts.

The endpoint is real and on loopback; the bodies are judged by what both providers insist on.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Message, Session, tool
from holdfast.flow import ParallelAgent, Router, SequentialAgent
from holdfast.stores import MemoryStore
from tests.models.frames import Reply
from tests.models.loopback_provider import Provider, make_http_error

NAMES = {"openai": "gpt-4o", "anthropic": "claude-sonnet-5"}
PATHS = {"/chat/completions": "openai", "/v1/messages": "anthropic"}


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} means something"


@pytest.fixture
def make_agent(provider: Provider) -> Any:
    def make(wire: str, name: str, **options: Any) -> Agent:
        base: dict[str, Any] = {"base_url": provider.url, "api_key": "k", "max_retries": 0}
        return Agent(provider=wire, model=NAMES[wire], name=name, **base, **options)

    return make


def find_objections(path: str, body: dict[str, Any]) -> list[str]:
    """Why a provider would not take this body."""
    return _find_openai_objections(body) if PATHS[path] == "openai" else _find_anthropic_objections(body)


def _find_openai_objections(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    known = {spec["function"]["name"] for spec in body.get("tools", [])}
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                found.append(f"a result of {message['tool_call_id']}, which is not waited for")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            found.append(f"{message['role']} speaks while {waiting} are waited for")
        for call in message.get("tool_calls", []):
            waiting.append(call["id"])
            if call["function"]["name"] not in known:
                found.append(f"a call of {call['function']['name']}, which is no tool of this agent")
    if waiting or body["messages"][-1]["role"] == "assistant":
        found.append("the assistant has the last word")
    return found


def _find_anthropic_objections(body: dict[str, Any]) -> list[str]:
    found: list[str] = []
    known = {spec["name"] for spec in body.get("tools", [])}
    roles = [message["role"] for message in body["messages"]]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        found.append(f"the roles are {roles}")
    waiting: list[str] = []
    for message in body["messages"]:
        for block in message["content"]:
            if block["type"] == "tool_use":
                waiting.append(block["id"])
                if block["name"] not in known:
                    found.append(f"a call of {block['name']}, which is no tool of this agent")
            elif block["type"] == "tool_result":
                if block["tool_use_id"] not in waiting:
                    found.append("a result that is not waited for")
                else:
                    waiting.remove(block["tool_use_id"])
            elif block["type"] == "thinking" and block.get("signature") != "c2lnbmVk":
                found.append("thinking without its signature")
            elif block["type"] == "text" and not block["text"].strip():
                found.append("an empty text")
    return found + ([f"{waiting} have no result"] if waiting else [])


def check_requests_accepted(provider: Provider) -> None:
    for seen in provider.requests:
        assert find_objections(seen.path, seen.body) == [], seen.body["messages"]


CALL = Reply(text="I look.", thinking="hm", calls=[("call_1", "look_up", '{"word": "bee"}')])


@pytest.mark.parametrize(("first", "second"), [("openai", "anthropic"), ("anthropic", "openai"), ("anthropic",) * 2])
def test_a_conversation_moves_to_another_provider(provider: Provider, make_agent: Any, first: str, second: str) -> None:
    provider.enqueue(CALL, make_http_error(500), Reply(text="A bee."), Reply(text="Yes."))
    router = Router([make_agent(first, "main", tools=[look_up]), make_agent(second, "spare", tools=[look_up])])
    session = router.session(store=MemoryStore())
    assert session.run("What is a bee?").text == "A bee."
    assert session.run("Sure?").text == "Yes."
    check_requests_accepted(provider)
    body = str(provider.requests[2].body)
    assert "c2lnbmVk" not in body  # thinking is for the model that thought it
    assert "[main] look_up returned: bee means something" in body


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_agents_in_a_flow_and_after_a_handoff(provider: Provider, make_agent: Any, wire: str) -> None:
    other = "anthropic" if wire == "openai" else "openai"
    provider.enqueue(
        Reply(text="", calls=[("call_1", "transfer_to_expert", '{"reason": "bees"}')]),
        CALL,
        Reply(text="It is an insect."),
        Reply(text="One."),
        Reply(text="Two."),
        Reply(text="In short: an insect."),
        Reply(text="You are welcome."),
    )
    expert = make_agent(other, "expert", tools=[look_up])
    desk = make_agent(wire, "desk", handoffs=[expert])
    session = Session(store=MemoryStore(), messages=[Message.user("Hi"), Message.assistant("Hello", author="desk")])
    assert session.run("What is a bee?", agent=desk).text == "It is an insect."
    views = ParallelAgent([make_agent(wire, "one"), make_agent(other, "two")], max_concurrency=1)
    assert session.run("And views?", agent=SequentialAgent([views, desk])).text == "In short: an insect."
    assert session.run("Thanks", agent=desk).messages[-1].author == "expert"
    check_requests_accepted(provider)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_an_agent_without_tools_goes_on_where_one_had_some(provider: Provider, make_agent: Any, wire: str) -> None:
    provider.enqueue(CALL, Reply(text="A bee."), Reply(text="Yes."))
    session = Session(store=MemoryStore())
    session.run("What is a bee?", agent=make_agent(wire, None, tools=[look_up]))
    session.run("Sure?", agent=make_agent(wire, None))
    check_requests_accepted(provider)
    assert "[assistant] look_up returned: bee means something" in str(provider.requests[2].body)


def test_the_check_finds_objections() -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look_up", "input": {}}]}
    assert find_objections("/v1/messages", {"messages": [question]}) == []
    assert len(find_objections("/v1/messages", {"messages": [question, call]})) == 3
    asked = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look_up"}}]}
    assert len(find_objections("/chat/completions", {"messages": [question, asked]})) == 2
