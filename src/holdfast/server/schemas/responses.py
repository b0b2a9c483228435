"""What answers look like, for the OpenAPI document. Nothing is validated on its way out: `shapes` makes what these say,
and the tests check every answer against them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.server.schemas.requests import FactKind, left_out

Role = Literal["user", "assistant", "system", "tool"]
Status = Literal["open", "active", "waiting", "paused", "closed", "archived", "erased"]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Number = Annotated[int, Field(ge=0)]


class Sent(BaseModel):
    """What every answer has in common."""

    model_config = ConfigDict(extra="forbid")


class SentText(Sent):
    type: Literal["text"]
    text: str


class SentImage(Sent):
    type: Literal["image"]
    url: str = left_out()
    data: str = left_out(description="base64")
    media_type: str = left_out()
    name: str = left_out()


class SentFile(Sent):
    type: Literal["file"]
    url: str = left_out()
    data: str = left_out(description="base64")
    media_type: str = left_out()
    name: str = left_out()


class SentToolCall(Sent):
    type: Literal["tool_call"]
    id: str
    name: str
    arguments: dict[str, Any] | str


class SentToolResult(Sent):
    type: Literal["tool_result"]
    call_id: str
    content: str
    is_error: bool


class SentThinking(Sent):
    type: Literal["thinking"]
    text: str
    signature: str = left_out()
    provider: str = left_out()
    model: str = left_out()


SentPart = Annotated[
    SentText | SentImage | SentFile | SentToolCall | SentToolResult | SentThinking, Field(discriminator="type")
]


class SentFunction(Sent):
    name: str
    arguments: str


class SentFunctionCall(Sent):
    id: str
    type: Literal["function"]
    function: SentFunction


class Message(Sent):
    """A message as OpenAI writes it, or with parts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "role": "user",
                    "content": "My name is Alice",
                    "created_at": "2026-01-31T09:30:00.000000+00:00",
                    "seq": 2,
                }
            ]
        }
    )

    role: Role
    content: str | list[SentPart] | None
    tool_calls: list[SentFunctionCall] = left_out()
    tool_call_id: str = left_out()
    is_error: bool = left_out()
    author: str = left_out()
    metadata: dict[str, Any] = left_out()
    created_at: str = left_out(description="ISO time")
    seq: int | None = Field(default=None, description="The number of its event.")


class Messages(Sent):
    messages: list[Message]


class Appended(Sent):
    seq: Number = Field(description="The number of the last event.")


# -- sessions ----------------------------------------------------------------------------------------------------------


class Prices(Sent):
    input: float = left_out()
    output: float = left_out()
    cache_read: float = left_out()
    cache_write: float = left_out()
    reasoning: float = left_out()


class Budget(Sent):
    tokens: int = left_out()
    cost: float = left_out()
    turns: int = left_out()
    steps: int = left_out()
    seconds: float = left_out()
    prices: Prices = left_out()


class Retention(Sent):
    ttl_days: float = left_out()
    archive_after_days: float = left_out()
    auto_prune: bool = left_out()
    prune_strategy: str = left_out()
    max_messages: int = left_out()
    immutable: bool = left_out()


class Session(Sent):
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


class SessionPage(Sent):
    sessions: list[Session]
    next: str | None = Field(description="`after` of the next page; null on the last one.")


class Sessions(Sent):
    sessions: list[Session]


class Deleted(Sent):
    status: Literal["deleted"]


class Comparison(Sent):
    common: list[Message]
    mine: list[Message]
    theirs: list[Message]


class Difference(Sent):
    """The first place where a replay went another way."""

    turn: int
    seq: int | None
    type: str
    recorded: Any
    replayed: Any


class Replay(Sent):
    turns: Number
    first_difference: Difference | None
    session_id: str | None = Field(description="The fork that it ran in.")


class Pruned(Sent):
    strategy: str
    dry_run: bool
    seq: int | None = Field(description="The event that records it; null if nothing was pruned.")
    removed: list[int] = Field(description="Numbers of the messages that left the view.")
    kept: list[int]
    reasons: dict[str, str] = Field(description="Why each of the removed left, by its number.")
    kept_because: dict[str, str]
    summary: str | None
    freed_tokens: Number


class Undone(Sent):
    undone: bool


class ContextPart(Sent):
    kind: str
    text: str
    tokens: Number
    seq: int | None
    message: Message | None


class Context(Sent):
    parts: list[ContextPart]
    tokens: Number
    estimated: Number
    reported: int | None
    window: int | None
    model: str
    left_out: int


# -- keeping -----------------------------------------------------------------------------------------------------------


class Verification(Sent):
    ok: bool
    checked: int
    first_bad: int | None
    reason: str | None


class Redacted(Sent):
    seq: int
    also: list[int]


class Erased(Sent):
    sessions: list[str]
    events: Number
    user_state: bool
    memories: bool


class Fact(Sent):
    id: str
    text: str
    kind: FactKind
    status: str | None
    ref: str | None


class StoredFact(Sent):
    id: str
    text: str
    kind: FactKind = left_out()
    status: str = left_out()
    ref: str = left_out()


class Document(Sent):
    """The whole view of a session, as `Session.to_dict` gives it."""

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
    active_agent: str | None


# -- state, facts, approvals, usage ------------------------------------------------------------------------------------


class State(Sent):
    state: dict[str, Any]


class StateFound(Sent):
    name: str
    found: bool
    value: Any = Field(description="null if it is not found")


class StateSet(Sent):
    name: str
    value: Any


class Removed(Sent):
    deleted: bool


class Facts(Sent):
    facts: list[Fact]


class Source(Sent):
    session_id: str
    seqs: list[Number]


class Memory(Sent):
    key: str
    text: str
    kind: str
    confidence: float
    expires_at: Time | None
    source: Source | None
    created_at: Time
    updated_at: Time
    score: float | None = Field(description="How well it fits; null where nothing was searched.")


class Memories(Sent):
    memories: list[Memory]


class MemoryPage(Sent):
    memories: list[Memory]
    next: str | None


class Pending(Sent):
    """A call that waits for a person."""

    call_id: str
    name: str
    arguments: dict[str, Any] | str
    payload: Any
    reason: str | None


class Approvals(Sent):
    pending: list[Pending]


class UnfinishedTurn(Sent):
    run_id: str
    question: str
    unknown_calls: list[str] = Field(description="Tools that may or may not have taken effect.")
    attempts: Number
    parked: bool


class Unfinished(Sent):
    unfinished: UnfinishedTurn | None


class Brief(Sent):
    brief: str


class Usage(Sent):
    input_tokens: Number
    output_tokens: Number
    cache_read_tokens: Number
    cache_write_tokens: Number
    reasoning_tokens: Number


class Used(Sent):
    usage: Usage
    cost: float = Field(description="By the prices of the session's budget; 0 without prices.")
    budget: Budget | None


# -- runs --------------------------------------------------------------------------------------------------------------


class ToolCall(Sent):
    id: str
    name: str
    arguments: dict[str, Any] | str


class AnswerShape(Sent):
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


class RunError(Sent):
    code: str
    text: str


class RunShape(Sent):
    """How far a run is."""

    run_id: str
    status: Literal["queued", "running", "waiting", "parked", "finished", "failed", "cancelled", "interrupted"]
    agent_id: str | None
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    error: RunError | None = Field(description="Of a run that failed.")
    response: AnswerShape | None = Field(description="Once it is finished or waits; never in lists.")


class RunsShape(Sent):
    runs: list[RunShape]


class EventShape(Sent):
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
    hash: str


class EventsShape(Sent):
    events: list[EventShape]
    next: int | None = Field(description="`after` of the next page; null if there is none yet.")
    head: Number


class HealthShape(Sent):
    status: Literal["ok"]


class ReadyShape(Sent):
    status: Literal["ready", "unavailable"]
    reason: str | None


# -- agents ------------------------------------------------------------------------------------------------------------


class Options(Sent):
    temperature: float = left_out()
    max_tokens: int = left_out()
    max_steps: int = left_out()
    timeout: float = left_out()


class Agent(Sent):
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


class Agents(Sent):
    agents: list[Agent]


class Tool(Sent):
    name: str
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema of an object.")


class Tools(Sent):
    tools: list[Tool]
