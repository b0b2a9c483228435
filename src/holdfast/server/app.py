"""The server as one object, and the application around it.

`Server` holds what requests share: the store, the authenticator, the agents, the feed of the logs and the run pool.
`create_app` puts the routes around it; `process.run_server` runs it as a process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastapi import FastAPI

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, StoreError
from holdfast.log.chain import ERASING_TYPES
from holdfast.memory.memory import Memory
from holdfast.server import errors
from holdfast.server.agent_catalog import AgentCatalog
from holdfast.server.auth import Authenticator, Caller
from holdfast.server.config import Config
from holdfast.server.http.middleware import SecurityMiddleware
from holdfast.server.http.route_table import RouteTable
from holdfast.server.large_answers import LargeAnswers
from holdfast.server.logging import extra_fields, log
from holdfast.server.metrics import Metrics
from holdfast.server.model_calls import call_model
from holdfast.server.rate_limits import RequestLimits
from holdfast.server.readiness import Readiness
from holdfast.server.runs_under_way import RunsUnderWay
from holdfast.server.work_dirs import served_session_class
from holdfast.session.session import Session
from holdfast.stores.base import Log, Store
from holdfast.stores.signing_keys import SigningKey
from holdfast.worker.feed import Feed
from holdfast.worker.head_signer import Anchor, sign_heads
from holdfast.worker.run_pool import Responder, RunPool
from holdfast.worker.sweep import sweep

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.server.event_stream import EventStream
    from holdfast.tools.tool import Tool

PURGE_EVERY = 60.0  # seconds between purges of kept answers, if the server does not sweep
T = TypeVar("T")

THREADS = 48  # for store calls of requests; the run pool has its own
MAX_CACHED_SESSIONS = 512  # session objects, each with the end of its conversation for the next turn


class Server:
    """The objects that all requests of one process share."""

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        token: str | None = None,
        agents: Mapping[str, Agent] | None = None,
        tools: Mapping[str, Tool] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.store, self.config = store, config
        self.metrics = Metrics()
        self.limits = RequestLimits(config, metrics=self.metrics)
        self.large_answers = LargeAnswers(self.limits.answer_bytes)
        self.authenticator = Authenticator(store, config=config, token=token, limits=self.limits, metrics=self.metrics)
        self.quotas = self.authenticator.quotas
        self.catalog = AgentCatalog(agents=agents, tools=tools)
        self.memory = Memory() if memory is None else memory
        self.feed = Feed(store, poll=config.poll, tick=config.ping)
        self.runs = RunPool(store, self._cast, self.feed, threads=config.runs)
        self.runs_under_way = RunsUnderWay(self.limits.runs, self.runs, store.clock)
        self.readiness = Readiness(store)
        self.runs.on_end = self._end_run
        self.runs.on_unexpected_error = lambda error: errors.log_unexpected_error(
            error, metrics=self.metrics, where="a run"
        )
        self.streams: set[EventStream] = set()
        self.frames_sent = self._frames_counted = 0  # on streams; and the part that the metrics have
        self.is_draining = False
        self._sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self._session_class = served_session_class(config.work_roots)
        self._lock = threading.Lock()
        self._heads_checked: dict[int, int] = {}  # heads of cached sessions when removals were last looked for
        self._sweeper: asyncio.Task[None] | None = None
        self._signer: asyncio.Task[None] | None = None
        self._removal_watcher: asyncio.Task[None] | None = None

    def _cast(self, store: Store, log: Log, agent: str | None) -> Responder:
        """Return the agent and the session object of a run. The session is cached: it holds the last prompt."""
        found = self.catalog.find(store, agent)
        budget = self.catalog.budget_of(store, agent)
        store, meter = self.quotas.limit_run(store, log, budget)
        with self._lock:
            session = self._sessions.pop((store.tenant, log.number), None)
            if session is None:
                session = self._session_class.on_log(store, log)
            self._sessions[store.tenant, log.number] = session
            if len(self._sessions) > MAX_CACHED_SESSIONS:
                self._sessions.popitem(last=False)
        session.agent, session.store, session.cache.meter = found, store, meter
        settings = found.settings()
        return Responder(settings if budget is None else replace(settings, budget=budget), session)

    def _end_run(self, outcome: str, store: Store, log: Log) -> None:
        """Count the end of a run, and settle what it has used."""
        self.metrics.runs.labels(outcome).inc()
        session = self._sessions.get((store.tenant, log.number))
        if session is not None and session.cache.meter is not None:
            with suppress(AgentError):  # the next run of the session settles it
                session.cache.meter.settle()

    async def wait_for_run_cleanup(self, log: Log, run: str) -> None:
        """Wait until the thread of a run has finished its work, pruning included, so that a client that reads the end
        of the run finds all of it done. Waits one second at most, because the thread may hang."""
        until = self.store.clock.monotonic() + 1.0
        while self.runs.is_working_on(run, log.number) and self.store.clock.monotonic() < until:
            await asyncio.sleep(0.002)

    def drop_session_object(self, store: Store, log: Log) -> None:
        """Drop the cached object of a session that was redacted, erased or deleted."""
        with self._lock:
            self._sessions.pop((store.tenant, log.number), None)

    async def call_blocking(self, caller: Caller, asks_model: bool, work: Callable[[], T]) -> T:
        """Call `work` on a thread: one of its own if it asks a model, which takes as long as the provider likes."""
        return await (call_model(self.limits.model_calls, caller, work) if asks_model else off_thread(work))

    def drop_removed_sessions(self) -> None:
        """Drop the cached objects of sessions that another process redacted, erased or deleted. Blocks."""
        with self._lock:
            cached = [(session.log.number, session) for session in self._sessions.values()]
        heads = self.store.heads([number for number, _ in cached]) if cached else {}
        for number, session in cached:
            window, head = session.cache.window, heads.get(number)
            if head is not None and (window is None or head == self._heads_checked.get(number)):
                continue
            if head is None or window is None or self._has_removals(session, window.last_seq):
                self.drop_session_object(session.store, session.log)
        self._heads_checked = heads

    def _has_removals(self, session: Session, seq: int) -> bool:
        return bool(session.store.read(session.log, seq + 1, types=ERASING_TYPES, limit=1))

    async def _watch_removals(self) -> None:
        while True:
            await asyncio.sleep(self.config.ping)
            with suppress(AgentError):  # the store is unavailable for a moment
                await off_thread(self.drop_removed_sessions)

    # -- beginning and ending --------------------------------------------------------------------------------------

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-http"))
        self.feed.open()
        self.runs.open()
        self._sweeper = loop.create_task(self._maintain_forever())
        key = SigningKey.from_environment()
        if key is not None and self.config.sign_every:
            self._signer = loop.create_task(self._sign_forever(key))
        self._removal_watcher = loop.create_task(self._watch_removals())

    def drain(self) -> None:
        """Begin no new runs, and end the streams; in the event loop."""
        if not self.is_draining:
            self.is_draining = True
            log.info("draining", extra=extra_fields(streams=len(self.streams), runs=self.runs.busy_count))
            self.runs.stop_intake()
            self.feed.end_streams()
            self._drain_task = asyncio.get_running_loop().create_task(self._end_runs())

    async def _end_runs(self) -> None:
        left = await off_thread(self.runs.stop, self.config.drain)
        if left:
            log.info("runs were given back", extra=extra_fields(runs=left))

    async def close(self) -> None:
        self.drain()
        for task in (self._sweeper, self._signer, self._removal_watcher):
            if task is not None:
                task.cancel()
        await self._drain_task
        await self.feed.close()

    async def _maintain_forever(self) -> None:
        """Sweep at intervals, and purge the kept answers that have expired; of several servers one sweeps at a time.
        With an interval of 0 there is no sweep, and kept answers are purged all the same."""
        while True:
            await asyncio.sleep(self.config.sweep_every or PURGE_EVERY)
            if self.config.sweep_every:
                await self._attempt("the sweep", self._sweep)
            await self._attempt("the purge of kept answers", self._purge_answers)

    async def _attempt(self, what: str, work: Callable[[], object]) -> None:
        """Do a part of the maintenance. An error is reported, and the next interval tries again."""
        try:
            await off_thread(work)
        except StoreError as error:
            self.metrics.store_errors.labels(error.code).inc()
            log.warning(f"{what} was cut short", extra=extra_fields(code=error.code))
        except AgentError as error:
            log.warning(f"{what} was cut short", extra=extra_fields(code=error.code))
        except Exception as error:  # noqa: BLE001 - one bad session or sweep must not stop the next
            errors.log_unexpected_error(error, metrics=self.metrics, where=what)

    def _sweep(self) -> None:
        report = sweep(self.store)
        for act in ("archived", "purged", "failed"):
            self.metrics.sweep_acts.labels(act).inc(len(getattr(report, act)))

    def _purge_answers(self) -> None:
        while self.store.kv_purge(self.store.read_time()):
            pass

    async def _sign_forever(self, key: SigningKey) -> None:
        """Sign the heads that moved, at intervals. Several servers may do so: what one has signed, another leaves."""
        anchor = Anchor(self.config.anchor) if self.config.anchor else None
        while True:
            await asyncio.sleep(self.config.sign_every)
            await self._attempt("a round of signing", partial(sign_heads, self.store, key, anchor))

    async def unavailable_reason(self) -> str | None:
        """Return why this server should get no requests now; None if it is ready."""
        if self.is_draining:
            return "draining"
        return await self.readiness.find_fault()

    def update_gauges(self) -> None:
        """Set the gauges to the current values."""
        with suppress(AgentError):
            self.metrics.queue_length.set(self.runs.queue_length)
            self.metrics.leases_held.set(self.runs.busy_count)
            self.metrics.count_takeovers(self.runs.takeovers)
            self.metrics.frames_sent.inc(self.frames_sent - self._frames_counted)
            self._frames_counted = self.frames_sent


def create_app(server: Server) -> FastAPI:
    """Return the application; its lifespan opens and closes the server."""
    from holdfast.server.routes import agents, events, health, index, memory, quota, runs, sessions

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await server.open()
        try:
            yield
        finally:
            await server.close()

    app = FastAPI(
        title="holdfast",
        description="Durable sessions for AI agents.",
        version=index.VERSION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = server
    errors.install_error_handlers(app)
    # Routes are tried in this order: the most frequent requests come first.
    for router in (
        runs.router,
        events.router,
        *sessions.routers,
        memory.router,
        agents.router,
        quota.router,
        health.router,
        index.router,
    ):
        app.router.routes.extend(router.routes)  # flat: FastAPI would try an included router as a router of its own
    app.router.middleware_stack = RouteTable(app.router)
    app.add_middleware(SecurityMiddleware, server=server)
    return app
