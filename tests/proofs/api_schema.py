"""B11: schemathesis reads the server's OpenAPI document and checks that the server does what it says.

Most requests name a session, an agent, a fact or a run that is there: a server without data answers 404 to
everything, and conforms. Frames of a stream are checked here down to their JSON, which no validator does by itself.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jsonschema_rs
import schemathesis
from schemathesis.engine import Status, from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished

from holdfast.errors import InvalidArgument
from tests.proofs import Report, proof
from tests.proofs.crashes import make_scratch_directory
from tests.proofs.secured_server import STORED, TOKEN, SecuredServer, SessionIds, create_session, store_agent

FRESH_EVERY = 40  # cases
OPERATIONS = 63  # about, to get from a number of cases to a number of each
SSE = "text/event-stream"


class KnownIds:
    """Ids of sessions, agents, facts and runs that exist."""

    def __init__(self, server: SecuredServer, rng: random.Random) -> None:
        self._server, self._rng = server, rng
        self._store = server.store.for_tenant("")
        self._sessions: list[SessionIds] = list(server.contents.sessions["", None])
        self._agents = [STORED]
        self._cases = 0
        self.used: Counter[str] = Counter()

    def fill_case(self, case: Any) -> None:
        """Put ids into a case whose own are as good as any other."""
        self._cases += 1
        if self._cases % FRESH_EVERY == 0:
            self._add_ids()
        if case.operation.path.endswith("/events") and self._rng.random() < 0.5 and not _is_negative(case, "headers"):
            case.headers["Accept"] = SSE
        if self._rng.random() < 0.1 or not isinstance(case.path_parameters, dict):
            return
        chosen = self._rng.choice(self._sessions)
        known = {
            "session_id": chosen.id,
            "fact_id": chosen.fact_id,
            "run_id": chosen.run_id,
            "call_id": chosen.call_id or "none",
            "name": "note",
            "key": "note",
            "agent_id": self._rng.choice(self._agents),
        }
        for name in case.path_parameters:
            if name in known:
                case.path_parameters[name] = known[name]
                self.used[name] += 1
        if isinstance(case.query, dict) and "with" in case.query and not _is_negative(case, "query"):
            case.query["with"] = self._rng.choice(self._sessions).id
        for container, part in ((case.query, "query"), (case.body, "body")):
            if _is_negative(case, part):
                continue
            if isinstance(container, dict) and isinstance(container.get("agent_id"), str):
                container["agent_id"] = "helper"

    def _add_ids(self) -> None:
        """Something new, because others were deleted or closed."""
        self._sessions.append(
            create_session(self._store, f"supply-{self._cases}", None, alone=self._rng.random() < 0.8)
        )
        del self._sessions[:-12]
        with suppress(InvalidArgument):  # there may be as many already as there may be
            store_agent(self._store, name := f"agent-{self._cases}")
            self._agents.append(name)
            del self._agents[:-3]


class Conformance:
    """One run of schemathesis."""

    def __init__(self, server: SecuredServer, size: int, seed: int) -> None:
        self.cases, self.streams, self.frames = 0, 0, 0
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self._seen: set[str] = set()
        self._known_ids = KnownIds(server, random.Random(seed))
        self.document = json.loads(json.dumps(server.app.openapi()))
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        self.schema = schemathesis.openapi.from_url(
            f"http://127.0.0.1:{server.port}/openapi.json", config=self._config(server, size, seed)
        )

        @self.schema.hook
        def map_case(context: Any, case: Any) -> Any:
            if not _is_negative(case, "path_parameters"):
                self._known_ids.fill_case(case)
            return case

    def _config(self, server: SecuredServer, size: int, seed: int) -> Any:
        each = max(1, round(size / OPERATIONS))
        return schemathesis.Config.from_dict(
            {
                "seed": seed,
                "continue-on-failure": True,
                "request-timeout": 20,
                "headers": {"Authorization": f"Bearer {TOKEN}"},
                "generation": {"max-examples": each, "no-shrink": True, "database": "none"},
                # What follows from what is known here better than from links: see `KnownIds`.
                "phases": {"coverage": {"enabled": size > 5000}, "stateful": {"enabled": False}},
                "operations": [SHARED_ADDRESS],
                "checks": {"enabled": True, **EXPECTED},
                "cache": {"enabled": False},
                "suppress-health-check": ["all"],
            }
        )

    def run(self) -> None:
        for event in from_schema(self.schema).execute():
            if isinstance(event, ScenarioFinished):
                for case_id, exchange in event.recorder.interactions.items():
                    self._note(event.recorder.cases[case_id].value, exchange.response)
                for text in _list_complaints(event):
                    self._complain(text)
            elif isinstance(event, NonFatalError):
                self._complain(f"{event.label}: {event.value!r}")
            elif isinstance(event, FatalError):
                raise event.exception

    def _note(self, case: Any, response: Any) -> None:
        self.cases += 1
        if response is None:
            self._complain(f"{case.operation.label}: no answer")
            return
        self.statuses[response.status_code] += 1
        if any(SSE in value for value in response.headers.get("content-type", [])):
            self._check_stream(case, response)

    def _complain(self, text: str) -> None:
        kind = text[:120]
        if kind not in self._seen:
            self._seen.add(kind)
            self.failures.append(text)

    def _check_stream(self, case: Any, response: Any) -> None:
        """Every frame of a stream: its name is documented, and its JSON is what its name promises."""
        self.streams += 1
        label = f"{case.operation.method.upper()} {case.operation.path}"
        item = self.document["paths"][case.operation.path][case.operation.method]["responses"]["200"]["content"][SSE]
        schema = item["itemSchema"]["properties"]["data"]["contentSchema"]
        if label not in self._validators:
            self._validators[label] = jsonschema_rs.validator_for(schema | {"components": self.document["components"]})
        for name, data in parse_frames(response.text):
            self.frames += 1
            try:
                value = json.loads(data)
            except ValueError:
                self._complain(f"{label}: a frame {name!r} is no JSON: {data[:200]!r}")
                continue
            if not self._validators[label].is_valid(value):
                self._complain(f"{label}: a frame {name!r} is not as documented: {data[:400]}")
            elif name != value.get("type"):
                self._complain(f"{label}: a frame named {name!r} says that it is {value.get('type')!r}")


# A session may be called "import": its methods are allowed there as well.
SHARED_ADDRESS = {"include-path": "/sessions/import", "checks": {"allow_header_conformance": {"enabled": False}}}
# What no schema can say is a 400 as well: an event that is not there, a tool that no agent has, a forged export.
EXPECTED: dict[str, Any] = {
    "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "401", "403", "404", "409", "429"]}
}


def parse_frames(text: str) -> Iterator[tuple[str, str]]:
    """Name and data of each frame."""
    for block in text.split("\n\n"):
        # Not splitlines(): a stream knows no other ends of lines than these, and text may hold all the others.
        fields = dict(line.partition(": ")[::2] for line in block.split("\n") if line)
        if "data" in fields:
            yield fields.get("event", "message"), fields["data"]


def _is_negative(case: Any, *parts: str) -> bool:
    """Whether a case was made to be refused because of this part."""
    if case.meta is None:
        return False
    found = {location.value: info.mode.value for location, info in case.meta.components.items()}
    return any(found.get(part) == "negative" for part in parts)


def _list_complaints(event: Any) -> Iterator[str]:
    if event.status is Status.ERROR:
        yield f"{event.label}: the scenario broke off"
    for checks in event.recorder.checks.values():
        for check in checks:
            if check.failure_info is not None:
                failure, sample = check.failure_info.failure, check.failure_info.code_sample
                yield f"{event.label}: {check.name}: {failure.title}: {failure.message[:600]} ({sample[:600]})"


@proof("B11", ci=400, long=100_000)
def conformance(size: int, seed: int) -> Report:
    """Every operation of the OpenAPI document, with values that fit and values that do not."""
    with make_scratch_directory(memory=True) as directory, SecuredServer(directory) as server:
        found = Conformance(server, size, seed)
        found.run()
    answers = ", ".join(f"{number} x {status}" for status, number in sorted(found.statuses.items()))
    figures = f"{found.cases:,} cases ({answers}), {found.streams} streams with {found.frames} frames"
    return Report(figures=figures, failures=found.failures)
