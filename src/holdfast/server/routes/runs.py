"""Runs over HTTP: send a message and wait for the answer, resume a turn, list, read and cancel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from holdfast.concurrency import off_thread
from holdfast.errors import NotFound
from holdfast.server.app import Server
from holdfast.server.auth import Caller, Chatter, Reader
from holdfast.server.errors import ERRORS
from holdfast.server.field_rights import DEVICE_MESSAGE_FIELDS, check_device_fields, sent_fields
from holdfast.server.http.strict_routes import StrictRoute
from holdfast.server.idempotency import handles_idempotency_itself, key_of, scope_of
from holdfast.server.run_requests import key_of_caller, queue_message, reopen_turn, retry_turn, run_or_queue_message
from holdfast.server.run_waiter import RunWaiter, call_on_run_thread
from holdfast.server.schemas import serializers
from holdfast.server.schemas.requests import CancelBody, MessageBody, ResumeBody, RetryBody
from holdfast.server.schemas.responses import AnswerShape, RunShape, RunsShape
from holdfast.server.schemas.serializers import json_response
from holdfast.stores.base import Log, TenantLog
from holdfast.turn.response import Response as Answer
from holdfast.turn.run_outcome import Outcome, outcome_of, recent_runs
from holdfast.worker.admission import AdmittedRun, run_id_of_key

router = APIRouter(route_class=StrictRoute, tags=["runs"], responses=ERRORS)


@router.post("/sessions/{session_id}/message", response_model=AnswerShape, operation_id="message")
@handles_idempotency_itself
async def message(caller: Chatter, request: Request, session_id: str, body: MessageBody) -> Response:
    """Send a message and wait for the answer. The run goes on if the connection breaks; a retry with the same
    Idempotency-Key finds it."""
    check_device_fields(caller, sent_fields(body), DEVICE_MESSAGE_FIELDS)
    server: Server = request.app.state.server
    key = key_of(request)
    slot = await server.runs_under_way.hold(caller.key_id, caller.store)
    waiter = RunWaiter(server)
    result = await call_on_run_thread(
        request,
        caller,
        lambda on_run_end: slot.admit(
            lambda: run_or_queue_message(server, caller, session_id, body, key, slot, on_run_end)
        ),
        lambda: slot.admit(lambda: queue_message(server, caller, session_id, body, key)),
    )
    if result is None:
        return json_response({})  # no client reads this answer; the run goes on
    if isinstance(result, Answer):
        return json_response(serializers.answer_dict(result))
    log, run = result
    waiter.begin(caller.store, log, run.run_id)
    if run.repeated:
        waiter.read_log_first()
    return json_response(await waiter.wait_for_answer(request, body.timeout))


@router.post("/sessions/{session_id}/resume", response_model=AnswerShape, operation_id="resume")
@handles_idempotency_itself
async def resume(caller: Chatter, request: Request, session_id: str, body: ResumeBody) -> Response:
    """Un-pause the session if it is paused; then finish its unfinished or decided turn, if there is one."""
    server: Server = request.app.state.server
    return await _continue_turn(
        caller, request, lambda: reopen_turn(server, caller, session_id, body, scope_of(request, caller))
    )


@router.post("/sessions/{session_id}/retry", response_model=AnswerShape, operation_id="retry")
@handles_idempotency_itself
async def retry(caller: Chatter, request: Request, session_id: str, body: RetryBody) -> Response:
    """Continue the last turn, if it failed or was cancelled. Replies and results that it has are used."""
    server: Server = request.app.state.server
    return await _continue_turn(
        caller, request, lambda: retry_turn(server, caller, session_id, body, scope_of(request, caller))
    )


async def _continue_turn(
    caller: Caller, request: Request, reopen: Callable[[], tuple[Log, AdmittedRun | None]]
) -> Response:
    """Open a turn with `reopen` on a thread, and wait for its answer."""
    server: Server = request.app.state.server
    slot = await server.runs_under_way.hold(caller.key_id, caller.store)
    waiter = RunWaiter(server)
    log, run = await off_thread(slot.admit, reopen)
    if run is None:
        return json_response(serializers.NOTHING_TO_RESUME)
    waiter.begin(caller.store, log, run.run_id)
    if run.repeated and not server.runs.is_local_run(run.run_id, log.number):
        waiter.read_log_first()
    return json_response(await waiter.wait_for_answer(request, None))


@router.get("/sessions/{session_id}/runs", operation_id="runs", response_model=RunsShape)
def runs(caller: Reader, session_id: str, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Response:
    """The newest runs of a session, queued ones included."""
    session = caller.open_session(session_id)
    return json_response({"runs": [serializers.run_dict(run) for run in recent_runs(caller.store, session.log, limit)]})


@router.get("/sessions/{session_id}/runs/{run_id}", operation_id="run", response_model=RunShape)
def run(caller: Reader, session_id: str, run_id: str) -> Response:
    """The status of a run, and its response once it has one."""
    return json_response(serializers.run_dict(_find_run(caller, caller.open_session(session_id).log, run_id)))


@router.post("/sessions/{session_id}/runs/{run_id}/cancel", operation_id="cancel", response_model=RunShape)
def cancel(caller: Chatter, request: Request, session_id: str, run_id: str, body: CancelBody | None = None) -> Response:
    """End a queued or running run, on any server. A run that is over stays as it is."""
    server: Server = request.app.state.server
    log = caller.open_session(session_id).log
    outcome = _find_run(caller, log, run_id)
    server.runs.cancel(caller.store, log, outcome.run_id, actor=serializers.actor_of(caller))
    server.runs_under_way.end_if_left(outcome.run_id)
    server.runs.schedule_session(TenantLog(caller.tenant, log))  # runs may be queued behind it
    return json_response(serializers.run_dict(_find_run(caller, log, outcome.run_id)))


def _find_run(caller: Caller, log: Log, run_id: str) -> Outcome:
    """Return a run by its id, or by the Idempotency-Key of the message that it answers; raise NotFound."""
    outcome = outcome_of(caller.store, log, run_id) or outcome_of(
        caller.store, log, run_id_of_key(log, key_of_caller(caller, run_id))
    )
    if outcome is None:
        raise NotFound("run", run_id)
    return outcome
