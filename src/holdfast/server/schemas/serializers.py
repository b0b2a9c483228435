"""JSON of the library's values. `responses` describes the same JSON for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Depends, Path, Request
from pydantic_core import to_jsonable_python
from starlette.responses import Response as Answer

from holdfast.errors import Forbidden, InvalidArgument
from holdfast.log.events import Event
from holdfast.log.identifiers import check_name
from holdfast.log.messages import Message, Part, ToolCall, part_to_dict
from holdfast.log.ranges import clip_ranges
from holdfast.log.times import to_datetime
from holdfast.log.view import decode_view
from holdfast.models.base import Usage
from holdfast.stores.base import Info, Log, Store
from holdfast.turn.response import Response
from holdfast.turn.run_outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from holdfast.memory.service import Remembered
    from holdfast.server.app import Server
    from holdfast.server.auth import Caller
    from holdfast.session.facts import Fact
    from holdfast.session.pruning import Pruned
    from holdfast.session.session import Comparison, Session
    from holdfast.turn.replay import Replay
    from holdfast.turn.response import Pending
    from holdfast.turn.sent_context import Context


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return a JSON response. The value is not validated: the serializers built it."""
    return Answer(orjson.dumps(value), status, headers, "application/json")


async def get_server(request: Request) -> Any:  # noqa: ANN401 - typed below
    return request.app.state.server


if TYPE_CHECKING:
    Serving = Annotated[Server, Depends(get_server)]
else:  # FastAPI looks at the type, and the app imports the routes
    Serving = Annotated[Any, Depends(get_server)]

SessionId = Annotated[str, Path(description="The id of a session.", examples=["support-42"])]


def field_error(field: str, text: str) -> InvalidArgument:
    """Bad input that names its field."""
    error = InvalidArgument(text)
    error.field = field  # type: ignore[attr-defined]
    return error


def actor_of(caller: Caller, wanted_actor: str | None = None) -> str:
    """Return the actor for the log: the user of the key, else the named actor, else the key."""
    if wanted_actor is None:
        return caller.user or caller.key_id
    if caller.user is not None and wanted_actor != caller.user:
        raise Forbidden("a key of a user acts for that user: leave actor out")
    return check_name(wanted_actor, "actor")


# -- sessions ----------------------------------------------------------------------------------------------------------


def format_time(microseconds: int) -> str:
    """A time as it is sent. A page of sessions has a hundred of them, and many in the same second."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_format_second(seconds)}.{rest:06d}+00:00"


@lru_cache(maxsize=4096)
def _format_second(seconds: int) -> str:
    return to_datetime(seconds * 1_000_000).isoformat()[:19]


def session_summary_dict(info: Info) -> dict[str, Any]:
    """A session as a list shows it; no event is read."""
    log = info.log
    return {
        "id": log.id,
        "work_dir": info.work_dir,
        "title": info.title,
        "status": info.status,
        "metadata": info.metadata,
        "user_id": log.user_id,
        "app_name": log.app_name,
        "created_at": format_time(log.created_at),
        "updated_at": format_time(info.updated_at),
    }


def session_dict(session: Session) -> dict[str, Any]:
    store, log = session.store, session.log
    head = store.head(log)
    view = decode_view(head.view)
    return session_summary_dict(store.info(log)) | {
        "head": head.head,
        "length": store.count(log, clip_ranges(view.visible, head.head)),
        "system": store.value(log, "system"),
        "parent": _parent(session),
        "budget": store.value(log, "budget"),
        "retention": store.value(log, "retention"),
        "held": store.event(log, view.held).data.get("reason", "") if view.held else None,
        "queued": len(view.queue),
        "active_agent": view.active,
    }


def _parent(session: Session) -> str | None:
    """Return the id of the session it was forked from. Both have the same owner; if not, the id stays hidden."""
    number, found = session.log.parent, session.parent
    if number is None or found is None:
        return None
    return found if session.store.log_of_number(number).user_id == session.user_id else None


def comparison_dict(found: Comparison) -> dict[str, Any]:
    return {name: [message_dict(each) for each in getattr(found, name)] for name in ("common", "mine", "theirs")}


def replay_dict(found: Replay) -> dict[str, Any]:
    difference = found.first_difference
    return {
        "turns": found.turns,
        "first_difference": None if difference is None else to_jsonable_python(asdict(difference)),
        "session_id": None if found.session is None else found.session.id,
    }


# -- what a log holds --------------------------------------------------------------------------------------------------


def message_dict(found: Message) -> dict[str, Any]:
    return found.to_dict() | {"seq": found.seq}


def event_dict(found: Event) -> dict[str, Any]:
    return {
        "seq": found.seq,
        "at": format_time(found.at),
        "type": found.type,
        "v": found.v,
        "run": found.run,
        "branch": found.branch,
        "author": found.author,
        "actor": found.actor,
        "data": found.data,
        "erased": found.erased,
        "verified": found.verified,
        "hash": found.hash.hex(),
    }


def fact_dict(found: Fact) -> dict[str, Any]:
    return asdict(found)


def memory_dict(found: Remembered) -> dict[str, Any]:
    times = {name: getattr(found, name) for name in ("expires_at", "created_at", "updated_at")}
    return asdict(found) | {name: None if at is None else at.isoformat() for name, at in times.items()}


def pending_dict(found: Pending) -> dict[str, Any]:
    return asdict(found)


def part_dict(found: Part) -> dict[str, Any]:
    return part_to_dict(found)


def tool_call_dict(found: ToolCall) -> dict[str, Any]:
    return {"id": found.id, "name": found.name, "arguments": found.arguments}


# -- reports -----------------------------------------------------------------------------------------------------------


def prune_report_dict(report: Pruned) -> dict[str, Any]:
    return {
        "strategy": report.strategy if isinstance(report.strategy, str) else str(report.strategy),
        "dry_run": report.dry_run,
        "seq": report.seq,
        "removed": list(report.removed),
        "kept": list(report.kept),
        "reasons": {str(seq): why for seq, why in report.reasons.items()},
        "kept_because": {str(seq): why for seq, why in report.kept_because.items()},
        "summary": report.summary,
        "freed_tokens": report.freed_tokens,
    }


def context_dict(found: Context) -> dict[str, Any]:
    parts = [
        {
            "kind": part.kind,
            "text": part.text,
            "tokens": part.tokens,
            "seq": part.seq,
            "message": None if part.message is None else message_dict(part.message),
        }
        for part in found.parts
    ]
    rest = ("tokens", "estimated", "reported", "window", "model", "left_out")
    return {"parts": parts} | {name: getattr(found, name) for name in rest}


def answer_dict(found: Response) -> dict[str, Any]:
    """What a turn gives back. `output` may be an instance of a class of the agent's own; it is null where no schema was
    asked for, since the text is there already."""
    is_text = isinstance(found.output, str) and found.output == found.text  # JSON has quotes: no parsed text is equal
    return {
        "response": found.text,
        "tool_calls": [tool_call_dict(call) for call in found.tool_calls],
        "usage": found.usage.to_dict(),
        "steps": found.steps,
        "run_id": found.run_id,
        "status": found.status,
        "pending": [pending_dict(call) for call in found.pending],
        "output": None if is_text else to_jsonable_python(found.output),
        "stop_reason": found.stop_reason,
        "messages": [message_dict(each) for each in found.messages],
    }


NOTHING_TO_RESUME: dict[str, Any] = answer_dict(Response()) | {"response": None, "status": "idle"}


# -- runs --------------------------------------------------------------------------------------------------------------


def usage_dict(found: Mapping[str, int]) -> dict[str, int]:
    return {name: found.get(name, 0) for name in Usage.__dataclass_fields__}


def tool_result_dict(found: Event) -> dict[str, Any]:
    """A result as a stream tells it; one that was erased says so."""
    parts = found.data.get("message", {}).get("parts") or [{}]
    return {
        "call_id": found.data.get("call_id", ""),
        "name": found.data.get("name", ""),
        "content": parts[0].get("content", "[erased]"),
        "is_error": bool(parts[0].get("is_error")),
    }


def run_dict(found: Outcome) -> dict[str, Any]:
    return {
        "run_id": found.run_id,
        "status": found.status,
        "agent_id": found.agent,
        "created_at": format_time(found.created_at),
        "started_at": None if found.started_at is None else format_time(found.started_at),
        "ended_at": None if found.ended_at is None else format_time(found.ended_at),
        "error": None if found.error is None else {name: found.error.get(name, "") for name in ("code", "text")},
        "response": None if found.response is None else answer_dict(found.response),
    }


def run_answer(store: Store, log: Log, run: str) -> dict[str, Any]:
    """What a run that is over, or waits, gave back."""
    outcome = outcome_of(store, log, run)
    found = None if outcome is None else outcome.response
    return answer_dict(found or Response(run_id=run))
