"""Metrics for Prometheus. Nothing is global: two servers in one process count apart.

Labels come from our own code only (a route's template, an error's code), never from a request: each new value is kept
for ever.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

REQUEST_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The numbers of one server."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._request_seconds = Histogram(
            "holdfast_request_seconds",
            "Time until an answer began",
            ("route", "method", "status"),
            buckets=REQUEST_SECONDS_BUCKETS,
            registry=registry,
        )
        self._by_answer: dict[tuple[str, str, int], Histogram] = {}
        self.runs = Counter("holdfast_runs", "Runs that ended", ("outcome",), registry=registry)
        self.queue_length = Gauge("holdfast_queue_length", "Runs that wait for a thread", registry=registry)
        self.leases_held = Gauge("holdfast_leases_held", "Sessions this server writes to", registry=registry)
        self.takeovers = Counter("holdfast_takeovers", "Runs taken over from another server", registry=registry)
        self._takeovers_counted = 0
        self.open_streams = Gauge("holdfast_open_streams", "Streams that are open", registry=registry)
        self.frames_sent = Counter("holdfast_frames_sent", "Events sent on streams", registry=registry)
        self.store_errors = Counter("holdfast_store_errors", "Failures of the store", ("code",), registry=registry)
        self.sweep_acts = Counter("holdfast_swept", "Sessions the sweep acted on", ("act",), registry=registry)
        self.refusals = Counter("holdfast_refused", "Requests refused before routing", ("reason",), registry=registry)
        self.unexpected_errors = Counter("holdfast_unexpected_errors", "Exceptions nobody expected", registry=registry)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer. The route is its template: an id in a label would make a series for every session."""
        key = (route, method, status)
        found = self._by_answer.get(key)
        if found is None:  # looking a child up by its labels takes longer than counting
            found = self._by_answer[key] = self._request_seconds.labels(route, method, str(status))
        found.observe(seconds)

    def count_takeovers(self, total: int) -> None:
        """Raise the counter to the total of the run pool."""
        self.takeovers.inc(total - self._takeovers_counted)
        self._takeovers_counted = total

    def render(self) -> bytes:
        return generate_latest(self.registry)
