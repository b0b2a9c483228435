"""Every exception of holdfast.

Each error has a stable `code` and an HTTP `status`: clients match on the code, never on the text. Each text says what
to do next, and each error carries its facts as attributes. All of them pickle, copy and travel as JSON (`from_code`).

AgentError
├─ InvalidArgument (also a ValueError): InvalidId, NotJSON, LimitExceeded, BodyTooLarge, UnsupportedMediaType,
│  │  MissingUser, MissingState, InvalidTool, BadArguments
│  └─ MissingUser: MissingApp
├─ SessionError: SessionNotFound, SessionExists, SessionMismatch, Conflict, ViewChanged, StaleEpoch, SessionBusy,
│  │  KeyReused, LifecycleError, TurnOpen, QueueFull, NothingToRetry, NothingPending, WrongApprover,
│  │  ApprovalPending, ImmutableSession, SessionHeld, SearchUnavailable
│  └─ Conflict: EventsLost
├─ TurnFailed: MaxStepsExceeded, BudgetExceeded, SchemaValidationError, InstructionsFailed, TurnParked, TurnCancelled,
│     RoutingError, HandoffLoop
├─ ToolError: FileRefused, MCPFailed
├─ StoreError: StoreBusy, StoreFull, StoreReadOnly, StoreUnavailable, StorePoisoned, StoreClosed, ClocksDisagree,
│  │  UnsafeSQLite, SchemaTooNew, CorruptLog, WrongKey, KeyNeeded
│  └─ StoreBusy: StoreReentered
├─ ProviderError: AuthenticationFailed, RequestRejected, ContextTooLong, RateLimited, ProviderTimeout,
│  │  ProviderUnavailable, BadResponse
│  └─ BadResponse: StreamTruncated
├─ of a server and its clients: Unauthorized, Forbidden, NotFound, RequestTimeout, KeyInUse, TooManyRequests,
│     QuotaExceeded, Unavailable, AgentExists, AgentFromCode, ServerUnavailable, ServerSilent
└─ AlreadyAdmitted, BadOutput, MissingExtra, ScriptExhausted, UnsupportedSystem
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_MAX_PATH = 200  # characters of a path in a text
_CONTENT = ("text", "problem")  # facts that quote a model's reply: it belongs to the session, not to its errors


class AgentError(Exception):
    """The base class of every error that holdfast raises."""

    code, status = "error", 500

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None, **more: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**more)
        if code is not None:
            cls.code = code
        if status is not None:
            cls.status = status

    @property
    def details(self) -> dict[str, Any]:
        """The facts that JSON can hold: a client on another machine gets them with the text."""
        facts = {name: list(value) if type(value) is tuple else value for name, value in vars(self).items()}
        return {
            name: value
            for name, value in facts.items()
            if name not in _CONTENT and not name.startswith("_") and _is_plain(value)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the text and the facts, without the constructor: most constructors build the text from the
        facts, and `multiprocessing.Pool` waits for ever when it cannot rebuild the error of a worker."""
        return _restore, (type(self), self.args, _portable_cause(self)), vars(self)


# -- arguments ---------------------------------------------------------------------------------------------------------


class InvalidArgument(AgentError, ValueError, code="invalid_argument", status=400):
    """An argument is not valid; nothing was stored."""


class InvalidId(InvalidArgument, code="invalid_id"):
    """An id is empty, too long, or has characters that are not printable."""


class NotJSON(InvalidArgument, code="not_json"):
    """A value cannot be stored as JSON, or not without changing it."""


class LimitExceeded(InvalidArgument, code="limit_exceeded", status=413):
    """A value is larger than its limit."""

    def __init__(self, what: str, *, size: int, limit: int, hint: str) -> None:
        self.what, self.size, self.limit, self.hint = what, size, limit, hint
        super().__init__(f"{what} has {size} bytes, the limit is {limit}: {hint}")


class BodyTooLarge(InvalidArgument, code="body_too_large", status=413):
    """The body of a request is larger than the server accepts."""

    def __init__(self, limit: int, unit: str = "bytes") -> None:
        self.limit, self.unit = limit, unit
        super().__init__(f"the body has more than {limit} {unit}: send less, or in several requests")


class UnsupportedMediaType(InvalidArgument, code="unsupported_media_type", status=415):
    """A request has a body that is not declared as JSON."""

    def __init__(self) -> None:
        super().__init__("only JSON is read here: send Content-Type: application/json")


class MissingUser(InvalidArgument, code="missing_user"):
    """User scope was used in a session that has no user. Base class of `MissingApp`."""


class MissingApp(MissingUser, code="missing_app"):
    """App scope was used in a session that has no app."""


class MissingState(InvalidArgument, code="missing_state"):
    """Instructions name a state value that does not exist."""

    def __init__(self, name: str, *, scope: str = "session") -> None:
        self.name, self.scope = name, scope
        key, owner = name, ""
        call = f"set_state({name!r}, ...)"
        if scope != "session":
            key, call = f"{scope}:{name}", f"set_state({name!r}, ..., scope={scope!r})"
        if scope in ("user", "app"):
            owner = f" in a session with {'user_id' if scope == 'user' else 'app_name'}="
        super().__init__(
            f"the instructions need state {key!r}, which is not set: call {call}{owner}, write {{{key}?}} if it may be "
            f"absent, or {{{{{key}}}}} for the text {{{key}}}"
        )


class InvalidTool(InvalidArgument, code="invalid_tool"):
    """A function cannot be a tool as it is written."""


class BadArguments(InvalidArgument, code="bad_arguments"):
    """The arguments of a call do not match the tool; the text says to the model what to change."""

    def __init__(self, tool: str, problems: Iterable[str]) -> None:
        self.tool, self.problems = tool, tuple(problems)
        super().__init__(f"bad arguments for {tool}: {'; '.join(self.problems)}")


# -- sessions ----------------------------------------------------------------------------------------------------------


class SessionError(AgentError, code="session_error", status=409):
    """An error about one session."""


class SessionNotFound(SessionError, code="session_not_found", status=404):
    """The session does not exist, or belongs to another tenant or user."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session not found: {session_id}")


class SessionExists(SessionError, code="session_exists"):
    """A new session was requested under an id that exists."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} exists already: open it, or choose another id")


class SessionMismatch(SessionError, code="session_mismatch"):
    """A session was opened for another user or app than the one it belongs to."""

    def __init__(self, session_id: str, field: str) -> None:
        self.session_id, self.field = session_id, field
        super().__init__(
            f"session {session_id!r} belongs to another {field}: give the {field} that it has, or choose another id"
        )


class Conflict(SessionError, code="conflict"):
    """Another writer appended first, or changed the state value `name` first."""

    name: str | None = None

    def __init__(self, session_id: str, *, expected: int, head: int, name: str | None = None) -> None:
        self.session_id, self.expected, self.head = session_id, expected, head
        text = f"session {session_id!r} is at {head}, not at {expected}: reload it and try again"
        if name is not None:
            self.name, text = name, f"state {name!r} is not what was expected: read it again and try again"
        super().__init__(text)


class EventsLost(Conflict, code="events_lost"):
    """On a store of four methods, another process saved over the events `lost` to `expected` of this process."""

    def __init__(self, session_id: str, *, expected: int, head: int, lost: int) -> None:
        self.session_id, self.expected, self.head, self.lost = session_id, expected, head, lost
        super(Conflict, self).__init__(
            f"another process saved session {session_id!r} in the same moment, and the events {lost} to {expected} of "
            "this process are lost: open it again, and repeat what is missing"
        )


class ViewChanged(SessionError, code="view_changed"):
    """Another writer cleared, rewound or pruned the messages after this change of them was planned."""

    def __init__(self) -> None:
        super().__init__("the messages were cleared, rewound or pruned meanwhile: look again, and try again")


class StaleEpoch(SessionError, code="stale_epoch"):
    """Another process took over the writer's lease; all further writes of this writer are refused."""

    def __init__(self, session_id: str, *, epoch: int, current: int) -> None:
        self.session_id, self.epoch, self.current = session_id, epoch, current
        super().__init__(
            f"session {session_id!r} is in epoch {current}, this writer holds {epoch}: another process took over; stop"
        )


class SessionBusy(SessionError, code="session_busy"):
    """Another writer holds the lease."""

    def __init__(self, session_id: str, *, retry_after: float) -> None:
        self.session_id, self.retry_after = session_id, retry_after
        super().__init__(f"session {session_id!r} is busy for up to {retry_after:.1f} s more: wait, or try again")


class KeyReused(SessionError, code="key_reused", status=422):
    """The same idempotency key was used with different content."""

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id, self.key = session_id, key
        super().__init__(f"key {key!r} was used in {session_id!r} with other content: use a new key")


class LifecycleError(SessionError, code="lifecycle"):
    """The status of the session does not allow this move."""

    def __init__(self, move: str, *, status: str, legal: Iterable[str]) -> None:
        self.move, self.session_status, self.legal = move, status, tuple(legal)
        moves = ", ".join(self.legal) or "none"
        super().__init__(f"cannot {move} a session that is {status}; legal moves now: {moves}")


class TurnOpen(SessionError, code="turn_open"):
    """The session has a turn that is not finished."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"cannot {what} while a turn is unfinished: let it finish, or resume it first")


class QueueFull(SessionError, code="queue_full", status=429):
    """Too many messages wait in the queue of one session."""

    def __init__(self, limit: int) -> None:
        self.limit, self.retry_after = limit, 1.0
        super().__init__(f"{limit} messages wait for their turn in this session already: wait, or cancel some of them")


class NothingToRetry(SessionError, code="nothing_to_retry"):
    """The last turn did not fail, or it cannot continue: its session was cleared, rewound or redacted since."""

    def __init__(self) -> None:
        super().__init__("the last turn of the session did not fail: there is nothing to retry")


class NothingPending(SessionError, code="nothing_pending"):
    """A decision was made about a call that does not wait for one."""

    def __init__(self, call_id: str, pending: Iterable[str]) -> None:
        self.call_id, self.pending = call_id, tuple(pending)
        waiting = ", ".join(self.pending) or "none"
        super().__init__(f"call {call_id!r} does not wait for a decision; waiting now: {waiting}")


class WrongApprover(SessionError, code="wrong_approver", status=403):
    """Another person must decide about the call: its tool names who may, or asks for a second person."""

    def __init__(self, call_id: str, actor: str | None, approvers: Iterable[str] = ()) -> None:
        self.call_id, self.actor, self.approvers = call_id, actor, tuple(approvers)
        names = ", ".join(self.approvers)
        who = f"one of {names} who did not ask for it" if names else "another person than the one who asked for it"
        given = "name the person who decides with actor=" if actor is None else f"{actor!r} may not"
        super().__init__(f"call {call_id!r} is to be decided by {who}: {given}")


class ApprovalPending(SessionError, code="approval_pending"):
    """The session waits for a person's decision."""

    def __init__(self, session_id: str, calls: Iterable[str]) -> None:
        self.session_id, self.calls = session_id, tuple(calls)
        super().__init__(
            f"session {session_id!r} waits for a decision on {', '.join(self.calls)}: "
            "approve(call_id) or deny(call_id), then resume()"
        )


class ImmutableSession(SessionError, code="immutable"):
    """An immutable session cannot be changed or removed before its expiry."""

    def __init__(self, what: str, *, until: int | None, ttl_days: float | None = None) -> None:
        """`until` is in microseconds, None for ever; `ttl_days` is for callers that do not know the last activity."""
        self.what, self.until, self.ttl_days = what, until, ttl_days
        if until is None and ttl_days is not None:
            end = f"until {ttl_days} days after its last activity"
        else:
            end = _describe_end(until)
        super().__init__(f"cannot {what} an immutable session: it is kept unchanged {end}")


class SessionHeld(SessionError, code="held"):
    """A session under a legal hold cannot be removed or redacted."""

    def __init__(self, what: str, *, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"cannot {what} a session under a legal hold ({reason}): release() ends the hold")


class SearchUnavailable(SessionError, code="search_unavailable"):
    """An encrypted session cannot be searched: an index of its words would reveal its content."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} is encrypted, so there is no index of its words: read its history")


# -- turns -------------------------------------------------------------------------------------------------------------


class TurnFailed(AgentError, code="turn_failed", status=500):
    """A turn ended without an answer; the log has the reason, and the messages are unchanged."""


class MaxStepsExceeded(TurnFailed, code="max_steps_exceeded"):
    """The model called tools for more steps than allowed."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        super().__init__(f"no answer after {steps} model calls: raise max_steps=, or look at what the tools return")


class BudgetExceeded(TurnFailed, code="budget_exceeded", status=429):
    """The budget of the session is used up."""

    def __init__(self, what: str, *, used: float, limit: float) -> None:
        self.what, self.used, self.limit = what, used, limit
        super().__init__(f"the budget of {limit:g} {what} is used up ({used:g}): raise it, or start a new session")


class SchemaValidationError(TurnFailed, code="schema_validation", status=502):
    """The model did not return output that matches the schema, after repeated attempts."""

    problem, text = "", ""  # a client gets neither: they quote the reply, which belongs to the session

    def __init__(self, problem: str, *, text: str, tries: int) -> None:
        self.problem, self.text, self.tries = problem, text, tries
        super().__init__(f"the output is not of the asked shape after {tries} tries: {problem}")


class InstructionsFailed(TurnFailed, code="instructions_failed"):
    """The function that gives an agent its instructions raised an error, or returned something else than a text."""

    def __init__(self, function: str, *, agent: str | None, reason: str) -> None:
        self.function, self.agent, self.reason = function, agent, reason
        owner = "" if agent is None else f" of agent {agent!r}"
        hint = "it must return a str, or None for no instructions"
        super().__init__(f"the instructions function {function!r}{owner} {reason}: {hint}")


class TurnParked(TurnFailed, code="turn_parked", status=409):
    """A turn ended its process again and again; it is not retried any more."""

    def __init__(self, session_id: str, attempts: int) -> None:
        self.session_id, self.attempts = session_id, attempts
        super().__init__(
            f"the unfinished turn of session {session_id!r} ended its process {attempts} times and is parked: "
            "run() with a new message settles it"
        )


class TurnCancelled(TurnFailed, code="turn_cancelled", status=409):
    """The turn was cancelled before it had an answer."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(f"the turn was cancelled: {reason}" if reason else "the turn was cancelled")


class RoutingError(TurnFailed, code="routing_failed"):
    """No agent could answer: all of them failed, or a model chose an unknown agent. `causes`: one reason per agent."""

    def __init__(self, what: str, causes: Iterable[str]) -> None:
        self.what, self.causes = what, tuple(causes)
        reasons = "; ".join(self.causes)
        super().__init__(f"{what}: {reasons}" if reasons else what)


class HandoffLoop(TurnFailed, code="handoff_loop"):
    """Agents hand a conversation to each other again and again, and none of them answers."""

    def __init__(self, giver: str, taker: str) -> None:
        self.giver, self.taker = giver, taker
        super().__init__(
            f"{giver} hands the conversation to {taker} again and again, and nobody answers: "
            "say in their instructions who answers what"
        )


# -- tools -------------------------------------------------------------------------------------------------------------


class ToolError(AgentError, code="tool_error"):
    """A tool could not do its work; the text is for the model."""


class FileRefused(ToolError, code="file_refused"):
    """A path that a tool cannot use. `path` is the path of the call; it never names the working directory itself."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        shown = path if len(path) <= _MAX_PATH else path[:_MAX_PATH] + "…"
        super().__init__(f"{shown!r}: {reason}")


class MCPFailed(ToolError, code="mcp_failed", status=502):
    """The MCP server could not be started, died, refused a call, or did not answer in time."""


# -- stores ------------------------------------------------------------------------------------------------------------


class StoreError(AgentError, code="store_error", status=503):
    """An error of a store."""


class StoreBusy(StoreError, code="store_busy"):
    """The database stayed locked for longer than the store waits."""


class StoreReentered(StoreBusy, code="store_reentered"):
    """A signal handler or a finalizer wrote to a store in the middle of a write of the same thread."""


class StoreFull(StoreError, code="store_full", status=507):
    """No space is left; the write was rolled back, and reads still work."""


class StoreReadOnly(StoreError, code="store_read_only"):
    """The file, directory or server does not allow writing."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The database cannot be reached, or refuses the connection."""


class StorePoisoned(StoreError, code="store_poisoned"):
    """A flush failed or the file was replaced; the content of the disk is unknown until the store is opened again."""


class StoreClosed(StoreError, code="store_closed"):
    """The store was closed."""


class ClocksDisagree(StoreError, code="clocks_disagree"):
    """The clock of this machine and the clock of the database differ by more than a minute, so no sweep is safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # how far this machine is ahead; negative: behind
        super().__init__(
            f"the clock of this machine and that of the database differ by {seconds} seconds: nothing is swept. Set "
            "both by the same time server"
        )


class UnsafeSQLite(StoreError, code="unsafe_sqlite"):
    """The SQLite library has a known bug that can corrupt a shared file."""


class SchemaTooNew(StoreError, code="schema_too_new"):
    """The database, document or event was written by a newer holdfast."""


class CorruptLog(StoreError, code="corrupt_log", status=500):
    """A record cannot be read, or does not match its hash."""


class WrongKey(StoreError, code="wrong_key"):
    """The store is encrypted with another master key, or the data was altered."""


class KeyNeeded(StoreError, code="key_needed"):
    """The session is encrypted, and the store was opened without its key."""


# -- providers ---------------------------------------------------------------------------------------------------------


class ProviderError(AgentError, code="provider_error", status=502):
    """A model provider failed or refused the request. `retryable`: the same request may succeed later."""

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        http_status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.provider, self.http_status, self.retry_after = provider, http_status, retry_after
        if retryable is not None:
            self.retryable = retryable
        super().__init__(message)


class AuthenticationFailed(ProviderError, code="authentication_failed"):
    """The API key is missing, wrong, or not allowed to do this."""


class RequestRejected(ProviderError, code="request_rejected"):
    """The provider does not accept this request: an unknown model, an unknown option."""


class ContextTooLong(ProviderError, code="context_too_long"):
    """The request is larger than the model's context window."""


class RateLimited(ProviderError, code="rate_limited"):
    """Too many requests, or no quota left; `retry_after` has the waiting time, if the provider reports one."""

    retryable = True


class ProviderTimeout(ProviderError, code="provider_timeout"):
    """The provider sent nothing, or did not complete one reply, within the time-out."""

    retryable = True


class ProviderUnavailable(ProviderError, code="provider_unavailable"):
    """The provider cannot be reached, is overloaded, or failed on its side."""

    retryable = True


class BadResponse(ProviderError, code="bad_response"):
    """The provider's response does not match its API; nothing of it was stored."""

    retryable = True


class StreamTruncated(BadResponse, code="stream_truncated"):
    """A reply ended without a stop reason; it does not become a message."""


# -- the server and its clients ----------------------------------------------------------------------------------------


class Unauthorized(AgentError, code="unauthorized", status=401):
    """The key is missing or not valid. The error does not reveal whether a key is unknown, expired or revoked."""

    def __init__(self) -> None:
        super().__init__("a valid key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'")


class Forbidden(AgentError, code="forbidden", status=403):
    """The key is valid but not allowed to do this, or the request comes from an origin that is not served."""


class NotFound(AgentError, code="not_found", status=404):
    """The agent, run, fact or address does not exist, or belongs to another tenant or user."""

    def __init__(self, what: str, id: str) -> None:
        self.what, self.id = what, id
        super().__init__(f"{what} not found: {id}")


class RequestTimeout(AgentError, code="request_timeout", status=408):
    """The body of a request did not arrive in time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the body did not arrive within {seconds:g} s: send it again")


class KeyInUse(AgentError, code="key_in_use", status=409):
    """The first request with this Idempotency-Key is still being answered."""

    def __init__(self, key: str) -> None:
        self.key, self.retry_after = key, 1.0
        super().__init__(f"the first request with Idempotency-Key {key!r} is still running: wait, then send it again")


class TooManyRequests(AgentError, code="too_many_requests", status=429):
    """A key exceeds its limit of concurrent requests, or its rate limit."""

    def __init__(self, what: str, *, retry_after: float) -> None:
        self.what, self.retry_after = what, retry_after
        super().__init__(f"{what}: try again in {max(1, math.ceil(retry_after))} s")


class QuotaExceeded(AgentError, code="quota_exceeded", status=429):
    """A tenant, or the user of a key, has or has used as much as its quota allows."""

    def __init__(
        self,
        quota: str,
        *,
        limit: float,
        used: float,
        user_id: str | None = None,
        resets_at: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.quota, self.limit, self.used, self.user_id = quota, limit, used, user_id
        self.resets_at, self.retry_after = resets_at, retry_after
        fix = "delete some" if resets_at is None else f"it begins again at {resets_at}"
        super().__init__(f"the quota {quota}={limit} is used up ({used}): {fix}, or ask the operator for a higher one")


class Unavailable(AgentError, code="unavailable", status=503):
    """The server accepts no more work, for example because it is shutting down."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class AgentExists(AgentError, code="agent_exists", status=409):
    """A new agent was requested under an id that exists."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"agent {id!r} exists already: PUT /agents/{id} replaces it, or choose another id")


class AgentFromCode(AgentError, code="agent_from_code", status=409):
    """An agent that the server's own code defines cannot be changed over HTTP."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"agent {id!r} comes from the server's code: change it there")


class ServerUnavailable(AgentError, code="server_unavailable", status=503):
    """A holdfast server cannot be reached, or does not answer."""


class ServerSilent(AgentError, code="server_silent", status=504):
    """The server accepted a request and has not answered yet."""


# -- the rest ----------------------------------------------------------------------------------------------------------


class AlreadyAdmitted(AgentError, code="already_admitted", status=409):
    """A message with this key was admitted before; no turn was begun."""

    def __init__(self) -> None:
        super().__init__("a message with this key was admitted before: read the run of that message")


class BadOutput(AgentError, code="bad_output", status=502):
    """A reply does not match the schema; the text says to the model what is wrong. The turn asks the model again."""


class MissingExtra(AgentError, code="missing_extra"):
    """An optional part of holdfast is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs an optional part: pip install 'holdfast[{extra}]'")


class ScriptExhausted(AgentError, code="script_exhausted"):
    """A scripted model was called more often than its script has replies."""

    def __init__(self, length: int) -> None:
        self.length = length
        super().__init__(f"the script has {length} replies and was asked for one more: add an item to script=[...]")


class UnsupportedSystem(AgentError, code="unsupported_system"):
    """The operating system cannot do it."""


# -- rebuilding --------------------------------------------------------------------------------------------------------


def from_code(code: str, text: str, details: Mapping[str, Any] | None = None) -> AgentError:
    """Return the error that another process raised, rebuilt from its code, text and facts. A fact that was too long
    to send is None; a code of a newer holdfast gives a plain AgentError with that code."""
    kind = _by_code().get(code, AgentError)
    error = kind.__new__(kind, text)
    if kind.code != code:
        error.code = code
    for name, value in (details or {}).items():
        if name.isidentifier() and not name.startswith("_") and name not in ("code", "status", "args", "details"):
            setattr(error, name, tuple(value) if isinstance(value, list) else value)
    for name in _fact_names(kind):
        if not hasattr(error, name):
            setattr(error, name, None)
    return error


def _by_code() -> dict[str, type[AgentError]]:
    kinds = [each for each in globals().values() if isinstance(each, type) and issubclass(each, AgentError)]
    return {kind.code: kind for kind in kinds}


def _fact_names(kind: type[AgentError]) -> tuple[str, ...]:
    """The parameters of the constructor: each is stored under its own name, but for the text itself."""
    code = getattr(kind.__init__, "__code__", None)
    if code is None:  # the constructor of Exception
        return ()
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return tuple(name for name in names if name != "message")


class _RemoteCause(Exception):
    """The text of a cause that cannot be sent to another process."""


def _restore(kind: type[AgentError], args: tuple[Any, ...], cause: BaseException | None) -> AgentError:
    error = kind.__new__(kind, *args)  # sets args, and so the text
    if cause is not None:
        error.__cause__ = cause
    return error


def _portable_cause(error: AgentError) -> BaseException | None:
    """The cause, as its text unless it is one of ours: the errors of drivers often cannot be unpickled."""
    cause = error.__cause__
    if cause is None or isinstance(cause, AgentError | _RemoteCause):
        return cause
    return _RemoteCause(f"{type(cause).__name__}: {cause}")


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 100 and all(_is_plain(each) and not isinstance(each, list) for each in value)
    if isinstance(value, str):
        return len(value) <= 500
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _describe_end(until: int | None) -> str:
    if until is None:
        return "for ever"
    try:
        # Rounded up: at the second that the text names, the time is over.
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=-(-until // 1_000_000))
    except OverflowError:  # later than the year 9999
        return "for ever"
    return f"until {date.isoformat().replace('+00:00', 'Z')}"
