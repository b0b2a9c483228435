"""From the JSON of a failure to the very error that the library would have raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import AgentError, ServerUnavailable, from_code

# What may go away by itself. Everything else is an answer: a provider's failure is told with 502 as well, and asking
# again would only be told the same.
PASSING = {
    "key_in_use",
    "queue_full",
    "server_unavailable",
    "store_busy",
    "store_unavailable",
    "too_many_requests",
    "unavailable",
}
PASSING_STATUS = (429, 502, 503, 504)  # of somebody between the server and us, who does not speak our JSON


class Silence(AgentError):
    """The server took a request and has not answered yet."""

    code, status = "server_silent", 504


def fault_of(problem: Mapping[str, Any], status: int) -> AgentError:
    """The error behind `{"error", "code", ...}`."""
    facts = dict(problem.get("details") or {})
    facts |= {name: problem[name] for name in ("field", "request_id", "retry_after") if name in problem}
    error = from_code(str(problem.get("code", "error")), str(problem.get("error", "")), facts)
    if type(error) is AgentError:  # of a newer server
        error.status = status
    return error


def foreign_fault(status: int) -> AgentError:
    """An answer that is not from the server itself, but from something in between."""
    if status in PASSING_STATUS:
        return ServerUnavailable(f"the server cannot be reached: something in between answered {status}")
    return AgentError(f"{status} without a holdfast error: is base_url the address of a holdfast server?")


def is_passing(error: AgentError) -> bool:
    """Whether the same request may succeed later."""
    return error.code in PASSING
