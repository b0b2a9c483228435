"""Run requests: what a message or a resume over HTTP writes to the log before the request waits for its run.

A message is in the log before anything runs, so a broken connection loses nothing. Every function here blocks: routes
call it on a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import Forbidden, QueueFull, Unavailable
from holdfast.log.messages import read_question
from holdfast.log.view import decode_view
from holdfast.server.app import Server
from holdfast.server.auth import Caller
from holdfast.server.field_rights import DEVICE_RETRY_FIELDS, check_device_fields, sent_fields
from holdfast.server.idempotency import ANSWER_LIFETIME
from holdfast.server.runs_under_way import RunSlot
from holdfast.server.schemas import serializers
from holdfast.server.schemas.requests import MessageBody, ResumeBody, RetryBody
from holdfast.session.session import Session
from holdfast.stores.append import Head
from holdfast.stores.base import Log
from holdfast.turn.response import Response as Answer
from holdfast.turn.start import reopen_ended_turn
from holdfast.worker.admission import AdmittedRun, RunRequest, admit_message, check_can_run, run_id_of_key
from holdfast.worker.run_callbacks import RunResult

RESUMED_TURNS = "resumed"  # key-value space: the turn that an Idempotency-Key has resumed
MessageResult = Answer | tuple[Log, AdmittedRun]


def run_or_queue_message(
    server: Server,
    caller: Caller,
    session_id: str,
    body: MessageBody,
    key: str | None,
    slot: RunSlot,
    on_run_end: Callable[[MessageResult | BaseException], None],
) -> MessageResult:
    """Admit a message. Run it on this thread if no other run of the session is open or queued, and return the answer.

    `on_run_end` gets the result of the run if the run ends before this thread notices. The run gets the slot.
    """
    refuse_while_draining(server)
    log = caller.open_session(session_id).log
    head, can_begin, run_request = _make_run_request(server, caller, log, body, key)
    if not can_begin:
        return log, _admit_and_notify(server, caller, log, run_request)

    def report_end(run: str, result: RunResult) -> None:
        on_run_end((log, AdmittedRun(run_id=run, seq=0, repeated=True)) if result is None else result)

    result = server.runs.admit_and_run(
        caller.store, log, head, run_request, report_end, lambda run: slot.give_to_run(log, run)
    )
    if isinstance(result, Answer):
        return result
    _interrupt_open_turn(server, caller, log, run_request, result)
    return log, result


def queue_message(
    server: Server, caller: Caller, session_id: str, body: MessageBody, key: str | None
) -> tuple[Log, AdmittedRun]:
    """Admit a message to the queue of its session; a thread of the run pool runs it later."""
    refuse_while_draining(server)
    log = caller.open_session(session_id).log
    _, _, run_request = _make_run_request(server, caller, log, body, key)
    return log, _admit_and_notify(server, caller, log, run_request)


def _make_run_request(
    server: Server, caller: Caller, log: Log, body: MessageBody, key: str | None
) -> tuple[Head, bool, RunRequest]:
    """Return the head of the session, whether a run may begin at it, and the run request for a message.

    Raises if the session takes no message now, if its queue is full, or if the agent is unknown. A key that has
    admitted its message before passes these checks: the retry must find its run.
    """
    store = caller.store
    once = None if key is None else key_of_caller(caller, key)
    head = store.head(log)
    view = decode_view(head.view)
    is_known = once is not None and store.lookup(log, "run/" + run_id_of_key(log, once)) is not None
    if not is_known:
        check_can_run(view, log.id)
        if len(view.queue) >= server.config.queue:
            raise QueueFull(server.config.queue)
        server.catalog.find(store, body.agent_id)  # an unknown agent is the client's mistake: refuse before the append
        if store.allowances:
            server.quotas.check_run(store, len(body.model_dump_json()))
    run_request = RunRequest(
        message=read_question(body.message),
        agent=body.agent_id,
        options=body.options(),
        metadata=body.metadata,
        on_busy=body.on_busy,
        once=once,
        actor=serializers.actor_of(caller),
    )
    # A message that was admitted before begins no turn, which a budget or a quota might refuse.
    return head, not (is_known or view.turn or view.queue), run_request


def _admit_and_notify(server: Server, caller: Caller, log: Log, run_request: RunRequest) -> AdmittedRun:
    run = admit_message(caller.store, log, run_request)
    server.feed.notify_append(log)
    _interrupt_open_turn(server, caller, log, run_request, run)
    return run


def _interrupt_open_turn(server: Server, caller: Caller, log: Log, run_request: RunRequest, run: AdmittedRun) -> None:
    """Cancel the turn that was open when an interrupting message was admitted."""
    if run_request.on_busy == "interrupt" and not run.repeated:
        turn = decode_view(caller.store.head(log).view).turn
        if turn is not None and turn.run != run.run_id and turn.first < run.seq:
            server.runs.cancel(caller.store, log, turn.run, actor=run_request.actor)


def key_of_caller(caller: Caller, key: str) -> str:
    """Return an Idempotency-Key made unique to the user of the caller."""
    return f"{caller.user or ''}\n{key}"


def reopen_turn(
    server: Server, caller: Caller, session_id: str, body: ResumeBody, key_scope: str | None
) -> tuple[Log, AdmittedRun | None]:
    """Un-pause a session and mark its open turn to be run; None in place of a run if no turn is open.

    A key that has resumed a turn before gets that turn again.
    """
    session = caller.open_session(session_id)

    def open_session() -> bool:
        if session.status in ("paused", "closed", "archived"):
            if not caller.has_role("write"):
                raise Forbidden(f"this session is {session.status}, and only a key that may write opens it")
            session._change_status("session.resumed", body.reason, serializers.actor_of(caller, body.actor))
        return True

    return _reopen_once(server, caller, session, body.agent_id, key_scope, open_session)


def retry_turn(
    server: Server, caller: Caller, session_id: str, body: RetryBody, key_scope: str | None
) -> tuple[Log, AdmittedRun | None]:
    """Open the last turn of a session again and mark it to be run; None in place of a run if it did not fail."""
    check_device_fields(caller, sent_fields(body), DEVICE_RETRY_FIELDS)
    session = caller.open_session(session_id)
    actor = serializers.actor_of(caller, body.actor)
    return _reopen_once(
        server,
        caller,
        session,
        body.agent_id,
        key_scope,
        lambda: reopen_ended_turn(session.store, session.log, body.max_steps, actor),
    )


def _reopen_once(
    server: Server,
    caller: Caller,
    session: Session,
    agent_id: str | None,
    key_scope: str | None,
    change_session: Callable[[], bool],
) -> tuple[Log, AdmittedRun | None]:
    """Change the session, unless its key has done so before, and mark its open turn to be run."""
    refuse_while_draining(server)
    store, log = caller.store, session.log
    known = None if key_scope is None else store.kv_get(RESUMED_TURNS, key_scope)
    if known is not None:
        run, seq = known.decode().split()
        return log, AdmittedRun(run_id=run, seq=int(seq), repeated=True)
    if agent_id is not None:
        server.catalog.find(store, agent_id)  # an unknown agent is refused before the first append
    server.quotas.check_run(store, 0)
    before = store.head(log).head
    if not change_session():
        return log, None
    if store.head(log).head != before:
        server.feed.notify_append(log)
    reopened = server.runs.reopen_turn(store, log, agent_id)
    if reopened is not None and key_scope is not None:
        value = f"{reopened.run_id} {reopened.seq}".encode()
        store.kv_put(RESUMED_TURNS, key_scope, value, expires=store.clock.now() + ANSWER_LIFETIME)
    return log, reopened


def refuse_while_draining(server: Server) -> None:
    """Raise Unavailable if this server is shutting down."""
    if server.is_draining:
        raise Unavailable("this server is shutting down: try again, another one may answer", retry_after=1.0)
