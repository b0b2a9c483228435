"""What a session of a server is, and how it is kept: its fields, lifecycle, pruning, holds, redaction, erasure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.client.base import Remote, drop_none
from holdfast.client.parsers import Pruned, parse_context, parse_pruned, parse_usage
from holdfast.client.requests import Flow, get, post, put
from holdfast.client.runs import wait_for_run
from holdfast.errors import InvalidArgument
from holdfast.policy.budget import Budget
from holdfast.policy.retention import Retention
from holdfast.session.fields import UNCHANGED
from holdfast.stores.base import MAX_SEQ

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.models.base import Usage
    from holdfast.session.compliance import Erased, Redacted
    from holdfast.turn.sent_context import Context


# -- what it is --------------------------------------------------------------------------------------------------------


def about(self: Remote) -> Flow[dict[str, Any]]:
    """Everything the server tells of the session itself, in one answer."""
    found: dict[str, Any] = yield get(self._path())
    return found


def status(self: Remote) -> Flow[str]:
    """open, active, waiting, paused, closed or archived."""
    return str((yield from about(self))["status"])


def head(self: Remote) -> Flow[int]:
    """The number of the last event."""
    return int((yield from about(self))["head"])


def title(self: Remote) -> Flow[str | None]:
    found: str | None = (yield from about(self))["title"]
    return found


def active_agent(self: Remote) -> Flow[str | None]:
    """Who has the conversation."""
    found: str | None = (yield from about(self))["active_agent"]
    return found


def metadata(self: Remote) -> Flow[dict[str, Any]]:
    found: dict[str, Any] = (yield from about(self))["metadata"]
    return found


def system(self: Remote) -> Flow[str | None]:
    found: str | None = (yield from about(self))["system"]
    return found


def work_dir(self: Remote) -> Flow[Path | None]:
    """A directory of the server's machine."""
    found: str | None = (yield from about(self))["work_dir"]
    return None if found is None else Path(found)


def updated_at(self: Remote) -> Flow[datetime]:
    return datetime.fromisoformat((yield from about(self))["updated_at"])


def held(self: Remote) -> Flow[str | None]:
    """Why the session is under a legal hold; None if it is not."""
    found: str | None = (yield from about(self))["held"]
    return found


def retention(self: Remote) -> Flow[dict[str, Any] | None]:
    """How long the session is kept and in what form, as it was given; None if nothing was."""
    found: dict[str, Any] | None = (yield from about(self))["retention"]
    return found


def usage(self: Remote) -> Flow[Usage]:
    """Tokens of every model call of this session."""
    return parse_usage((yield get(self._path("usage")))["usage"])


def cost(self: Remote) -> Flow[float]:
    """What the usage costs, by the prices of the session's budget; 0 without prices."""
    return float((yield get(self._path("usage")))["cost"])


def budget(self: Remote) -> Flow[Budget | None]:
    found = (yield get(self._path("usage")))["budget"]
    return None if found is None else Budget.of(found)


def change(
    self: Remote,
    *,
    title: str | None = UNCHANGED,
    metadata: Mapping[str, Any] = UNCHANGED,
    work_dir: str | Path | None = UNCHANGED,
    system: str | None = UNCHANGED,
    budget: Budget | Mapping[str, Any] | None = UNCHANGED,
    retention: Retention | Mapping[str, Any] = UNCHANGED,
    active_agent: str | None = UNCHANGED,
) -> Flow[None]:
    """Change what is given, keep the rest. None takes a field away."""
    asked = encode_fields(
        title=title,
        metadata=metadata,
        work_dir=work_dir,
        system=system,
        budget=budget,
        retention=retention,
        active_agent=active_agent,
    )
    yield put(self._path(), asked)


def encode_fields(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - what a session takes
    """The fields of a session as JSON, those that are meant."""
    found = {name: value for name, value in fields.items() if value is not UNCHANGED}
    if "metadata" in found:
        if not isinstance(found["metadata"], Mapping):
            raise InvalidArgument(f"metadata is a dict, not {type(found['metadata']).__name__}")
        found["metadata"] = dict(found["metadata"])
    if found.get("work_dir") is not None:
        found["work_dir"] = str(found["work_dir"])
    if found.get("budget") is not None:
        found["budget"] = Budget.of(found["budget"]).to_dict()
    if "retention" in found:
        found["retention"] = Retention.of(found["retention"]).to_dict()
    return found


# -- lifecycle ---------------------------------------------------------------------------------------------------------


def pause(self: Remote, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """Run no turn until it is resumed; one that is running stops at its next step."""
    yield post(self._path("pause"), drop_none(reason=reason, actor=actor))


def close(self: Remote, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """End the session and drop temp; everything stays readable, and `reopen` brings it back."""
    yield post(self._path("close"), drop_none(reason=reason, actor=actor))
    self._temp.clear()


def archive(self: Remote, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """Put the session away; `reopen` brings it back."""
    yield post(self._path("archive"), drop_none(reason=reason, actor=actor))


def reopen(self: Remote, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """Bring a closed or archived session back."""
    yield post(self._path("reopen"), drop_none(reason=reason, actor=actor))


# -- what a model sees -------------------------------------------------------------------------------------------------


def prune(
    self: Remote,
    strategy: str = "sliding_window",
    *,
    window_size: int | None = None,
    threshold: int | None = None,
    max_tokens: int | None = None,
    dry_run: bool = False,
    agent: str | Agent | None = None,
    actor: str | None = None,
) -> Flow[Pruned]:
    """Take old messages out of the view; the log keeps them, and `undo_prune` brings them back. A strategy of your own
    cannot travel to a server: use one of the names."""
    if not isinstance(strategy, str):
        raise InvalidArgument("a strategy of your own cannot travel to a server: use one of the names")
    limits = drop_none(window_size=window_size, threshold=threshold, max_tokens=max_tokens)
    body = drop_none(strategy=strategy, dry_run=dry_run, actor=actor, **limits)
    if agent is not None or strategy in ("summarize_old", "keep_important", "token_budget"):  # the others need no model
        body |= drop_none(agent_id=self._agent_id(agent))
    return parse_pruned((yield from wait_for_run(post(self._path("prune"), body, waits=True))))


def undo_prune(self: Remote, *, actor: str | None = None) -> Flow[bool]:
    """Bring back what the newest prune or compaction took out of the view; False if there is none to undo."""
    return bool((yield post(self._path("undo_prune"), drop_none(actor=actor)))["undone"])


def context(self: Remote, call: int | None = None, *, agent: str | Agent | None = None) -> Flow[Context]:
    """What the model would be sent now, part by part, with token counts; with `call=`, the number of a `model.called`
    event, what it was sent then."""
    if call is not None and (isinstance(call, bool) or not isinstance(call, int) or not 1 <= call <= MAX_SEQ):
        raise InvalidArgument(f"call={call!r}: use the number of a model.called event; events(types=...) lists them")
    asked = self._agent_id(agent) if call is None else None
    return parse_context((yield get(self._path("context"), call=call, agent_id=asked)))


# -- what must stay, and what must go ----------------------------------------------------------------------------------


def hold(self: Remote, reason: str, *, actor: str | None = None) -> Flow[None]:
    """Keep everything as it is until `release`, also after its retention has ended."""
    yield post(self._path("hold"), drop_none(reason=reason, actor=actor))


def release(self: Remote, reason: str | None = None, *, actor: str | None = None) -> Flow[None]:
    """End a hold; or let a session whose turn is parked, failed or waiting go when its time is up."""
    yield post(self._path("release"), drop_none(reason=reason, actor=actor))


def redact(self: Remote, seq: int, *, reason: str, actor: str | None = None) -> Flow[Redacted]:
    """Remove the payload of one event, and of every event that repeats its text; their hashes stay."""
    from holdfast.session.compliance import Redacted

    found = yield post(self._path("redact"), drop_none(seq=seq, reason=reason, actor=actor))
    return Redacted(seq=found["seq"], also=list(found["also"]))


def erase(self: Remote, *, reason: str, actor: str | None = None) -> Flow[Erased]:
    """Remove every payload of this session for good, immutable or not. The hashes stay. A hold forbids it."""
    from holdfast.session.compliance import Erased

    found = yield post(self._path("erase"), drop_none(reason=reason, actor=actor))
    return Erased(
        sessions=list(found["sessions"]),
        events=found["events"],
        user_state=found.get("user_state", False),
        memories=found.get("memories", False),
    )
