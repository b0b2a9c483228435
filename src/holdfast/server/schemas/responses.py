"""Models of the answers, for the OpenAPI document. No answer is validated before it is sent: `serializers` builds the
answers, and the tests check every answer against these models.

A model that is the same as a dataclass of the library mirrors it: only what differs is written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from holdfast.log.chain import Verification as LibraryVerification
from holdfast.log.messages import ToolCall as LibraryToolCall
from holdfast.memory.service import Remembered as LibraryRemembered
from holdfast.memory.service import Source as LibrarySource
from holdfast.models.base import Usage as LibraryUsage
from holdfast.policy.budget import Budget as LibraryBudget
from holdfast.policy.retention import Retention as LibraryRetention
from holdfast.server.schemas.requests import FactKind, optional_field
from holdfast.server.schemas.response_body import Number, ResponseBody, mirror
from holdfast.server.schemas.sent_messages import Message
from holdfast.session.compliance import Erased as LibraryErased
from holdfast.session.compliance import Redacted as LibraryRedacted
from holdfast.session.facts import Fact as LibraryFact
from holdfast.session.recovery import Unfinished as LibraryUnfinished
from holdfast.turn.replay import Difference as LibraryDifference
from holdfast.turn.response import Pending as LibraryPending
from holdfast.turn.response import WaitingCall as LibraryWaitingCall
from holdfast.turn.sent_context import Context as LibraryContext
from holdfast.turn.sent_context import ContextPart as LibraryContextPart

Status = Literal["open", "active", "waiting", "paused", "closed", "archived", "erased"]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Messages(ResponseBody):
    messages: list[Message]


class Appended(ResponseBody):
    seq: Number = Field(description="The number of the last event.")


# -- sessions ----------------------------------------------------------------------------------------------------------


class Prices(ResponseBody):
    input: float = optional_field()
    output: float = optional_field()
    cache_read: float = optional_field()
    cache_write: float = optional_field()
    reasoning: float = optional_field()


@mirror(LibraryBudget, optional=True)
class Budget(ResponseBody):
    prices: Prices = optional_field()


@mirror(LibraryRetention, optional=True)
class Retention(ResponseBody):
    """How long a session is kept, and in what form."""


class Session(ResponseBody):
    """A session as a list shows it."""

    id: str
    work_dir: str | None
    title: str | None
    status: Status
    metadata: dict[str, Any]
    user_id: str | None
    app_name: str | None
    created_at: Time
    updated_at: Time


class FullSession(Session):
    """A session."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "support-42",
                    "work_dir": None,
                    "title": "Refund",
                    "status": "active",
                    "metadata": {},
                    "user_id": "alice",
                    "app_name": None,
                    "created_at": "2026-01-31T09:30:00.000000+00:00",
                    "updated_at": "2026-01-31T09:31:12.345678+00:00",
                    "head": 7,
                    "length": 2,
                    "system": None,
                    "parent": None,
                    "budget": None,
                    "retention": None,
                    "held": None,
                    "queued": 0,
                    "active_agent": None,
                }
            ]
        }
    )

    head: Number = Field(description="The number of the last event.")
    length: Number = Field(description="Visible messages.")
    system: str | None
    parent: str | None = Field(description="The session it was forked from.")
    budget: Budget | None
    retention: Retention | None
    held: str | None = Field(description="Why it is under a legal hold.")
    queued: Number = Field(description="Messages that wait for their turn.")
    active_agent: str | None = Field(description="The agent that the conversation was handed to.")


class SessionPage(ResponseBody):
    sessions: list[Session]
    next: str | None = Field(description="`after` of the next page; null on the last one.")


class Sessions(ResponseBody):
    sessions: list[Session]


class Deleted(ResponseBody):
    status: Literal["deleted"]


class Comparison(ResponseBody):
    common: list[Message]
    mine: list[Message]
    theirs: list[Message]


@mirror(LibraryDifference)
class Difference(ResponseBody):
    """The first event in which a replay differs from the log."""


class Replay(ResponseBody):
    turns: Number
    first_difference: Difference | None
    session_id: str | None = Field(description="The fork that it ran in.")


class Pruned(ResponseBody):
    strategy: str
    dry_run: bool
    seq: int | None = Field(description="The event that records it; null if nothing was pruned.")
    removed: list[int] = Field(description="Numbers of the messages that left the view.")
    kept: list[int]
    reasons: dict[str, str] = Field(description="Why each of the removed left, by its number.")
    kept_because: dict[str, str]
    summary: str | None
    freed_tokens: Number


class Undone(ResponseBody):
    undone: bool


@mirror(LibraryContextPart)
class ContextPart(ResponseBody):
    message: Message | None


@mirror(LibraryContext)
class Context(ResponseBody):
    parts: list[ContextPart]


# -- keeping -----------------------------------------------------------------------------------------------------------


@mirror(LibraryVerification)
class Verification(ResponseBody):
    """The result of checking the hash chain of a log."""


@mirror(LibraryRedacted)
class Redacted(ResponseBody):
    """The event whose payload was removed, and the events that repeated its text."""


@mirror(LibraryErased)
class Erased(ResponseBody):
    """What an erasure removed."""


@mirror(LibraryFact)
class Fact(ResponseBody):
    kind: FactKind


class StoredFact(ResponseBody):
    id: str
    text: str
    kind: FactKind = optional_field()
    status: str = optional_field()
    ref: str = optional_field()


class Document(ResponseBody):
    """The whole session, as `Session.to_dict` gives it."""

    version: int
    id: str
    user_id: str | None
    app_name: str | None
    title: str | None
    status: Status
    system: str | None
    work_dir: str | None
    metadata: dict[str, Any]
    created_at: Time
    updated_at: Time
    messages: list[Message]
    state: dict[str, Any]
    facts: list[StoredFact]
    usage: dict[str, int]
    turns: int
    budget: dict[str, Any] | None
    retention: dict[str, Any] | None
    active_agent: str | None
    turn: dict[str, Any] | None = Field(description="The open turn, with its question and the calls that wait.")


# -- state, facts, approvals, usage ------------------------------------------------------------------------------------


class State(ResponseBody):
    state: dict[str, Any]


class StateFound(ResponseBody):
    name: str
    found: bool
    value: Any = Field(description="null if it is not found")


class StateSet(ResponseBody):
    name: str
    value: Any


class Removed(ResponseBody):
    deleted: bool


class Facts(ResponseBody):
    facts: list[Fact]


@mirror(LibrarySource)
class Source(ResponseBody):
    seqs: list[Number]


@mirror(LibraryRemembered)
class Memory(ResponseBody):
    expires_at: Time | None
    source: Source | None
    created_at: Time
    updated_at: Time
    score: float | None = Field(description="How well it fits the search; null outside of a search.")


class Memories(ResponseBody):
    memories: list[Memory]


class MemoryPage(ResponseBody):
    memories: list[Memory]
    next: str | None


@mirror(LibraryPending)
class Pending(ResponseBody):
    """A call that waits for a person."""


class Approvals(ResponseBody):
    pending: list[Pending]


@mirror(LibraryWaitingCall)
class WaitingCall(ResponseBody):
    """A call of any session that waits for a person."""

    since: Time


class WaitingCalls(ResponseBody):
    waiting: list[WaitingCall]


@mirror(LibraryUnfinished)
class UnfinishedTurn(ResponseBody):
    unknown_calls: list[str] = Field(description="Tools that may or may not have taken effect.")


class Unfinished(ResponseBody):
    unfinished: UnfinishedTurn | None


class Brief(ResponseBody):
    brief: str


@mirror(LibraryUsage)
class Usage(ResponseBody):
    """Tokens. Cached tokens are part of the input, reasoning tokens are part of the output."""


class Used(ResponseBody):
    usage: Usage
    cost: float = Field(description="By the prices of the session's budget; 0 without prices.")
    budget: Budget | None


# -- runs --------------------------------------------------------------------------------------------------------------


@mirror(LibraryToolCall)
class ToolCall(ResponseBody):
    """A call of a tool that the model asked for."""


class AnswerShape(ResponseBody):
    """What a turn gives back. `idle`: there was nothing to resume."""

    response: str | None
    tool_calls: list[ToolCall]
    usage: Usage
    steps: Number
    run_id: str
    status: Literal["finished", "waiting", "idle"]
    pending: list[Pending]
    output: Any
    stop_reason: str | None
    messages: list[Message]


class RunError(ResponseBody):
    code: str
    text: str


class RunShape(ResponseBody):
    """How far a run is."""

    run_id: str
    status: Literal["queued", "running", "waiting", "parked", "finished", "failed", "cancelled", "interrupted"]
    agent_id: str | None
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    error: RunError | None = Field(description="Of a run that failed.")
    response: AnswerShape | None = Field(description="Once it is finished or waits; never in lists.")


class RunsShape(ResponseBody):
    runs: list[RunShape]


class EventShape(ResponseBody):
    """A fact of the log."""

    seq: int
    at: Time
    type: str
    v: int
    run: str | None
    branch: str | None
    author: str | None
    actor: str | None
    data: dict[str, Any]
    erased: bool = Field(description="Its payload is gone; `data` has what is left.")
    verified: bool = Field(description="False: an import brought it, and its actor is a claim of the export.")
    hash: str


class EventsShape(ResponseBody):
    events: list[EventShape]
    next: int | None = Field(description="`after` of the next page; null if there is none yet.")
    head: Number


class HealthShape(ResponseBody):
    status: Literal["ok"]


class ReadyShape(ResponseBody):
    status: Literal["ready", "unavailable"]
    reason: str | None


# -- quotas ------------------------------------------------------------------------------------------------------------


class Quota(ResponseBody):
    name: Literal["sessions", "forks", "memories", "bytes", "tokens_per_day", "cost_per_day"]
    user_id: str | None = Field(description="The user that it limits; null: the tenant.")
    limit: Number | float
    used: Number | float
    left: Number | float
    resets_at: Time | None = Field(description="When a limit of a day begins again; null for what exists.")


class Quotas(ResponseBody):
    quotas: list[Quota]


# -- agents ------------------------------------------------------------------------------------------------------------


class Options(ResponseBody):
    temperature: float = optional_field()
    max_tokens: int = optional_field()
    max_steps: int = optional_field()
    timeout: float = optional_field()


class Agent(ResponseBody):
    id: str
    name: str | None
    description: str | None
    instructions: str | None
    provider: str | None
    model: str | None
    tools: list[str]
    options: Options
    output_schema: dict[str, Any] | None
    budget: Budget | None
    source: Literal["stored", "code"]


class Agents(ResponseBody):
    agents: list[Agent]


class Tool(ResponseBody):
    name: str
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema of an object.")


class Tools(ResponseBody):
    tools: list[Tool]
