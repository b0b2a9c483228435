"""From the JSON of a failure to the very error that the library would have raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import AgentError, ServerUnavailable, from_code

# Failures that may pass by themselves. Every other one is an answer: a provider's failure has status 502 as well, and
# the same request would get the same answer.
TRANSIENT_CODES = {
    "key_in_use",
    "queue_full",
    "server_unavailable",
    "store_busy",
    "store_unavailable",
    "too_many_requests",
    "unavailable",
}
TRANSIENT_STATUS = (
    429,
    502,
    503,
    504,
)  # of a proxy before the server, whose body is not our JSON


def error_from_json(problem: Mapping[str, Any], status: int) -> AgentError:
    """The error behind `{"error", "code", ...}`."""
    facts = dict(problem.get("details") or {})
    facts |= {name: problem[name] for name in ("field", "request_id", "retry_after") if name in problem}
    error = from_code(str(problem.get("code", "error")), str(problem.get("error", "")), facts)
    if type(error) is AgentError:  # of a newer server
        error.status = status
    return error


def error_from_status(status: int) -> AgentError:
    """An answer that is not from the server itself, but from something in between."""
    if status in TRANSIENT_STATUS:
        return ServerUnavailable(f"the server cannot be reached: something in between answered {status}")
    return AgentError(f"{status} without a holdfast error: is base_url the address of a holdfast server?")


def is_transient(error: AgentError) -> bool:
    """Whether the same request may succeed later."""
    return error.code in TRANSIENT_CODES
