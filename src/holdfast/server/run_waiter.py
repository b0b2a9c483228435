"""Requests that wait for a run: the thread that runs it reports the result, or the log of the session has it.

The run never depends on the request: it goes on when the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import Request

from holdfast.concurrency import off_thread
from holdfast.errors import NotFound, SessionBusy, StoreError, from_code
from holdfast.log.view import decode_view
from holdfast.server.app import Server
from holdfast.server.auth import Caller, check_key
from holdfast.server.run_requests import MessageResult, refuse_while_draining
from holdfast.server.runs_under_way import UNDER_WAY
from holdfast.server.schemas import serializers
from holdfast.stores.base import Log, Store, TenantLog
from holdfast.turn.response import Response as Answer
from holdfast.turn.run_outcome import Outcome, outcome_of

CLIENT_CHECK_SECONDS = 2.0  # time between two checks that the client is still connected


async def call_on_run_thread(
    request: Request,
    caller: Caller,
    work: Callable[[Callable[[MessageResult | BaseException], None]], MessageResult],
    admit: Callable[[], MessageResult],
) -> MessageResult | None:
    """Call `work` on a free thread of the run pool, so that the thread that admits a message can run it at once.

    `work` gets a function that reports its result early. If no thread is free for the tenant, `admit` is called on a
    thread for store calls: it must not run a turn there. Returns None if the client has disconnected.
    """
    server: Server = request.app.state.server
    loop = asyncio.get_running_loop()
    result_future: asyncio.Future[MessageResult | BaseException] = loop.create_future()

    def report_result(result: MessageResult | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: no request waits any more
            loop.call_soon_threadsafe(lambda: None if result_future.done() else result_future.set_result(result))

    def run() -> None:
        try:
            report_result(work(report_result))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            report_result(error)

    if not server.runs.submit(caller.tenant, run):
        return await off_thread(admit)
    while not result_future.done():
        await asyncio.wait({result_future}, timeout=CLIENT_CHECK_SECONDS)
        if not result_future.done():
            if await request.is_disconnected():
                return None
            await check_key(server, request.scope)
    result = result_future.result()
    if isinstance(result, BaseException):
        raise result
    return result


class RunWaiter:
    """A request that waits for a run. A thread of this process reports the result; else the waiter polls the log."""

    def __init__(self, server: Server) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        self._result: asyncio.Future[Answer | BaseException | None] = self._loop.create_future()
        self._must_read_log = False

    def begin(self, store: Store, log: Log, run: str) -> None:
        """Subscribe to the end of a run, and schedule its session."""
        self._store, self._log, self._run = store, log, run
        self._unsubscribe = self._server.runs.on_finished(
            run, lambda result: self._loop.call_soon_threadsafe(self._resolve, result)
        )
        self._server.runs.schedule_session(TenantLog(store.tenant, log))

    def read_log_first(self) -> None:
        """Look for the result in the log before waiting: the run may have ended long ago."""
        self._must_read_log = True

    def _resolve(self, result: Answer | BaseException | None) -> None:
        if not self._result.done():
            self._result.set_result(result)

    async def wait_for_answer(self, request: Request, timeout: float | None) -> dict[str, Any]:
        """Return the answer of the run as JSON, or raise its error. `timeout` bounds its time in the queue."""
        server, clock = self._server, self._store.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        next_client_check = clock.monotonic() + CLIENT_CHECK_SECONDS
        try:
            while True:
                result = None
                if not self._must_read_log:
                    await asyncio.wait({self._result}, timeout=server.config.poll)
                    result = self._result.result() if self._result.done() else None
                if isinstance(result, Answer):
                    return serializers.answer_dict(result)
                if isinstance(result, BaseException):
                    raise result
                if (
                    self._must_read_log
                    or self._result.done()
                    or not server.runs.is_local_run(self._run, self._log.number)
                ):
                    answer = await self._answer_from_log()
                    if answer is not None:
                        return answer
                    self._result = self._loop.create_future() if self._result.done() else self._result
                self._must_read_log = False
                if server.is_draining and not server.runs.is_local_run(self._run, self._log.number):
                    refuse_while_draining(server)
                if clock.monotonic() > next_client_check:
                    next_client_check = clock.monotonic() + CLIENT_CHECK_SECONDS
                    if await request.is_disconnected():
                        return {}  # no client reads this answer; the run goes on
                    await check_key(server, request.scope)
                if deadline is not None and clock.monotonic() > deadline:
                    await self._cancel_if_queued()
                    deadline = None
        finally:
            self._unsubscribe()

    async def _answer_from_log(self) -> dict[str, Any] | None:
        try:
            outcome = await off_thread(outcome_of, self._store, self._log, self._run)
        except StoreError:
            return None  # the store is away for a moment; the run is not lost
        if outcome is None or outcome.status not in UNDER_WAY:
            self._server.runs_under_way.end_if_left(self._run)
        if outcome is None:
            raise NotFound("run", self._run)
        return outcome_answer(outcome)

    async def _cancel_if_queued(self) -> None:
        """Take the run out of the queue, because its time there is over; a run that has begun goes on."""
        view = decode_view((await off_thread(self._store.head, self._log)).view)
        has_begun = view.turn is not None and view.turn.run == self._run
        if not has_begun and await off_thread(self._server.runs.cancel, self._store, self._log, self._run):
            raise SessionBusy(self._log.id, retry_after=1.0)


def outcome_answer(outcome: Outcome) -> dict[str, Any] | None:
    """Return the answer of a run as JSON, None while the run has none; raise the error of a run that ended without."""
    if outcome.response is not None:
        return serializers.answer_dict(outcome.response)
    if outcome.status in ("failed", "cancelled", "interrupted", "parked"):
        default = {"failed": "turn_failed", "parked": "turn_parked"}.get(outcome.status, "turn_cancelled")
        error = outcome.error or {"code": default, "text": f"the run was {outcome.status}"}
        raise from_code(error["code"], error["text"], error.get("details"))
    return None
