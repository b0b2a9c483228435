"""The setup of a proof, and its failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Agent, Message, Session
from holdfast.log.events import Event
from holdfast.stores import SQLiteStore
from tests.proofs import Report
from tests.real_model.engine import MODEL
from tests.real_model.formats import Format
from tests.real_model.wire_recorder import WireRecorder

PATIENCE = 300.0


@dataclass(slots=True)
class ProofSetup:
    """One endpoint of the model, the recorder in front of it, and a file for the sessions."""

    format: Format
    recorder: WireRecorder
    file: Path
    seed: int
    failures: list[str] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return self.recorder.url + self.format.prefix

    def agent(self, **options: Any) -> Agent:
        """An agent with that model, asked once: a second try would hide what the first one did."""
        common: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "timeout": PATIENCE, "max_retries": 0}
        return Agent(provider=self.format.provider, model=MODEL, base_url=self.base_url, **common | options)

    def read_session(self, session_id: str) -> tuple[list[Message], list[Event]]:
        """Messages and events of a session, read from the newly opened file."""
        with SQLiteStore(self.file) as store:
            session = Session.open(session_id, store=store)
            return session.messages, session.events(limit=None)

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.failures.append(otherwise)

    def report(self, figures: str) -> Report:
        return Report(figures=figures, failures=self.failures)
