"""What is proved at each endpoint: a function of a `ProofSetup` that gives a report.

Wherever the model has to be clever there are three tries, of which one must succeed; the figures say how many did.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from holdfast import Agent, LanguageModel, Message, Response, Session, tool
from holdfast.errors import MaxStepsExceeded, ProviderError, SchemaValidationError
from holdfast.stores import SQLiteStore
from tests.proofs import Report
from tests.real_model.engine import MODEL
from tests.real_model.session_setup import PATIENCE, ProofSetup
from tests.real_model.wire_recorder import Exchange

CITIES = ("Paris", "Rome", "Oslo")
WORDS = ("banana", "lantern", "copper", "violin", "window", "pepper", "marble", "castle")
FRUITS = ("strawberry", "banana", "plum")


class Fruit(BaseModel):
    """The asked shape. Names are bounded: a model this small may write one without end."""

    name: str = Field(max_length=24)
    colour: str = Field(max_length=24)
    sweet: bool


EXAMPLES = (
    Fruit(name="lemon", colour="yellow", sweet=False),
    Fruit(name="cherry", colour="red", sweet=True),
    Fruit(name="lime", colour="green", sweet=False),
)


# -- a tool call -------------------------------------------------------------------------------------------------------


def tool_call(setup: ProofSetup) -> Report:
    """The model calls a tool, the tool runs once, its result goes back, and the answer has what only the tool knew."""
    degrees = dict(zip(CITIES, random.Random(setup.seed).sample(range(11, 40), len(CITIES)), strict=True))
    ran: list[tuple[str, str]] = []  # what was asked, and the result

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: the city
        """
        result = f"The weather in {city} is {degrees.get(city, 50)} degrees and a clear sky."
        ran.append((city, result))
        return result

    agent = setup.agent(tools=[get_weather], max_steps=3, max_tokens=80)
    answered, ends = 0, []
    for city in CITIES:
        session_id, before, mark = f"tool-{city}", len(ran), len(setup.recorder.exchanges)
        with SQLiteStore(setup.file) as store:
            events, problem = [], ""
            try:
                question = f"What is the weather in {city}?"
                for event in Session(session_id, store=store, agent=agent).stream(question, tool_choice="required"):
                    events.append(event)
            except MaxStepsExceeded as error:
                problem = f"{city}: {error}"
        exchanges = setup.recorder.since(mark)
        _check_calls(setup, session_id, ran[before:], exchanges, events)
        if problem:
            ends.append(problem)
            continue
        response = events[-1].response
        messages, _ = setup.read_session(session_id)
        roles = ["user", *["assistant", "tool"] * (len(exchanges) - 1), "assistant"]
        setup.expect([message.role for message in messages] == roles, f"{city}: {messages} is no full tool call")
        setup.expect(
            response.text == setup.format.read_text(exchanges[-1]) != "", f"{city}: not the answer of the wire"
        )
        replies = [message.text for message in messages if message.role == "assistant"]
        setup.expect(replies.count(response.text) == 1, f"{city}: the answer is not recorded once")
        if str(degrees[city]) in response.text:
            answered += 1
        else:
            ends.append(f"{city}: answered {response.text!r}")
    setup.expect(answered > 0, "no answer used a tool's result; " + "; ".join(ends))
    unforced = _unforced_calls(setup, agent)
    return setup.report(
        f"{len(ran)} calls ran ({len(CITIES)} forced); {answered} of {len(CITIES)} turns end with the tool's figure; "
        f"unforced the model calls: {unforced} of 1"
    )


def _check_calls(
    setup: ProofSetup, session_id: str, ran: list[tuple[str, str]], exchanges: list[Exchange], events: list[Any]
) -> None:
    """Each call of the wire ran once and is in the log with its result, which went back to the model under its id."""
    _, log = setup.read_session(session_id)
    told = [call for exchange in exchanges for call in setup.format.list_calls(exchange)]
    called = [(event.data["call_id"], event.data["arguments"]) for event in log if event.type == "tool.called"]
    returned = [part for event in log if event.type == "tool.returned" for part in event.data["message"]["parts"]]
    setup.expect(bool(told), f"{session_id}: no tool was called")
    setup.expect(called == [(call_id, json.loads(text)) for call_id, text in told], f"{session_id}: {called} != {told}")
    setup.expect([each["city"] for _, each in called] == [city for city, _ in ran], f"{session_id}: {ran} ran")
    results = [(call_id, result) for (call_id, _), (_, result) in zip(called, ran, strict=False)]
    setup.expect([(part["call_id"], part["content"]) for part in returned] == results, f"{session_id}: {returned}")
    deltas = "".join(event.input_json for event in events if event.type == "input_json_delta")
    setup.expect(deltas == "".join(text for _, text in told), f"{session_id}: the argument deltas are {deltas!r}")
    for asked, exchange in enumerate(exchanges):
        sent = setup.format.list_results(exchange)
        setup.expect(sent == results[:asked], f"{session_id}: request {asked + 1} has the results {sent}")


def _unforced_calls(setup: ProofSetup, agent: Agent) -> int:
    try:
        return min(1, len(agent.run("What is the weather in Paris?", max_tokens=40).tool_calls))
    except MaxStepsExceeded:
        return 1  # it called, and never stopped


# -- a stream ----------------------------------------------------------------------------------------------------------


def stream(setup: ProofSetup) -> Report:
    """The deltas, the response, the file and the wire have the same text, with `stream` and with `stream_async`."""
    agent = setup.agent()
    question = "Tell me a short story about a cat."

    def read_stream(session: Session) -> list[tuple[float, Any]]:
        return [(time.monotonic(), event) for event in session.stream(question)]

    def read_stream_async(session: Session) -> list[tuple[float, Any]]:
        async def gather_events() -> list[tuple[float, Any]]:
            return [(time.monotonic(), event) async for event in session.stream_async(question)]

        return asyncio.run(gather_events())

    ways: dict[str, Callable[[Session], list[tuple[float, Any]]]] = {
        "stream": read_stream,
        "stream_async": read_stream_async,
    }
    figures, texts = [], []
    for name, way in ways.items():
        mark = len(setup.recorder.exchanges)
        with SQLiteStore(setup.file) as store:
            began = time.monotonic()
            events = way(Session(name, store=store, agent=agent))
        (exchange,) = setup.recorder.since(mark)
        deltas = [(at, event.text) for at, event in events if event.type == "text_delta"]
        text = "".join(delta for _, delta in deltas)
        texts.append(text)
        kinds = [event.type for _, event in events]
        response: Response = events[-1][1].response
        messages, log = setup.read_session(name)
        setup.expect(len(deltas) > 5, f"{name}: {len(deltas)} deltas are no stream")
        setup.expect(
            (kinds[0], kinds[-2:], kinds.count("done")) == ("message_start", ["message_stop", "done"], 1),
            f"{name}: {kinds}",
        )
        setup.expect(text == setup.format.read_text(exchange), f"{name}: deltas {text!r} are not those of the wire")
        setup.expect(text == response.text == messages[-1].text, f"{name}: {text!r} is not what is recorded")
        setup.expect([message.role for message in messages] == ["user", "assistant"], f"{name}: {messages}")
        setup.expect([event.type for event in log].count("model.replied") == 1, f"{name}: not one reply in the log")
        setup.expect(response.usage.output_tokens > 0, f"{name}: no usage")
        first, last = deltas[0][0], exchange.ended
        setup.expect(first < last, f"{name}: the first delta came when the reply was already complete")
        figures.append(f"{name}: {len(deltas)} deltas, the first after {first - began:.1f} s of {last - began:.1f}")
    same = "the same text twice" if texts[0] == texts[1] else "two different texts"
    return setup.report(f"{'; '.join(figures)}; {same}")


# -- a shape -----------------------------------------------------------------------------------------------------------


def structured_output(setup: ProofSetup) -> Report:
    """`json` gives instances of the asked class, natively asked for; what does not fit never becomes a message.

    Where the endpoint does not hold the model to the shape, three earlier turns of the session show it.
    """
    enforced = setup.format.enforces_schemas
    agent = setup.agent()
    valid, tries, ends = 0, 0, []
    for fruit in FRUITS:
        session_id, mark = f"shape-{fruit}", len(setup.recorder.exchanges)
        with SQLiteStore(setup.file) as store:
            session = Session(session_id, store=store, agent=agent)
            for example in () if enforced else EXAMPLES:
                session.add_message(Message.user(f"Describe a {example.name}."))
                session.add_message(Message.assistant(example.model_dump_json()))
            shown = len(session)
            try:
                response = session.json(f"Describe a {fruit}.", schema=Fruit)
            except SchemaValidationError as error:
                ends.append(f"{fruit}: {error}")
                setup.expect(len(session) == shown, f"{fruit}: a refused answer left messages")
                continue
            finally:
                exchanges = setup.recorder.since(mark)
                tries += len(exchanges)
        setup.expect(all(map(setup.format.requests_schema, exchanges)), f"{fruit}: no schema on the wire")
        messages, _ = setup.read_session(session_id)
        setup.expect(isinstance(response.output, Fruit), f"{fruit}: {response.output!r}")
        setup.expect(len(messages) == shown + 2, f"{fruit}: {messages[shown:]}")
        setup.expect(
            Fruit.model_validate_json(messages[-1].text) == response.output, f"{fruit}: recorded {messages[-1].text!r}"
        )
        setup.expect(messages[-1].text == setup.format.read_text(exchanges[-1]), f"{fruit}: not the answer of the wire")
        valid += 1
    needed = len(FRUITS) if enforced else 1
    setup.expect(valid >= needed, f"{valid} valid, {needed} needed; " + "; ".join(ends))
    how = "held to by the endpoint" if enforced else "the endpoint ignores it, shown by examples"
    return setup.report(
        f"{valid} of {len(FRUITS)} valid in {tries} tries ({how}); by instruction alone: {_by_instruction(setup)}"
    )


def _by_instruction(setup: ProofSetup) -> str:
    """What comes of asking in words only: this model repeats the schema, and is refused."""
    model = LanguageModel(setup.format.provider, MODEL, base_url=setup.base_url, structured="instruction")
    agent = Agent(model=model, temperature=0, max_tokens=30, timeout=PATIENCE)
    with SQLiteStore(setup.file) as store:
        session = Session("shape-in-words", store=store, agent=agent)
        try:
            output = session.json("Describe a strawberry.", schema=Fruit).output
        except SchemaValidationError as error:
            setup.expect(session.messages == [], "in words: a refused answer became a message")
            replies = session.events(limit=None, types="model.replied")
            rejected = [event for event in replies if "rejected" in event.data]
            setup.expect(len(rejected) == error.tries, f"in words: {len(rejected)} of {error.tries} tries in the log")
            return f"refused after {error.tries} tries"
    setup.expect(isinstance(output, Fruit), f"in words: {output!r}")
    return "valid"


# -- a second turn -----------------------------------------------------------------------------------------------------


def second_turn(setup: ProofSetup) -> Report:
    """A second turn, from the file alone: its request has the first one in it, and the model answers from that.

    The control asks the same in a new session: what it cannot know there, it did not have from elsewhere.
    """
    agent = setup.agent(instructions="Answer in one short sentence.", max_tokens=24)
    words = random.Random(setup.seed).sample(WORDS, 3)
    recalled, guessed = 0, 0
    question = "What is the secret word?"
    for word in words:
        session_id, mark = f"memory-{word}", len(setup.recorder.exchanges)
        told = f"The secret word is {word}."
        with SQLiteStore(setup.file) as store:
            first = Session(session_id, store=store, agent=agent).run(told)
        with SQLiteStore(setup.file) as store:
            second = Session.open(session_id, store=store, agent=agent).run(question)
        exchanges = setup.recorder.since(mark)
        setup.expect(len(exchanges) == 2, f"{word}: {len(exchanges)} requests for two turns")
        sent = [each for each in setup.format.list_messages(exchanges[-1]) if each[0] != "system"]
        setup.expect(
            sent == [("user", told), ("assistant", first.text), ("user", question)],
            f"{word}: the model was sent {sent}",
        )
        grown = second.usage.input_tokens - first.usage.input_tokens
        setup.expect(grown >= first.usage.output_tokens, f"{word}: the engine read only {grown} tokens more")
        messages, log = setup.read_session(session_id)
        texts = [told, first.text, question, second.text]
        setup.expect(bool(first.text and second.text), f"{word}: an empty answer")
        setup.expect([message.text for message in messages] == texts, f"{word}: recorded {messages}")
        setup.expect([event.type for event in log].count("model.replied") == 2, f"{word}: not two replies in the log")
        recalled += word in second.text.lower()
        guessed += word in agent.run(question).text.lower()
    setup.expect(recalled > guessed, f"the word was recalled {recalled} times, and guessed {guessed} times without it")
    return setup.report(
        f"recalled {recalled} of {len(words)} from the first turn; control without it: {guessed} of {len(words)}"
    )


# -- a reply that breaks off -------------------------------------------------------------------------------------------


def broken_reply(setup: ProofSetup) -> Report:
    """A real fault: cut inside a call, this engine ends its stream with an error. Nothing runs, the session goes on."""
    ran: list[str] = []

    @tool
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: the city
        """
        ran.append(city)
        return "clear"

    agent = setup.agent(tools=[get_weather])
    what = "none"
    with SQLiteStore(setup.file) as store:
        session = Session("broken", store=store, agent=agent)
        try:
            session.run("What is the weather in Paris?", tool_choice="required", max_tokens=16)
        except ProviderError as error:
            what = type(error).__name__
        setup.expect(what != "none", "a reply that was cut inside its call was taken for a whole one")
        setup.expect(not ran, f"a call that was cut ran: {ran}")
        setup.expect(session.messages == [], f"the failed turn left {session.messages}")
    with SQLiteStore(setup.file) as store:
        after = Session.open("broken", store=store, agent=setup.agent()).run("Hello!", max_tokens=16)
    messages, log = setup.read_session("broken")
    setup.expect([message.text for message in messages] == ["Hello!", after.text], f"afterwards: {messages}")
    failed = [event.type for event in log if event.type.startswith("turn.")]
    setup.expect(failed == ["turn.started", "turn.failed", "turn.started", "turn.finished"], f"the log says {failed}")
    return setup.report(f"{what}; {len(ran)} calls ran; the next turn gave {len(after.text)} characters")


PROOFS: tuple[Callable[[ProofSetup], Report], ...] = (tool_call, stream, structured_output, second_turn, broken_reply)
