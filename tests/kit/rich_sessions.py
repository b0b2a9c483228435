"""Sessions that hold every type of event, written by holdfast itself: turns of all kinds, and what is around them."""

from __future__ import annotations

from typing import Any

from holdfast import Agent, File, Image, Interrupt, Message, Session, interrupt, tool
from holdfast.errors import AgentError
from holdfast.flow import LoopAgent, ParallelAgent, RoutingAgent, SequentialAgent, exit_loop
from holdfast.log.events import Draft
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing import call, error
from holdfast.worker.admission import RunRequest, admit_message, cancel_run

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"the sum is {a + b}"


@tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@tool
def shout(times: int) -> str:
    """Say a lot."""
    return "a long result " * times


@tool
def draw() -> Image:
    """Draw an image."""
    return Image(data=b"pixels", media_type="image/png")


@tool(approval="always", approval_timeout=10_000)
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool
def ask() -> str:
    """Ask a person."""
    return f"a person said {interrupt({'question': 'why?'})}"


@tool
def stop() -> str:
    """Stop for a person."""
    raise Interrupt({"reason": "stop"})


def make_agent(name: str | None, *script: Any, **more: Any) -> Agent:
    return Agent(provider="scripted", script=list(script), name=name, **more)


def make_rich_sessions(store: Store) -> list[Session]:
    """Return sessions that hold, together, every type of event that a session can have."""
    made = [
        _talk(store),
        _approvals(store),
        _flows(store),
        _failures(store),
        _queue(store),
        _upkeep(store),
        _removals(store),
        _restored(store),
    ]
    made += [made[0].fork("fork"), made[0].fork("early", at=made[0].head // 2), made[0].successor("successor")]
    made.append(Session.import_(made[1].export(), session_id="imported", store=store))
    made.append(made[-1].fork("inside", at=made[-1].head - 3))
    return made


def _talk(store: Store) -> Session:
    tools = [add, fail, shout, draw]
    script = [
        [call("add", {"a": 1, "b": 2}), call("fail", {"why": "no"}), call("unknown", {}), call("add", {"a": "x"})],
        [call("shout", {"times": 30_000}), call("draw", {})],
        "It is 3.",
        "no JSON",
        '{"n": 3}',
    ]
    helper = make_agent("helper", "helped").as_tool()
    agent = make_agent("calc", *script, call("helper", {"message": "help"}), "done", tools=[*tools, helper])
    session = agent.session(
        "talk", store=store, user_id="ann", app_name="shop", system="Be kind.", title="Sums", state={"a": [1]},
        metadata={"m": {"n": 1}}, budget={"tokens": 10**9, "cost": 5.0, "prices": {"input": 1.0, "output": 2.0}},
        retention={"ttl_days": 30.5, "archive_after_days": 3, "max_messages": 900},
    )  # fmt: skip
    session.add_message(Message.user("look", File(data=b"%PDF", media_type="application/pdf", name="f.pdf")))
    session.add_message(Message("user", ["said before"], metadata={"x": 1}, author="bob"))
    session.run("What is 1 + 2?", temperature=0.5, metadata={"trace": "t1"})
    session.json("As JSON?", schema=NUMBER)
    session.run("Ask the helper.")
    session.set_state("b", {"deep": [None, True]})
    session.delete_state("a")
    fact = session.facts.add("use PostgreSQL", kind="decision", status="open", ref="docs/x.md")
    session.facts.update(fact.id, status="done")
    session.facts.remove(session.facts.add("to be removed").id)
    session.budget = None
    return session


def _approvals(store: Store) -> Session:
    script = [
        [call("pay", {"cents": 5}, id="p1"), call("pay", {"cents": 6}, id="p2"), call("pay", {"cents": 7}, id="p3")],
        call("ask", {}, id="a1"),
        "paid",
        call("stop", {}, id="s1"),
    ]
    agent = make_agent("payer", *script, tools=[pay, ask, stop])
    session = agent.session("approvals", store=store)
    session.run("pay")
    session.approve("p1", actor="boss")
    session.approve("p2", arguments={"cents": 1}, actor="boss")
    session.deny("p3", "too much", actor="boss")
    session.resume()
    session.answer("a1", {"because": 1}, actor="boss")
    session.resume()
    session.run("stop")  # it waits
    return session


def _flows(store: Store) -> Session:
    session = Session("flows", store=store)
    a, b = make_agent("a", "a says"), make_agent("b", error("down"))
    parallel = ParallelAgent([a, b], name="both", on_error="collect")
    session.run("one", agent=SequentialAgent([parallel, make_agent("c", "c says")], name="row"))
    again = make_agent("again", "more", call("exit_loop", {"reason": "enough"}), tools=[exit_loop])
    session.run("two", agent=LoopAgent(name="loop", sub_agents=[again], max_iterations=4))
    chooser = RoutingAgent(
        name="router", model=make_agent("m", '{"agent": "c"}').model, sub_agents=[make_agent("c", "c says again")]
    )
    try:
        session.run("three", agent=chooser)
    except AgentError:
        pass  # the router's question is in the log all the same
    billing = make_agent("billing", "billing here")
    session.run("four", agent=make_agent("front", call("transfer_to_billing", {}), handoffs=[billing]))
    session.active_agent = None
    return session


def _failures(store: Store) -> Session:
    session = Session("failures", store=store)
    agent = make_agent("f", error("down"), "up again")
    try:
        session.run("fail", agent=agent)
    except AgentError:
        pass
    session.retry(agent)
    stream: Any = session.stream("left", agent=make_agent("left", "a reply of several words that streams"))
    for event in stream:
        if event.type == "text_delta":
            break
    stream.close()
    # A process that ended in the middle of a turn: it is settled by the next message.
    drafts = [
        Draft(type="turn.started", run="r-crashed", data={"agent": None, "options": {}}),
        Draft(type="message.added", run="r-crashed", data={"role": "user", "text": "crashed"}),
    ]
    session.store.append(session.log, drafts)
    session.run("settle it", agent=make_agent("s", "settled"))
    session.store.append(session.log, [Draft(type=each.type, run="r-2", data=each.data) for each in drafts])
    session.resume(make_agent("r", "resumed"))
    return session


def _queue(store: Store) -> Session:
    session = Session("queue", store=store)
    more: dict[str, Any] = {"on_busy": "interrupt", "agent": "x", "metadata": {"k": 1}}
    for text, options in (("first", {}), ("second", more)):
        run = admit_message(store, session.log, RunRequest(message=Message.user(text), actor="key", **options))
        cancel_run(store, session.log, run.run_id, actor="ops")
    admit_message(store, session.log, RunRequest(message=Message.user("third", Image(url="https://x/y.png"))))
    return session


def _upkeep(store: Store) -> Session:
    session = Session("upkeep", store=store)
    session.add_messages([Message.user(f"note {number}") for number in range(12)])
    session.prune("keep_last_8", actor="ops")
    session.undo_prune(actor="ops")
    session.prune("summarize_old", threshold=6, agent=make_agent("m", "A summary."))
    session.prune("summarize_old", threshold=2)
    session.rewind(5, actor="ops")
    session.clear(actor="ops")
    for move in (session.pause, session.resume, session.close, session.reopen, session.archive, session.reopen):
        move(reason="because", actor="ops")
    session.hold("case 42", actor="counsel")
    session.release("over", actor="counsel")
    session.retention = {"ttl_days": 5}
    session.change(title="T", metadata={"a": 1}, work_dir="/srv/x", system="Be brief.")
    session.title = None
    return session


def _removals(store: Store) -> Session:
    agent = make_agent("calc", call("add", {"a": 4711, "b": 815}), "The sum is 5526.", tools=[add])
    session = agent.session("removals", store=store, state={"card": "4711-0815"})
    session.run("What is 4711 + 815?")
    file = session.add_message(Message.user("secret file", File(data=b"secret", media_type="a/b")))
    session.redact(file, reason="asked", actor="dpo")
    session.redact(4, reason="asked", actor="dpo")
    fact = session.facts.add("a secret fact")
    session.facts.update(fact.id, text="still secret")
    session.redact(session.head - 1, reason="asked")
    gone = Session("gone", store=store, title="gone", messages=[Message.user("gone")], state={"x": 1})
    gone.fork("of-gone")
    gone.erase(reason="asked", actor="dpo")
    return session


def _restored(store: Store) -> Session:
    source = make_agent("s", call("pay", {"cents": 5}, id="p1"), tools=[pay]).session("source", store=MemoryStore())
    source.add_message(Message.user("hello"))
    source.facts.add("known")
    source.run("pay")
    document = source.to_dict()
    store.save("restored", document)
    plain = Session("plain", store=MemoryStore(), messages=[Message.user("x")], state={"a": 1}, title="T").to_dict()
    store.save("rewritten", plain)
    store.save("rewritten", plain | {"messages": [], "state": {"b": 2}, "title": None, "status": "closed"})
    return Session.open("restored", store=store)
