"""Models of request bodies: strict, so that no value is converted, and closed, so that no field is ignored.

They check shapes. The rules (what a budget may be, which moves are legal) stay with the library, which says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from holdfast.log.identifiers import MAX_ID
from holdfast.schema.output import OutputShape
from holdfast.stores.base import MAX_SEQ

FactKind = Literal["fact", "decision", "feature", "progress", "artifact"]
Scope = Literal["session", "user", "app"]
Seq = Annotated[int, Field(ge=1, le=MAX_SEQ)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
NewId = Annotated[str, Field(min_length=1, max_length=MAX_ID, description="Printable characters without '/'.")]
Owner = Annotated[str, Field(min_length=1, max_length=512)]
Text = Annotated[str, Field(min_length=1)]
Kind = Annotated[str, Field(min_length=1, max_length=64, description="Such as fact, profile or preference.")]
Confidence = Annotated[float, Field(ge=0, le=1)]

STRATEGY = r"^(keep_last_[1-9][0-9]{0,8}|sliding_window|token_budget|summarize_old|keep_important)$"


def _drop_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def optional_field(**checks: Any) -> Any:  # noqa: ANN401 - as pydantic's own Field
    """A field that may be missing but not null. Whether it was sent is in `model_fields_set`."""
    return Field(default=None, json_schema_extra=_drop_default, **checks)


class RequestBody(BaseModel):
    """The base class of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def fields_sent(self) -> dict[str, Any]:
        """Return the fields that were sent."""
        return self.model_dump(exclude_unset=True)


class Act(RequestBody):
    """An act that the log records with its actor."""

    actor: Owner | None = Field(
        default=None, description="The actor, for the log; a key of a user always acts for that user."
    )


# -- messages ----------------------------------------------------------------------------------------------------------


class TextPart(RequestBody):
    type: Literal["text"]
    text: str


class MediaSource(RequestBody):
    """Where the bytes of an image or a document are, as Anthropic writes it."""

    type: Literal["base64", "url", "text"]
    url: str = optional_field()
    data: str = optional_field()
    media_type: str = optional_field()


class ImagePart(RequestBody):
    """By `url`, by `data` (base64) with its `media_type`, or by `source`, as Anthropic writes it."""

    type: Literal["image"]
    url: str = optional_field()
    data: str = optional_field()
    media_type: str = optional_field()
    name: str = optional_field()
    source: MediaSource = optional_field()
    cache_control: dict[str, Any] = optional_field(description="Ignored.")


class DocumentPart(RequestBody):
    """A file as Anthropic writes it."""

    type: Literal["document"]
    source: MediaSource
    title: str = optional_field()
    cache_control: dict[str, Any] = optional_field(description="Ignored.")
    citations: dict[str, Any] = optional_field(description="Ignored.")


class FilePart(RequestBody):
    """By `url`, or by `data` (base64) with its `media_type`."""

    type: Literal["file"]
    url: str = optional_field()
    data: str = optional_field()
    media_type: str = optional_field()
    name: str = optional_field()


class ImageUrl(RequestBody):
    url: str


class ImageUrlPart(RequestBody):
    """An image as OpenAI writes it."""

    type: Literal["image_url"]
    image_url: ImageUrl | str


class ToolCallPart(RequestBody):
    type: Literal["tool_call"]
    id: str
    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class ToolResultPart(RequestBody):
    type: Literal["tool_result"]
    call_id: str
    content: str
    is_error: bool = False


class ThinkingPart(RequestBody):
    type: Literal["thinking"]
    text: str
    signature: str | None = None
    provider: str | None = None
    model: str | None = None


Part = Annotated[
    TextPart | ImagePart | FilePart | DocumentPart | ImageUrlPart | ToolCallPart | ToolResultPart | ThinkingPart,
    Field(discriminator="type"),
]


class CalledFunction(RequestBody):
    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class CallGiven(RequestBody):
    """A tool call as OpenAI writes it."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageGiven(RequestBody):
    """A message as OpenAI writes it, or with parts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user", "content": "My name is Alice"}]})

    role: Literal["user", "assistant", "system", "tool"]
    content: str | list[str | Part] | None = None
    tool_calls: list[CallGiven] | None = None
    tool_call_id: str | None = None
    is_error: bool = False
    author: Owner | None = None
    metadata: dict[str, Any] | None = None
    created_at: str | None = Field(default=None, description="ISO time, for what was said elsewhere before.")
    seq: int | None = Field(default=None, description="Ignored: the log numbers messages.")


if TYPE_CHECKING:
    MessageDict = dict[str, Any]
else:  # what the library takes: checked as a message, and a dict again
    MessageDict = Annotated[MessageGiven, AfterValidator(MessageGiven.fields_sent)]


class MessagesGiven(RequestBody):
    messages: list[MessageDict]


# -- runs --------------------------------------------------------------------------------------------------------------


class MessageBody(RequestBody):
    """A question to an agent."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "What do you know about me?"}]})

    message: str | MessageDict
    agent_id: Text | None = Field(default=None, description="Id or name; the server's default, if left out.")
    on_busy: Literal["enqueue", "reject", "interrupt"] = "enqueue"
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: Count | None = None
    tool_choice: Text | None = Field(default=None, description="'auto', 'none', 'required' or the name of a tool.")
    stop: str | list[str] | None = None
    output_schema: dict[str, Any] | None = Field(default=None, alias="schema", description="JSON Schema of the answer.")
    metadata: dict[str, Any] | None = None
    timeout: float | None = Field(default=None, ge=0, le=86_400, description="Seconds to wait for the turn to begin.")

    def options(self) -> dict[str, Any]:
        """Return the options of this one run."""
        if self.output_schema is not None:
            OutputShape(self.output_schema)  # refuses what is no schema, before anything is stored
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        found = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "tool_choice": self.tool_choice,
            "stop": stop,
            "schema": self.output_schema,
        }
        return {name: value for name, value in found.items() if value is not None}


class ResumeBody(Act):
    agent_id: Text | None = None
    reason: Text | None = None


class RetryBody(Act):
    agent_id: Text | None = None
    max_steps: Count | None = Field(default=None, description="The limit of model calls of the whole turn.")


class CancelBody(RequestBody):
    """There is nothing to say."""


# -- sessions ----------------------------------------------------------------------------------------------------------


class PricesGiven(RequestBody):
    """Money per million tokens."""

    input: float = optional_field(ge=0)
    output: float = optional_field(ge=0)
    cache_read: float = optional_field(ge=0)
    cache_write: float = optional_field(ge=0)
    reasoning: float = optional_field(ge=0)


class BudgetGiven(RequestBody):
    """Limits for a whole session; `cost` needs `prices`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tokens": 100_000, "turns": 50}]})

    tokens: int | None = Field(default=None, ge=0)
    cost: float | None = Field(default=None, ge=0)
    turns: int | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    prices: PricesGiven = optional_field()


class RetentionGiven(RequestBody):
    """How long a session is kept, and in what form; what is not given is kept for ever, whole."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ttl_days": 730, "archive_after_days": 90}]})

    ttl_days: float | None = Field(default=None, gt=0)
    archive_after_days: float | None = Field(default=None, gt=0)
    auto_prune: bool = False
    prune_strategy: str | None = Field(default=None, json_schema_extra={"pattern": STRATEGY})
    max_messages: Count | None = None
    immutable: bool = False


class NewSession(RequestBody):
    """A session to be made; everything may be left out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{}, {"id": "support-42", "title": "Refund", "user_id": "alice", "state": {"language": "en"}}]
        }
    )

    id: NewId | None = None
    work_dir: Text | None = Field(default=None, description="In the folder of its owner beneath a work root.")
    title: str | None = None
    metadata: dict[str, Any] | None = None
    user_id: Owner | None = None
    app_name: Owner | None = None
    system: str | None = None
    messages: list[MessageGiven] | None = None
    state: dict[str, Any] | None = None
    budget: BudgetGiven | None = None
    retention: RetentionGiven | None = None
    exist_ok: bool = Field(default=False, description="Open a session that exists, instead of refusing.")


class SessionChange(RequestBody):
    """What is to be changed; what is left out stays, and null takes away."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Refund for order 7"}]})

    title: str | None = None
    metadata: dict[str, Any] = optional_field()
    work_dir: Text | None = None
    system: str | None = None
    budget: BudgetGiven | None = None
    retention: RetentionGiven = optional_field()
    active_agent: Text | None = Field(default=None, description="Gives the conversation to this agent, by name.")


class Move(Act):
    """A move in the life of a session."""

    reason: Text | None = None


class Reasoned(Act):
    reason: Text


class Redaction(Act):
    seq: Seq
    reason: Text


class Rewind(Act):
    to: Seq = Field(description="The event after which messages and state are taken up again.")


class ForkAsked(RequestBody):
    id: NewId | None = None
    at: Seq | None = Field(default=None, description="The last event that is shared; now, if left out.")


class NewIdAsked(RequestBody):
    id: NewId | None = None


class AgentAsked(RequestBody):
    agent_id: Text | None = None


class Imported(RequestBody):
    data: Text = Field(description="The text of a jsonl export.")
    id: NewId | None = None
    user_id: Owner | None = None
    app_name: Owner | None = None


class Prune(Act):
    model_config = ConfigDict(json_schema_extra={"examples": [{"strategy": "keep_last_50", "dry_run": True}]})

    strategy: str = Field(default="sliding_window", json_schema_extra={"pattern": STRATEGY})
    window_size: Count | None = Field(default=None, description="Of sliding_window.")
    threshold: Count | None = Field(default=None, description="Of summarize_old.")
    max_tokens: Count | None = Field(default=None, description="Of token_budget.")
    dry_run: bool = False
    agent_id: Text | None = Field(default=None, description="The agent that writes the summary; without it, rules do.")


class Decision(Act):
    model_config = ConfigDict(json_schema_extra={"examples": [{"approved": False, "reason": "too expensive"}]})

    approved: bool
    reason: Text | None = Field(default=None, description="The reason of a refusal; the model sees it.")
    arguments: dict[str, Any] | None = Field(default=None, description="Run an approved call with these arguments.")
    answer: Any = Field(default=None, description="The answer to the interrupt of a tool.")


# -- state and facts ---------------------------------------------------------------------------------------------------


class Expected(RequestBody):
    """What the value must be for the change to happen."""

    found: bool
    value: Any = None


class StateValue(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"value": ["item1"]}]})

    value: Any
    scope: Scope | None = None
    expected: Expected | None = None


class NewFact(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "use PostgreSQL", "kind": "decision"}]})

    text: Text
    kind: FactKind = "fact"
    status: str | None = None
    ref: str | None = None


class FactChange(RequestBody):
    """What is to be changed; what is left out stays."""

    text: Text = optional_field()
    kind: FactKind = optional_field()
    status: str = optional_field()
    ref: str = optional_field()


# -- memory ------------------------------------------------------------------------------------------------------------


class SourceGiven(RequestBody):
    """Where a memory comes from."""

    session_id: NewId
    seqs: list[Seq] = Field(default_factory=list, max_length=1000, description="Events of it that say so.")


class MemoryGiven(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Lives in Bremen", "kind": "profile"}]})

    text: Text
    kind: Kind = "fact"
    confidence: Confidence = 1.0
    expires_in: float | None = Field(default=None, gt=0, le=1e10, description="Seconds.")
    expires_at: str | None = Field(default=None, description="ISO time.")
    source: SourceGiven | None = None


class MemorySearch(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "where does she live?", "limit": 5}]})

    query: str
    limit: int = Field(default=5, ge=0, le=1000)
    kind: Kind | None = None
    min_confidence: Confidence | None = None
    user_id: Owner | None = Field(default=None, description="Whose; a key of a user is for that user's.")
    app_name: Owner | None = None


class Ingest(RequestBody):
    agent_id: Text | None = Field(
        default=None, description="The agent whose model extracts facts; without it no model is called."
    )
    shared: bool = Field(
        default=False, description="Keep them for `user_id` and `app_name`, not for the session's own."
    )
    user_id: Owner | None = Field(default=None, description="With `shared`: for which user; left out: for none.")
    app_name: Owner | None = Field(default=None, description="With `shared`: for which app; left out: for none.")


# -- agents ------------------------------------------------------------------------------------------------------------


class OptionsGiven(RequestBody):
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: Count | None = None
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    timeout: float | None = Field(default=None, gt=0, le=3600, description="Seconds.")


class AgentGiven(RequestBody):
    """An agent. Keys and addresses of providers come from the server's environment, never from a request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "support",
                    "instructions": "Be brief.",
                    "provider": "openai",
                    "model": "gpt-4o",
                    "tools": ["remember"],
                    "options": {"temperature": 0.2},
                }
            ]
        }
    )

    id: NewId | None = None
    name: Owner | None = None
    description: str | None = None
    instructions: str | None = None
    provider: Text | None = None
    model: Text | None = Field(default=None, description="Of the provider, or as 'provider:model'.")
    tools: list[str] = Field(default_factory=list, description="Names; GET /tools lists them.")
    options: OptionsGiven = Field(default_factory=OptionsGiven)
    output_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema of the answers.")
    budget: BudgetGiven | None = Field(default=None, description="For sessions without one, when it first runs there.")
