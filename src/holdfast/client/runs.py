"""Asking an agent of the server in a session, and taking up what was left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from holdfast.client.base import Remote, drop_none
from holdfast.client.parsers import Run, parse_pending, parse_response, parse_run
from holdfast.client.requests import Call, Flow, get, post, url_path
from holdfast.client.stream import RunTail
from holdfast.errors import AgentError, SchemaValidationError, ServerSilent
from holdfast.log import codec
from holdfast.log.identifiers import check_name
from holdfast.log.messages import Message, read_question
from holdfast.session.call_options import CallOptions, model_options, refuse_unknown_options
from holdfast.turn.response import Pending, Response

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.schema.output import OutputShape
    from holdfast.session.recovery import Unfinished
    from holdfast.turn.replay import Replay

R = TypeVar("R", bound=Remote)
Question = str | Message | Mapping[str, Any]


class RemoteCallOptions(CallOptions, total=False):
    """The options of the library, and one of the server."""

    on_busy: str | None  # if the session is busy: "enqueue" (the default), "reject" or "interrupt"


def run(self: Remote, message: Question, **options: Unpack[RemoteCallOptions]) -> Flow[Response]:
    """Ask, and wait for the answer. If the connection breaks, the run continues and this call attaches to it again.

    Options: agent, temperature, max_tokens, tool_choice, stop, metadata, timeout, on_busy.
    """
    body = _run_body(self, "run", message, None, options)
    found = yield from _wait_or_cancel(self, post(self._path("message"), body, waits=True))
    return replace(parse_response(found), session=self)


def json(self: Remote, message: Question, *, schema: object, **options: Unpack[RemoteCallOptions]) -> Flow[Response]:
    """Ask for `response.output` of a shape: a pydantic model, dataclass, TypedDict or JSON Schema. The server asks for
    its JSON Schema, the instance is made here."""
    shape = output_shape(schema)
    body = _run_body(self, "json", message, shape, options)
    response = parse_response((yield from _wait_or_cancel(self, post(self._path("message"), body, waits=True))))
    return replace(parse_output(shape, response), session=self)


def stream(self: Remote, message: Question, *, schema: object = None, **options: Unpack[RemoteCallOptions]) -> RunTail:
    """Ask, and get the answer event by event. Leaving the loop early cancels the turn; a lost connection does not: the
    stream reconnects by itself."""
    shape = None if schema is None else output_shape(schema)
    body = _run_body(self, "stream", message, shape, options)

    def finish(response: Response) -> Response:
        self._temp.clear()
        return replace(parse_output(shape, response), session=self)

    return RunTail(post(self._path("message", "stream"), body), finish)


def resume(
    self: Remote, agent: str | Agent | None = None, *, reason: str | None = None, actor: str | None = None
) -> Flow[Response | None]:
    """Un-pause if paused; then finish the unfinished or decided turn, if there is one, and return its response."""
    body = self._body_with_agent(agent, reason=reason, actor=actor)
    found = yield from _wait_or_cancel(self, post(self._path("resume"), body, waits=True))
    return None if found["status"] == "idle" else replace(parse_response(found), session=self)


def retry(
    self: Remote, agent: str | Agent | None = None, max_steps: int | None = None, *, actor: str | None = None
) -> Flow[Response | None]:
    """Continue the last turn, which failed or was cancelled, and return its response; None if it did not fail."""
    body = self._body_with_agent(agent, max_steps=max_steps, actor=actor)
    found = yield from _wait_or_cancel(self, post(self._path("retry"), body, waits=True))
    return None if found["status"] == "idle" else replace(parse_response(found), session=self)


def _run_body(
    self: Remote, method: str, message: Question, shape: OutputShape | None, options: RemoteCallOptions
) -> dict[str, Any]:
    """The JSON body of a question. Raises TypeError for an unknown option."""
    refuse_unknown_options("RemoteSession", method, options, RemoteCallOptions)
    question, metadata = read_question(message), options.get("metadata")
    return self._body_with_agent(
        options.get("agent"),
        message=message if isinstance(message, str) else question.to_dict(),
        schema=None if shape is None else shape.schema,
        metadata=None if metadata is None else dict(metadata),
        timeout=options.get("timeout"),
        on_busy=options.get("on_busy"),
        **model_options(options),
    )


def _wait_or_cancel(self: Remote, call: Call) -> Flow[Any]:
    """The answer of a run. A caller that stops waiting for it (a cancelled task, Ctrl-C) cancels the run."""
    try:
        found = yield from wait_for_run(call)
    except AgentError:
        raise
    except BaseException:
        yield from cancel_by_key(self, call)
        raise
    self._temp.clear()  # it is for one run
    return found


def cancel_stream(self: Remote, tail: RunTail) -> Flow[None]:
    """Cancel the run of a stream that is not read any more."""
    if tail.run_id is None:
        yield from cancel_by_key(self, tail.call())
    elif not tail.is_over:
        yield from cancel(self, tail.run_id)


def cancel_by_key(self: Remote, call: Call) -> Flow[None]:
    """Cancel the run that a call asked for, of which only the key is known."""
    assert call.key is not None
    try:
        yield post(self._path("runs", call.key, "cancel"))
    except AgentError:
        pass  # the run is over, or the server cannot be reached


def wait_for_run(call: Call) -> Flow[Any]:
    """The answer to a call that waits for a run. A server that is silent but alive is asked again, under the same key:
    that attaches to the same run, however long it takes."""
    while True:
        try:
            return (yield call)
        except ServerSilent:
            yield get("/health")  # raises if no server is there any more
        except AgentError as error:
            if error.code != "key_in_use":
                raise


# -- the shape of an answer --------------------------------------------------------------------------------------------


def output_shape(schema: object) -> OutputShape:
    from holdfast.schema.output import OutputShape

    return OutputShape(schema)


def parse_output(shape: OutputShape | None, response: Response) -> Response:
    """The response with its output as an instance. The server checked what a JSON Schema says; a type may say more."""
    from holdfast.errors import BadOutput

    if shape is None:
        return response
    if response.status != "finished":
        return replace(response, output=None)
    try:
        return replace(response, output=shape.read(response.text))
    except BadOutput as error:
        raise SchemaValidationError(str(error), text=response.text, tries=response.steps) from error


# -- decisions, and what was left --------------------------------------------------------------------------------------


def pending(self: Remote) -> Flow[list[Pending]]:
    """The calls that wait for a person's decision."""
    return [parse_pending(each) for each in (yield get(self._path("approvals")))["pending"]]


def approve(
    self: Remote, call_id: str, *, arguments: Mapping[str, Any] | None = None, actor: str | None = None
) -> Flow[None]:
    """Let a waiting call run, at the next `resume()`; with `arguments`, it runs with these instead of the model's."""
    given = None if arguments is None else dict(arguments)
    body = drop_none(approved=True, arguments=given, actor=actor)
    yield post(self._path("approvals", check_name(call_id, "call_id")), body)


def answer(self: Remote, call_id: str, value: Any, *, actor: str | None = None) -> Flow[None]:  # noqa: ANN401 - JSON
    """Answer the `interrupt(payload)` of a tool: when the call runs again, `interrupt` returns this value."""
    codec.encode(value)
    body = {"approved": True, "answer": value} | drop_none(actor=actor)
    yield post(self._path("approvals", check_name(call_id, "call_id")), body)


def deny(self: Remote, call_id: str, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """Refuse a waiting call; the model gets the refusal and its reason."""
    body = drop_none(approved=False, reason=reason, actor=actor)
    yield post(self._path("approvals", check_name(call_id, "call_id")), body)


def unfinished(self: Remote) -> Flow[Unfinished | None]:
    """The turn that a crash cut, if there is one and no process works on it. A server resumes it by itself."""
    from holdfast.session.recovery import Unfinished

    found = (yield get(self._path("unfinished")))["unfinished"]
    return None if found is None else Unfinished(**{name: found[name] for name in Unfinished.__dataclass_fields__})


def runs(self: Remote, limit: int | None = None) -> Flow[list[Run]]:
    """The runs of this session, newest first."""
    return [parse_run(each) for each in (yield get(self._path("runs"), limit=limit))["runs"]]


def get_run(self: Remote, run_id: str) -> Flow[Run]:
    """One run, with its response once it is finished."""
    return parse_run((yield get(self._path("runs", check_name(run_id, "run_id")))))


def cancel(self: Remote, run_id: str) -> Flow[None]:
    """End a run, queued or under way; what it showed so far is in the log."""
    yield post(self._path("runs", check_name(run_id, "run_id"), "cancel"))


def replay(self: R, agent: str | Agent | None = None) -> Flow[Replay]:
    """Run the finished turns again in a fork, with the recorded replies and results as the world.

    Nothing is asked and no tool runs; the report names the first thing that this agent would do differently.
    """
    from holdfast.turn.replay import Difference, Replay

    found = yield from wait_for_run(post(self._path("replay"), self._body_with_agent(agent), waits=True))
    first, fork = found["first_difference"], found["session_id"]
    return Replay(
        turns=found["turns"],
        first_difference=None if first is None else Difference(**first),
        session=None if fork is None else self._other_session((yield get(url_path("sessions", fork))), self.agent),
    )
