"""The server as one object, and the application around it.

`Server` holds what requests share: the store, who may ask, the agents, the feed of the logs and the threads that run
turns. `create_app` puts the routes around it; `serve` runs it as a process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import FastAPI

from holdfast.concurrency import off_thread
from holdfast.errors import AgentError, StoreError
from holdfast.memory.memory import Memory
from holdfast.server import errors
from holdfast.server.agent_catalog import Catalog
from holdfast.server.auth import Gate
from holdfast.server.config import Config
from holdfast.server.http.middleware import Guard
from holdfast.server.http.route_table import RouteTable
from holdfast.server.idempotency import forget_memories, forget_session
from holdfast.server.logging import fields, log
from holdfast.server.metrics import Metrics
from holdfast.server.rate_limits import Limits
from holdfast.session.session import Session
from holdfast.stores.base import Log, Store
from holdfast.worker.feed import Feed
from holdfast.worker.run_pool import Part, Runs
from holdfast.worker.sweep import sweep

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.server.event_stream import EventStream
    from holdfast.tools.tool import Tool

THREADS = 48  # for store calls of requests, besides those that run turns
KNOWN_SESSIONS = 512  # session objects that remember the end of their conversation for the next turn


class Server:
    """What the requests of one process share."""

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
        self.limits = Limits(config, metrics=self.metrics)
        self.gate = Gate(store, config=config, token=token, limits=self.limits, metrics=self.metrics)
        self.catalog = Catalog(agents=agents, tools=tools)
        self.memory = Memory() if memory is None else memory
        self.feed = Feed(store, poll=config.poll, tick=config.ping)
        self.runs = Runs(store, self._cast, self.feed, threads=config.runs)
        self.runs.on_end = lambda outcome: self.metrics.runs.labels(outcome).inc()
        self.runs.on_broken = lambda error: errors.unexpected(error, metrics=self.metrics, where="a run")
        self.streams: set[EventStream] = set()
        self.frames = self._counted = 0  # sent on streams; and how many of them the metrics know
        self.draining = False
        self._sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self._lock = threading.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    def _cast(self, store: Store, log: Log, agent: str | None) -> Part:
        """Who answers in a run. The session object is kept: it knows what the last prompt of its turns was."""
        found = self.catalog.find(store, agent)
        with self._lock:
            session = self._sessions.pop((store.tenant, log.number), None)
            if session is None:
                session = Session._of(store, log)
            self._sessions[store.tenant, log.number] = session
            if len(self._sessions) > KNOWN_SESSIONS:
                self._sessions.popitem(last=False)
        session.agent = found
        settings = found.settings()
        budget = self.catalog.budget_of(store, agent)
        return Part(settings if budget is None else replace(settings, budget=budget), session)

    async def runs_left(self, log: Log, run: str) -> None:
        """Wait until nothing is left to do for a run of this process, so that whoever is told of its end finds all of
        it done; for a moment, because its thread may hang."""
        until = self.store.ids.elapsed() + 1.0
        while self.runs.is_at(run, log.number) and self.store.ids.elapsed() < until:
            await asyncio.sleep(0.002)

    def forget(self, store: Store, log: Log) -> None:
        """A session was redacted or deleted: nothing of it stays in memory, or in the answers that are kept."""
        with self._lock:
            self._sessions.pop((store.tenant, log.number), None)
        forget_session(store, log.id)
        forget_memories(store, log.user_id, log.app_name)  # what was learnt from it may have gone as well

    # -- beginning and ending --------------------------------------------------------------------------------------

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-http"))
        self.feed.on_tick.append(self._end_stalled)
        self.feed.open()
        self.runs.open()
        self._sweeper = loop.create_task(self._sweep())

    def drain(self) -> None:
        """Take nothing new, and let the streams end; in the event loop."""
        if not self.draining:
            self.draining = True
            log.info("draining", extra=fields(streams=len(self.streams), runs=self.runs.running))
            self.runs.refuse()
            self.feed.end_streams()
            self._ending = asyncio.get_running_loop().create_task(self._end_runs())

    async def _end_runs(self) -> None:
        left = await off_thread(self.runs.stop, self.config.drain)
        if left:
            log.info("runs were given back", extra=fields(runs=left))

    async def close(self) -> None:
        self.drain()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._ending
        await self.feed.close()

    def _end_stalled(self) -> None:
        now = self.store.ids.elapsed()
        for stream in list(self.streams):
            if stream.is_stalled(now):
                stream.abort()

    async def _sweep(self) -> None:
        """Do what retention promises, again and again; of several servers one works at a time."""
        while True:
            await asyncio.sleep(self.config.sweep_every)
            try:
                report = await off_thread(sweep, self.store)
                for act in ("archived", "purged"):
                    self.metrics.swept.labels(act).inc(len(getattr(report, act)))
                while await off_thread(self.store.purge_slips, self.store.ids.now()):
                    pass
            except StoreError as error:
                self.metrics.store_errors.labels(error.code).inc()
            except AgentError as error:
                log.warning("the sweep was cut short", extra=fields(code=error.code))

    async def is_ready(self) -> str | None:
        """Why this server should get no requests now; None if it should."""
        if self.draining:
            return "draining"
        try:
            await off_thread(self.store.find, "session", "ready?")
        except StoreError as error:
            return error.code
        return None

    def observe(self) -> None:
        """Bring the gauges up to date."""
        with suppress(AgentError):
            self.metrics.queue_length.set(self.runs.waiting)
            self.metrics.leases_held.set(self.runs.running)
            self.metrics.takeovers_seen(self.runs.taken_over)
            self.metrics.frames_sent.inc(self.frames - self._counted)
            self._counted = self.frames


def create_app(server: Server) -> FastAPI:
    """The application; its lifespan begins and ends the server."""
    from holdfast.server.routes import agents, health, memory, runs, sessions
    from holdfast.server.routes import index as page

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
        version=page.VERSION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = server
    errors.install(app)
    # In the order in which they are tried: what is asked most comes first.
    for router in (runs.router, *sessions.routers, memory.router, agents.router, health.router, page.router):
        app.router.routes.extend(router.routes)  # as they are: FastAPI would try routers within routers, one by one
    app.router.middleware_stack = RouteTable(app.router)
    app.add_middleware(Guard, server=server)
    return app
