"""What is proved at each endpoint: a function of a `Stage` that gives a report.

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
from tests.real_model.session_setup import PATIENCE, Stage
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


def tool_call(stage: Stage) -> Report:
    """The model calls a tool, the tool runs once, its result goes back, and the answer has what only the tool knew."""
    degrees = dict(zip(CITIES, random.Random(stage.seed).sample(range(11, 40), len(CITIES)), strict=True))
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

    agent = stage.agent(tools=[get_weather], max_steps=3, max_tokens=80)
    answered, ends = 0, []
    for city in CITIES:
        session_id, before, mark = f"tool-{city}", len(ran), len(stage.witness.exchanges)
        with SQLiteStore(stage.file) as store:
            events, problem = [], ""
            try:
                question = f"What is the weather in {city}?"
                for event in Session(session_id, store=store, agent=agent).stream(question, tool_choice="required"):
                    events.append(event)
            except MaxStepsExceeded as error:
                problem = f"{city}: {error}"
        exchanges = stage.witness.since(mark)
        _check_calls(stage, session_id, ran[before:], exchanges, events)
        if problem:
            ends.append(problem)
            continue
        response = events[-1].response
        messages, _ = stage.recorded(session_id)
        roles = ["user", *["assistant", "tool"] * (len(exchanges) - 1), "assistant"]
        stage.expect([message.role for message in messages] == roles, f"{city}: {messages} is no full tool call")
        stage.expect(response.text == stage.format.said(exchanges[-1]) != "", f"{city}: not the answer of the wire")
        replies = [message.text for message in messages if message.role == "assistant"]
        stage.expect(replies.count(response.text) == 1, f"{city}: the answer is not recorded once")
        if str(degrees[city]) in response.text:
            answered += 1
        else:
            ends.append(f"{city}: answered {response.text!r}")
    stage.expect(answered > 0, "no answer used a tool's result; " + "; ".join(ends))
    unforced = _unforced_calls(stage, agent)
    return stage.report(
        f"{len(ran)} calls ran ({len(CITIES)} forced); {answered} of {len(CITIES)} turns end with the tool's figure; "
        f"unforced the model calls: {unforced} of 1"
    )


def _check_calls(
    stage: Stage, session_id: str, ran: list[tuple[str, str]], exchanges: list[Exchange], events: list[Any]
) -> None:
    """Each call of the wire ran once and is in the log with its result, which went back to the model under its id."""
    _, log = stage.recorded(session_id)
    told = [call for exchange in exchanges for call in stage.format.called(exchange)]
    called = [(event.data["call_id"], event.data["arguments"]) for event in log if event.type == "tool.called"]
    returned = [part for event in log if event.type == "tool.returned" for part in event.data["message"]["parts"]]
    stage.expect(bool(told), f"{session_id}: no tool was called")
    stage.expect(called == [(call_id, json.loads(text)) for call_id, text in told], f"{session_id}: {called} != {told}")
    stage.expect([each["city"] for _, each in called] == [city for city, _ in ran], f"{session_id}: {ran} ran")
    results = [(call_id, result) for (call_id, _), (_, result) in zip(called, ran, strict=False)]
    stage.expect([(part["call_id"], part["content"]) for part in returned] == results, f"{session_id}: {returned}")
    deltas = "".join(event.input_json for event in events if event.type == "input_json_delta")
    stage.expect(deltas == "".join(text for _, text in told), f"{session_id}: the argument deltas are {deltas!r}")
    for asked, exchange in enumerate(exchanges):
        sent = stage.format.results(exchange)
        stage.expect(sent == results[:asked], f"{session_id}: request {asked + 1} has the results {sent}")


def _unforced_calls(stage: Stage, agent: Agent) -> int:
    try:
        return min(1, len(agent.run("What is the weather in Paris?", max_tokens=40).tool_calls))
    except MaxStepsExceeded:
        return 1  # it called, and never stopped


# -- a stream ----------------------------------------------------------------------------------------------------------


def stream(stage: Stage) -> Report:
    """The deltas, the response, the file and the wire have the same text, with `stream` and with `stream_async`."""
    agent = stage.agent()
    question = "Tell me a short story about a cat."

    def plainly(session: Session) -> list[tuple[float, Any]]:
        return [(time.monotonic(), event) for event in session.stream(question)]

    def awaited(session: Session) -> list[tuple[float, Any]]:
        async def all_of_them() -> list[tuple[float, Any]]:
            return [(time.monotonic(), event) async for event in session.stream_async(question)]

        return asyncio.run(all_of_them())

    ways: dict[str, Callable[[Session], list[tuple[float, Any]]]] = {"stream": plainly, "stream_async": awaited}
    figures, texts = [], []
    for name, way in ways.items():
        mark = len(stage.witness.exchanges)
        with SQLiteStore(stage.file) as store:
            began = time.monotonic()
            events = way(Session(name, store=store, agent=agent))
        (exchange,) = stage.witness.since(mark)
        deltas = [(at, event.text) for at, event in events if event.type == "text_delta"]
        text = "".join(delta for _, delta in deltas)
        texts.append(text)
        kinds = [event.type for _, event in events]
        response: Response = events[-1][1].response
        messages, log = stage.recorded(name)
        stage.expect(len(deltas) > 5, f"{name}: {len(deltas)} deltas are no stream")
        stage.expect(
            (kinds[0], kinds[-2:], kinds.count("done")) == ("message_start", ["message_stop", "done"], 1),
            f"{name}: {kinds}",
        )
        stage.expect(text == stage.format.said(exchange), f"{name}: deltas {text!r} are not those of the wire")
        stage.expect(text == response.text == messages[-1].text, f"{name}: {text!r} is not what is recorded")
        stage.expect([message.role for message in messages] == ["user", "assistant"], f"{name}: {messages}")
        stage.expect([event.type for event in log].count("model.replied") == 1, f"{name}: not one reply in the log")
        stage.expect(response.usage.output_tokens > 0, f"{name}: no usage")
        first, last = deltas[0][0], exchange.ended
        stage.expect(first < last, f"{name}: the first delta came when the reply was already complete")
        figures.append(f"{name}: {len(deltas)} deltas, the first after {first - began:.1f} s of {last - began:.1f}")
    same = "the same text twice" if texts[0] == texts[1] else "two different texts"
    return stage.report(f"{'; '.join(figures)}; {same}")


# -- a shape -----------------------------------------------------------------------------------------------------------


def structured_output(stage: Stage) -> Report:
    """`json` gives instances of the asked class, natively asked for; what does not fit never becomes a message.

    Where the endpoint does not hold the model to the shape, three earlier turns of the session show it.
    """
    enforced = stage.format.enforces_shapes
    agent = stage.agent()
    valid, tries, ends = 0, 0, []
    for fruit in FRUITS:
        session_id, mark = f"shape-{fruit}", len(stage.witness.exchanges)
        with SQLiteStore(stage.file) as store:
            session = Session(session_id, store=store, agent=agent)
            for example in () if enforced else EXAMPLES:
                session.add_message(Message.user(f"Describe a {example.name}."))
                session.add_message(Message.assistant(example.model_dump_json()))
            shown = len(session)
            try:
                response = session.json(f"Describe a {fruit}.", schema=Fruit)
            except SchemaValidationError as error:
                ends.append(f"{fruit}: {error}")
                stage.expect(len(session) == shown, f"{fruit}: a refused answer left messages")
                continue
            finally:
                exchanges = stage.witness.since(mark)
                tries += len(exchanges)
        stage.expect(all(map(stage.format.asks_for_a_shape, exchanges)), f"{fruit}: no schema on the wire")
        messages, _ = stage.recorded(session_id)
        stage.expect(isinstance(response.output, Fruit), f"{fruit}: {response.output!r}")
        stage.expect(len(messages) == shown + 2, f"{fruit}: {messages[shown:]}")
        stage.expect(
            Fruit.model_validate_json(messages[-1].text) == response.output, f"{fruit}: recorded {messages[-1].text!r}"
        )
        stage.expect(messages[-1].text == stage.format.said(exchanges[-1]), f"{fruit}: not the answer of the wire")
        valid += 1
    needed = len(FRUITS) if enforced else 1
    stage.expect(valid >= needed, f"{valid} valid, {needed} needed; " + "; ".join(ends))
    how = "held to by the endpoint" if enforced else "the endpoint ignores it, shown by examples"
    return stage.report(
        f"{valid} of {len(FRUITS)} valid in {tries} tries ({how}); by instruction alone: {_by_instruction(stage)}"
    )


def _by_instruction(stage: Stage) -> str:
    """What comes of asking in words only: this model repeats the schema, and is refused."""
    model = LanguageModel(stage.format.provider, MODEL, base_url=stage.base_url, structured="instruction")
    agent = Agent(model=model, temperature=0, max_tokens=30, timeout=PATIENCE)
    with SQLiteStore(stage.file) as store:
        session = Session("shape-in-words", store=store, agent=agent)
        try:
            output = session.json("Describe a strawberry.", schema=Fruit).output
        except SchemaValidationError as error:
            stage.expect(session.messages == [], "in words: a refused answer became a message")
            replies = session.events(limit=None, types="model.replied")
            rejected = [event for event in replies if "rejected" in event.data]
            stage.expect(len(rejected) == error.tries, f"in words: {len(rejected)} of {error.tries} tries in the log")
            return f"refused after {error.tries} tries"
    stage.expect(isinstance(output, Fruit), f"in words: {output!r}")
    return "valid"


# -- a second turn -----------------------------------------------------------------------------------------------------


def second_turn(stage: Stage) -> Report:
    """A second turn, from the file alone: its request has the first one in it, and the model answers from that.

    The control asks the same in a new session: what it cannot know there, it did not have from elsewhere.
    """
    agent = stage.agent(instructions="Answer in one short sentence.", max_tokens=24)
    words = random.Random(stage.seed).sample(WORDS, 3)
    recalled, guessed = 0, 0
    question = "What is the secret word?"
    for word in words:
        session_id, mark = f"memory-{word}", len(stage.witness.exchanges)
        told = f"The secret word is {word}."
        with SQLiteStore(stage.file) as store:
            first = Session(session_id, store=store, agent=agent).run(told)
        with SQLiteStore(stage.file) as store:
            second = Session.open(session_id, store=store, agent=agent).run(question)
        exchanges = stage.witness.since(mark)
        stage.expect(len(exchanges) == 2, f"{word}: {len(exchanges)} requests for two turns")
        sent = [each for each in stage.format.conversation(exchanges[-1]) if each[0] != "system"]
        stage.expect(
            sent == [("user", told), ("assistant", first.text), ("user", question)],
            f"{word}: the model was sent {sent}",
        )
        grown = second.usage.input_tokens - first.usage.input_tokens
        stage.expect(grown >= first.usage.output_tokens, f"{word}: the engine read only {grown} tokens more")
        messages, log = stage.recorded(session_id)
        texts = [told, first.text, question, second.text]
        stage.expect(bool(first.text and second.text), f"{word}: an empty answer")
        stage.expect([message.text for message in messages] == texts, f"{word}: recorded {messages}")
        stage.expect([event.type for event in log].count("model.replied") == 2, f"{word}: not two replies in the log")
        recalled += word in second.text.lower()
        guessed += word in agent.run(question).text.lower()
    stage.expect(recalled > guessed, f"the word was recalled {recalled} times, and guessed {guessed} times without it")
    return stage.report(
        f"recalled {recalled} of {len(words)} from the first turn; control without it: {guessed} of {len(words)}"
    )


# -- a reply that breaks off -------------------------------------------------------------------------------------------


def broken_reply(stage: Stage) -> Report:
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

    agent = stage.agent(tools=[get_weather])
    what = "none"
    with SQLiteStore(stage.file) as store:
        session = Session("broken", store=store, agent=agent)
        try:
            session.run("What is the weather in Paris?", tool_choice="required", max_tokens=16)
        except ProviderError as error:
            what = type(error).__name__
        stage.expect(what != "none", "a reply that was cut inside its call was taken for a whole one")
        stage.expect(not ran, f"a call that was cut ran: {ran}")
        stage.expect(session.messages == [], f"the failed turn left {session.messages}")
    with SQLiteStore(stage.file) as store:
        after = Session.open("broken", store=store, agent=stage.agent()).run("Hello!", max_tokens=16)
    messages, log = stage.recorded("broken")
    stage.expect([message.text for message in messages] == ["Hello!", after.text], f"afterwards: {messages}")
    failed = [event.type for event in log if event.type.startswith("turn.")]
    stage.expect(failed == ["turn.started", "turn.failed", "turn.started", "turn.finished"], f"the log says {failed}")
    return stage.report(f"{what}; {len(ran)} calls ran; the next turn gave {len(after.text)} characters")


PROOFS: tuple[Callable[[Stage], Report], ...] = (tool_call, stream, structured_output, second_turn, broken_reply)
