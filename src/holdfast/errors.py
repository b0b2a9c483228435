"""Every exception of holdfast.

Each has a stable `code` and an HTTP `status`: clients match on the code, never on the text. Each text says what to do
next, and each error carries its facts as attributes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any


class AgentError(Exception):
    """The root of everything holdfast raises."""

    code, status = "error", 500

    @property
    def details(self) -> dict[str, Any]:
        """Its facts, as far as JSON has them: what a client on another machine is told besides the text."""
        found = {name: list(value) if type(value) is tuple else value for name, value in vars(self).items()}
        return {name: value for name, value in found.items() if name not in _CONTENT and _is_plain(value)}


class InvalidArgument(AgentError, ValueError):
    """What was asked for makes no sense; nothing was stored."""

    code, status = "invalid_argument", 400


class InvalidId(InvalidArgument):
    """An id that is empty, too long, or has characters that do not print."""

    code = "invalid_id"


class NotJSON(InvalidArgument):
    """A value that JSON cannot hold, or not without changing it."""

    code = "not_json"


class LimitExceeded(InvalidArgument):
    """Something is larger than its limit."""

    code, status = "limit_exceeded", 413

    def __init__(self, what: str, *, size: int, limit: int, hint: str) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} has {size} bytes, the limit is {limit}: {hint}")


class BodyTooLarge(InvalidArgument):
    """The body of a request is larger than the server reads."""

    code, status = "body_too_large", 413

    def __init__(self, limit: int, unit: str = "bytes") -> None:
        self.limit, self.unit = limit, unit
        super().__init__(f"the body has more than {limit} {unit}: send less, or in several requests")


class UnsupportedMediaType(InvalidArgument):
    """A request with a body that is not declared as JSON."""

    code, status = "unsupported_media_type", 415

    def __init__(self) -> None:
        super().__init__("only JSON is read here: send Content-Type: application/json")


class MissingUser(InvalidArgument):
    """User or app scope was asked for in a session that has no user or app."""

    code = "missing_user"


class MissingExtra(AgentError):
    """An optional part of holdfast is not installed."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs an optional part: pip install 'holdfast[{extra}]'")


class SessionError(AgentError):
    """Something about one session."""

    code, status = "session_error", 409


class SessionNotFound(SessionError):
    """There is no such session, or it is somebody else's."""

    code, status = "session_not_found", 404

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session not found: {session_id}")


class SessionExists(SessionError):
    """A new session was to be made under an id that is taken."""

    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} exists already: open it, or choose another id")


class SessionMismatch(SessionError):
    """A session was opened for another user or app than it belongs to."""

    code = "session_mismatch"

    def __init__(self, session_id: str, field: str) -> None:
        self.session_id, self.field = session_id, field
        super().__init__(
            f"session {session_id!r} belongs to another {field}: open it without {field}=, or choose another id"
        )


class Conflict(SessionError):
    """Somebody else appended first."""

    code = "conflict"

    def __init__(self, session_id: str, *, expected: int, head: int) -> None:
        self.session_id, self.expected, self.head = session_id, expected, head
        super().__init__(f"session {session_id!r} is at {head}, not at {expected}: reload it and try again")


class ViewChanged(SessionError):
    """The messages were cleared, rewound or pruned by somebody else since this change of them was planned."""

    code = "view_changed"

    def __init__(self) -> None:
        super().__init__("the messages were cleared, rewound or pruned meanwhile: look again, and try again")


class StaleEpoch(SessionError):
    """The writer's lease was taken over; what it does from now on is refused."""

    code = "stale_epoch"

    def __init__(self, session_id: str, *, epoch: int, current: int) -> None:
        self.session_id, self.epoch, self.current = session_id, epoch, current
        super().__init__(
            f"session {session_id!r} is in epoch {current}, this writer holds {epoch}: another process took over; stop"
        )


class SessionBusy(SessionError):
    """Another writer holds the lease."""

    code = "session_busy"

    def __init__(self, session_id: str, *, retry_after: float) -> None:
        self.session_id, self.retry_after = session_id, retry_after
        super().__init__(f"session {session_id!r} is busy for up to {retry_after:.1f} s more: wait, or try again")


class KeyReused(SessionError):
    """The same idempotency key came with other content."""

    code, status = "key_reused", 422

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id, self.key = session_id, key
        super().__init__(f"key {key!r} was used in {session_id!r} with other content: use a new key")


class LifecycleError(SessionError):
    """A move that the session's state does not allow."""

    code = "lifecycle"

    def __init__(self, move: str, *, status: str, legal: Iterable[str]) -> None:
        self.move, self.session_status, self.legal = move, status, tuple(legal)
        moves = ", ".join(self.legal) or "none"
        super().__init__(f"cannot {move} a session that is {status}; legal moves now: {moves}")


class TurnOpen(SessionError):
    """The session has a turn that is not finished."""

    code = "turn_open"

    def __init__(self, what: str) -> None:
        super().__init__(f"cannot {what} while a turn is unfinished: let it finish, or resume it first")


class QueueFull(SessionError):
    """Too many messages wait for their turn in one session."""

    code, status = "queue_full", 429

    def __init__(self, limit: int) -> None:
        self.limit, self.retry_after = limit, 1.0
        super().__init__(f"{limit} messages wait for their turn in this session already: wait, or cancel some of them")


class NothingPending(SessionError):
    """A decision about a call that waits for none."""

    code = "nothing_pending"

    def __init__(self, call_id: str, pending: Iterable[str]) -> None:
        self.call_id, self.pending = call_id, tuple(pending)
        waiting = ", ".join(self.pending) or "none"
        super().__init__(f"call {call_id!r} does not wait for a decision; waiting now: {waiting}")


class ApprovalPending(SessionError):
    """The session waits for a person's decision."""

    code = "approval_pending"

    def __init__(self, session_id: str, calls: Iterable[str]) -> None:
        self.session_id, self.calls = session_id, tuple(calls)
        super().__init__(
            f"session {session_id!r} waits for a decision on {', '.join(self.calls)}: "
            "approve(call_id) or deny(call_id), then resume()"
        )


class ImmutableSession(SessionError):
    """An immutable session cannot be changed or removed before its time."""

    code = "immutable"

    def __init__(self, what: str, *, until: int | None, ttl_days: float | None = None) -> None:
        """`until` is in microseconds, None for ever; `ttl_days` says it where the last activity is not known."""
        self.what, self.until, self.ttl_days = what, until, ttl_days
        if until is None and ttl_days is not None:
            end = f"until {ttl_days} days after its last activity"
        else:
            end = _end(until)
        super().__init__(f"cannot {what} an immutable session: it is kept unchanged {end}")


class SessionHeld(SessionError):
    """A session under a legal hold cannot be removed or redacted."""

    code = "held"

    def __init__(self, what: str, *, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"cannot {what} a session under a legal hold ({reason}): release() ends the hold")


class TurnFailed(AgentError):
    """A turn ended without an answer; the log says why, and the messages are as they were."""

    code, status = "turn_failed", 500


class MaxStepsExceeded(TurnFailed):
    """The model went on calling tools for more steps than it is given."""

    code = "max_steps_exceeded"

    def __init__(self, steps: int) -> None:
        self.steps = steps
        super().__init__(f"no answer after {steps} model calls: raise max_steps=, or look at what the tools return")


class BudgetExceeded(TurnFailed):
    """The session has used what it was given."""

    code, status = "budget_exceeded", 429

    def __init__(self, what: str, *, used: float, limit: float) -> None:
        self.what, self.used, self.limit = what, used, limit
        super().__init__(f"the budget of {limit:g} {what} is used up ({used:g}): raise it, or start a new session")


class SchemaValidationError(TurnFailed):
    """The model did not give output of the asked shape, although it was asked again."""

    code, status = "schema_validation", 502

    def __init__(self, problem: str, *, text: str, tries: int) -> None:
        self.problem, self.text, self.tries = problem, text, tries
        super().__init__(f"the output is not of the asked shape after {tries} tries: {problem}")


class TurnParked(TurnFailed):
    """A turn that ended its process again and again; it is not tried any more."""

    code, status = "turn_parked", 409

    def __init__(self, session_id: str, attempts: int) -> None:
        self.session_id, self.attempts = session_id, attempts
        super().__init__(
            f"the unfinished turn of session {session_id!r} ended its process {attempts} times and is parked: "
            "run() with a new message settles it"
        )


class TurnCancelled(TurnFailed):
    """The turn was cancelled before it had an answer."""

    code, status = "turn_cancelled", 409

    def __init__(self) -> None:
        super().__init__("the turn was cancelled")


class RoutingError(TurnFailed):
    """Nobody could answer: every agent that was asked failed, or a model chose one that is not there. `causes` says
    why, one by one."""

    code = "routing_failed"

    def __init__(self, what: str, causes: Iterable[str]) -> None:
        self.causes = tuple(causes)
        reasons = "; ".join(self.causes)
        super().__init__(f"{what}: {reasons}" if reasons else what)


class HandoffLoop(TurnFailed):
    """Agents keep handing a conversation to each other, and none of them answers."""

    code = "handoff_loop"

    def __init__(self, giver: str, taker: str) -> None:
        self.giver, self.taker = giver, taker
        super().__init__(
            f"{giver} hands the conversation to {taker} again and again, and nobody answers: "
            "say in their instructions who answers what"
        )


class MissingState(InvalidArgument):
    """Instructions name a state value that is not there."""

    code = "missing_state"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the instructions need state {name!r}, which is not set: set_state({name!r}, ...), or write {{{{}}}}"
        )


class SearchUnavailable(SessionError):
    """An encrypted session cannot be searched: an index of its words would tell what it says."""

    code = "search_unavailable"

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} is encrypted, so there is no index of its words: read its history")


class Unauthorized(AgentError):
    """No key, or none that is valid: whether it is unknown, expired or revoked is not told."""

    code, status = "unauthorized", 401

    def __init__(self) -> None:
        super().__init__("a valid key is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'")


class Forbidden(AgentError):
    """The key is valid, and may not do this; or the request comes from a place that is not served."""

    code, status = "forbidden", 403


class NotFound(AgentError):
    """There is no such agent, run, fact or address, or it is somebody else's."""

    code, status = "not_found", 404

    def __init__(self, what: str, id: str) -> None:
        self.what, self.id = what, id
        super().__init__(f"{what} not found: {id}")


class RequestTimeout(AgentError):
    """The body of a request did not arrive in time."""

    code, status = "request_timeout", 408

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the body did not arrive within {seconds:g} s: send it again")


class KeyInUse(AgentError):
    """The first request with this Idempotency-Key is still being answered."""

    code, status = "key_in_use", 409

    def __init__(self, key: str) -> None:
        self.key, self.retry_after = key, 1.0
        super().__init__(f"the first request with Idempotency-Key {key!r} is still running: wait, then send it again")


class TooManyRequests(AgentError):
    """A key does more at once, or more often, than it is given."""

    code, status = "too_many_requests", 429

    def __init__(self, what: str, *, retry_after: float) -> None:
        self.what, self.retry_after = what, retry_after
        super().__init__(f"{what}: try again in {max(1, math.ceil(retry_after))} s")


class Unavailable(AgentError):
    """The server takes no more work, for example because it is being stopped."""

    code, status = "unavailable", 503

    def __init__(self, text: str, *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(text)


class StoreError(AgentError):
    """The place where logs live has a problem."""

    code, status = "store_error", 503


class StoreBusy(StoreError):
    """The database stayed locked for longer than the store waits."""

    code = "store_busy"


class StoreFull(StoreError):
    """No space is left; the write was rolled back and reading goes on."""

    code, status = "store_full", 507


class StoreReadOnly(StoreError):
    """The file, directory or server does not allow writing."""

    code = "store_read_only"


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    code = "store_unavailable"


class StorePoisoned(StoreError):
    """A flush failed or the file was replaced; what is on disk is unknown until the store is opened anew."""

    code = "store_poisoned"


class StoreClosed(StoreError):
    """The store was closed."""

    code = "store_closed"


class UnsafeSQLite(StoreError):
    """The SQLite library has a known bug that can corrupt a shared file."""

    code = "unsafe_sqlite"


class SchemaTooNew(StoreError):
    """The database, document or event was written by a newer holdfast."""

    code = "schema_too_new"


class CorruptLog(StoreError):
    """A record that cannot be read, or that is not what its hash says."""

    code, status = "corrupt_log", 500


class WrongKey(StoreError):
    """The store is encrypted with another master key, or the data was altered."""

    code = "wrong_key"


class KeyNeeded(StoreError):
    """The session is encrypted, and the store was opened without its key."""

    code = "key_needed"


class ProviderError(AgentError):
    """A model provider failed, or would not take the request. `retryable`: the same request may succeed later."""

    code, status = "provider_error", 502
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


class AuthenticationFailed(ProviderError):
    """The API key is missing, wrong, or may not do this."""

    code = "authentication_failed"


class RequestRejected(ProviderError):
    """The provider does not take this request: an unknown model, an option it does not know."""

    code = "request_rejected"


class ContextTooLong(ProviderError):
    """More was sent than the model can read."""

    code = "context_too_long"


class RateLimited(ProviderError):
    """Too many requests, or no quota left; `retry_after` says for how long, where the provider does."""

    code, retryable = "rate_limited", True


class ProviderTimeout(ProviderError):
    """The provider was silent, or busy with one reply, for longer than we wait."""

    code, retryable = "provider_timeout", True


class ProviderUnavailable(ProviderError):
    """The provider cannot be reached, is overloaded, or failed on its side."""

    code, retryable = "provider_unavailable", True


class BadResponse(ProviderError):
    """What the provider sent is not what its API promises; nothing of it was kept."""

    code, retryable = "bad_response", True


class StreamTruncated(BadResponse):
    """A reply that broke off: it has no stop reason, so it is not a reply."""

    code = "stream_truncated"


class ServerUnavailable(AgentError):
    """A holdfast server cannot be reached, or does not answer."""

    code, status = "server_unavailable", 503


class ScriptExhausted(AgentError):
    """A scripted model was asked more often than its script has replies."""

    code = "script_exhausted"

    def __init__(self, length: int) -> None:
        self.length = length
        super().__init__(f"the script has {length} replies and was asked for one more: add an item to script=[...]")


def from_code(code: str, text: str, details: Mapping[str, Any] | None = None) -> AgentError:
    """The error with this code as somebody else raised it: its class, text and facts."""
    for found in list(globals().values()):
        if isinstance(found, type) and issubclass(found, AgentError) and found.code == code:
            error = found.__new__(found)
            Exception.__init__(error, text)
            break
    else:
        error = AgentError(text)
        error.code = code  # of a newer holdfast
    for name, value in (details or {}).items():
        if name.isidentifier() and not name.startswith("_") and name not in ("code", "status", "args", "details"):
            setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


_CONTENT = ("text", "problem")  # of a model's reply: it belongs to the session, not to its errors


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 100 and all(_is_plain(each) and not isinstance(each, list) for each in value)
    if isinstance(value, str):
        return len(value) <= 500
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))


def _end(until: int | None) -> str:
    if until is None:
        return "for ever"
    try:
        # Rounded up: at the second that is named, its time is really over.
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=-(-until // 1_000_000))
    except OverflowError:  # later than the year 9999
        return "for ever"
    return f"until {date.isoformat().replace('+00:00', 'Z')}"
