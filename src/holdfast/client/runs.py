"""Asking an agent of the server in a session, and taking up what was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.base import Remote, given
from holdfast.client.parsers import Run, pending_of, response_of, run_of
from holdfast.client.requests import Call, Flow, get, place, post
from holdfast.client.stream import RunTail
from holdfast.client.waiting import patiently
from holdfast.errors import AgentError, SchemaValidationError
from holdfast.log.identifiers import checked_name
from holdfast.log.messages import Message
from holdfast.turn.response import Pending, Response

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.schema.output import OutputShape
    from holdfast.session.turns import Unfinished
    from holdfast.turn.replay import Replay

R = TypeVar("R", bound=Remote)
Question = str | Message | Mapping[str, Any]


def run(
    self: Remote,
    message: Question,
    *,
    agent: str | Agent | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tool_choice: str | None = None,
    stop: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    on_busy: str | None = None,
) -> Flow[Response]:
    """Ask, and wait for the answer. If the connection breaks, the run goes on and this attaches to it again. `on_busy`
    is what happens if the session is busy: "enqueue" (the default), "reject" or "interrupt"."""
    body = _asked(self, message, agent, None, temperature, max_tokens, tool_choice, stop, metadata, timeout, on_busy)
    return response_of((yield from _answered(self, post(self._path("message"), body, waits=True))))


def json(
    self: Remote,
    message: Question,
    *,
    schema: object,
    agent: str | Agent | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    stop: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    on_busy: str | None = None,
) -> Flow[Response]:
    """Ask for `response.output` of a shape: a pydantic model, dataclass, TypedDict or JSON Schema. The server asks for
    its JSON Schema, the instance is made here."""
    shape = shape_of(schema)
    body = _asked(self, message, agent, shape, temperature, max_tokens, None, stop, metadata, timeout, on_busy)
    return shaped(shape, response_of((yield from _answered(self, post(self._path("message"), body, waits=True)))))


def streamed(
    self: Remote,
    message: Question,
    *,
    agent: str | Agent | None = None,
    schema: object = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tool_choice: str | None = None,
    stop: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    on_busy: str | None = None,
) -> RunTail:
    """Ask, and see the answer come. Leaving the loop early cancels the turn; a lost connection does not: the stream
    reconnects by itself."""
    shape = None if schema is None else shape_of(schema)
    body = _asked(self, message, agent, shape, temperature, max_tokens, tool_choice, stop, metadata, timeout, on_busy)

    def finish(response: Response) -> Response:
        self._temp.clear()
        return shaped(shape, response)

    return RunTail(post(self._path("message", "stream"), body), finish)


def resume(
    self: Remote, agent: str | Agent | None = None, *, reason: str | None = None, actor: str | None = None
) -> Flow[Response | None]:
    """Un-pause if paused; then finish the unfinished or decided turn, if there is one, and return its response."""
    body = self._with_agent(agent, reason=reason, actor=actor)
    found = yield from _answered(self, post(self._path("resume"), body, waits=True))
    return None if found["status"] == "idle" else response_of(found)


def _asked(
    self: Remote,
    message: Question,
    agent: str | Agent | None,
    shape: OutputShape | None,
    temperature: float | None,
    max_tokens: int | None,
    tool_choice: str | None,
    stop: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    timeout: float | None,
    on_busy: str | None,
) -> dict[str, Any]:
    return self._with_agent(
        agent,
        message=message if isinstance(message, str) else Message.of(message).to_dict(),
        schema=None if shape is None else shape.schema,
        temperature=temperature,
        max_tokens=max_tokens,
        tool_choice=tool_choice,
        stop=[stop] if isinstance(stop, str) else None if stop is None else list(stop),
        metadata=None if metadata is None else dict(metadata),
        timeout=timeout,
        on_busy=on_busy,
    )


def _answered(self: Remote, call: Call) -> Flow[Any]:
    """The answer of a run. Somebody who stops waiting for it (a cancelled task, Ctrl-C) has cancelled it."""
    try:
        found = yield from patiently(call)
    except AgentError:
        raise
    except BaseException:
        yield from cancel_asked(self, call)
        raise
    self._temp.clear()  # it is for one run
    return found


def leave(self: Remote, tail: RunTail) -> Flow[None]:
    """Cancel the run of a stream that nobody reads any more."""
    if tail.run_id is None:
        yield from cancel_asked(self, tail.call())
    elif not tail.is_over:
        yield from cancel(self, tail.run_id)


def cancel_asked(self: Remote, call: Call) -> Flow[None]:
    """Cancel the run that a call asked for, of which only the key is known."""
    assert call.key is not None
    try:
        yield post(self._path("runs", call.key, "cancel"))
    except AgentError:
        pass  # it is over, or nobody can be told


# -- the shape of an answer --------------------------------------------------------------------------------------------


def shape_of(schema: object) -> OutputShape:
    from holdfast.schema.output import OutputShape

    return OutputShape(schema)


def shaped(shape: OutputShape | None, response: Response) -> Response:
    """The response with its output as an instance. The server checked what a JSON Schema says; a type may say more."""
    from holdfast.schema.output import BadOutput

    if shape is None or response.status != "finished":
        return response
    try:
        return replace(response, output=shape.read(response.text))
    except BadOutput as error:
        raise SchemaValidationError(str(error), text=response.text, tries=response.steps) from error


# -- decisions, and what was left --------------------------------------------------------------------------------------


def pending(self: Remote) -> Flow[list[Pending]]:
    """The calls that wait for a person's decision."""
    return [pending_of(each) for each in (yield get(self._path("approvals")))["pending"]]


def approve(self: Remote, call_id: str, *, actor: str | None = None) -> Flow[None]:
    """Let a waiting call run, at the next `resume()`; from any process."""
    yield post(self._path("approvals", checked_name(call_id, "call_id")), given(approved=True, actor=actor))


def deny(self: Remote, call_id: str, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """Refuse a waiting call; the model is told so, and why."""
    body = given(approved=False, reason=reason, actor=actor)
    yield post(self._path("approvals", checked_name(call_id, "call_id")), body)


def unfinished(self: Remote) -> Flow[Unfinished | None]:
    """The turn that a crash cut, if there is one and nobody is at work on it. A server takes it up by itself."""
    from holdfast.session.turns import Unfinished

    found = (yield get(self._path("unfinished")))["unfinished"]
    return None if found is None else Unfinished(**{name: found[name] for name in Unfinished.__dataclass_fields__})


def runs(self: Remote, limit: int | None = None) -> Flow[list[Run]]:
    """The runs of this session, newest first."""
    return [run_of(each) for each in (yield get(self._path("runs"), limit=limit))["runs"]]


def get_run(self: Remote, run_id: str) -> Flow[Run]:
    """One run, with its response once it is finished."""
    return run_of((yield get(self._path("runs", checked_name(run_id, "run_id")))))


def cancel(self: Remote, run_id: str) -> Flow[None]:
    """End a run, queued or under way; what it showed so far is in the log."""
    yield post(self._path("runs", checked_name(run_id, "run_id"), "cancel"))


def replay(self: R, agent: str | Agent | None = None) -> Flow[Replay]:
    """Run the finished turns again in a fork, with the recorded replies and results as the world.

    Nothing is asked and no tool runs; the report names the first thing that this agent would do differently.
    """
    from holdfast.turn.replay import Difference, Replay

    found = yield from patiently(post(self._path("replay"), self._with_agent(agent), waits=True))
    first, fork = found["first_difference"], found["session_id"]
    return Replay(
        turns=found["turns"],
        first_difference=None if first is None else Difference(**first),
        session=None if fork is None else self._sibling((yield get(place("sessions", fork))), self.agent),
    )
