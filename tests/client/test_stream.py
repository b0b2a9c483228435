"""Frames as events: a reader gets each event once, also if a server repeats frames after a broken connection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.requests import post
from holdfast.client.stream import LogTail, RunTail
from holdfast.errors import BudgetExceeded, TurnFailed
from holdfast.log.messages import Text, ToolCall
from holdfast.models.base import TextDelta, Usage
from holdfast.turn.stream_events import ContentBlockStart, MessageStart, ToolReturned, TurnDone

USAGE = {"input_tokens": 3, "output_tokens": 2}
ANSWER = {"response": "Hello", "tool_calls": [], "usage": USAGE, "steps": 1, "run_id": "r", "status": "finished"}


def make_run_tail() -> RunTail:
    return RunTail(post("/sessions/s/message/stream", {"message": "hi"}), lambda response: response)


def read_frame(tail: RunTail, name: str, id: str = "", /, **data: Any) -> list[Any]:
    return list(tail.read_frame(name, id, json.dumps({"type": name, **data})))


def read_message_start(tail: RunTail, step: int = 1, id: str = "") -> list[Any]:
    return read_frame(tail, "message_start", id, run_id="r", step=step)


def read_block(tail: RunTail, text: str, *, stop: bool = True) -> list[Any]:
    """Read a block in one delta, as a server sends a reply whose deltas it does not have."""
    found = read_frame(tail, "content_block_start", index=0, content_block={"type": "text", "text": ""})
    found += read_frame(tail, "text_delta", text=text, index=0)
    return found + (read_frame(tail, "content_block_stop", index=0) if stop else [])


def join_texts(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_each_promised_name_is_the_event_of_the_library() -> None:
    tail = make_run_tail()
    assert read_message_start(tail, id="5") == [MessageStart(run_id="r", step=1)]
    assert read_frame(tail, "content_block_start", index=0, content_block={"type": "text", "text": ""}) == [
        ContentBlockStart(index=0, content_block=Text(""))
    ]
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": {}}
    (begun,) = read_frame(tail, "content_block_start", index=1, content_block=call)
    assert begun.content_block == ToolCall(id="c", name="f")
    assert read_frame(tail, "ping") == []
    assert read_frame(tail, "a_name_of_a_newer_server", x=1) == []
    assert read_frame(tail, "tool_result", call_id="c", name="f", content="ok", is_error=False) == [
        ToolReturned(call_id="c", name="f", content="ok", is_error=False)
    ]
    (done,) = read_frame(tail, "done", usage=USAGE, steps=1, response=ANSWER)
    assert isinstance(done, TurnDone)
    assert (done.response.text, done.usage, tail.is_over) == ("Hello", Usage(input_tokens=3, output_tokens=2), True)


def test_a_reconnection_goes_on_behind_the_last_frame_under_the_same_key() -> None:
    tail = make_run_tail()
    first = tail.call()
    read_message_start(tail, id="5")
    read_frame(tail, "text_delta", "5.1", text="He", index=0)
    read_frame(tail, "ping")
    again = tail.call()
    assert (first.last_event, again.last_event) == (None, "5.1")
    assert first.key == again.key is not None


def test_an_error_is_the_librarys_error_and_the_end() -> None:
    tail = make_run_tail()
    with pytest.raises(BudgetExceeded, match="used up"):
        read_frame(tail, "error", error="the budget is used up", code="budget_exceeded")
    assert tail.is_over
    with pytest.raises(TurnFailed):
        read_frame(make_run_tail(), "error", error="no", code="turn_failed")


@given(text=st.text(min_size=1, max_size=12), cut=st.integers(0, 12), pieces=st.lists(st.integers(1, 4), max_size=6))
def test_a_repeated_step_is_read_once(text: str, cut: int, pieces: list[int]) -> None:
    tail = make_run_tail()
    told = read_message_start(tail)
    shown = text[:cut]
    if shown:
        told += read_block(tail, shown, stop=False)
    told += read_message_start(tail)  # after a reconnection
    told += read_frame(tail, "content_block_start", index=0, content_block={"type": "text", "text": ""})
    at = 0
    for size in [*pieces, len(text)]:
        if text[at : at + size]:
            told += read_frame(tail, "text_delta", text=text[at : at + size], index=0)
        at += size
    told += read_frame(tail, "content_block_stop", index=0)
    told += read_frame(tail, "message_stop")
    assert join_texts(told) == text
    kinds = [event.type for event in told if event.type != "text_delta"]
    starts = ["message_start"] if shown else ["message_start", "message_start"]
    assert kinds == [*starts, "content_block_start", "content_block_stop", "message_stop"]


def test_another_reply_is_read_from_its_start() -> None:
    tail = make_run_tail()
    read_message_start(tail)
    read_block(tail, "Once upon", stop=False)
    told = read_message_start(tail) + read_block(tail, "Once more", stop=True)
    assert [event.type for event in told] == [
        "message_start", "content_block_start", "text_delta", "content_block_stop",
    ]  # fmt: skip
    assert join_texts(told) == "Once more"


def test_the_next_step_is_no_repetition() -> None:
    tail = make_run_tail()
    read_message_start(tail)
    read_block(tail, "one")
    read_frame(tail, "message_stop")
    assert join_texts(read_message_start(tail, step=2) + read_block(tail, "one")) == "one"


def test_a_log_is_followed_without_gap_or_repeat() -> None:
    tail = LogTail("/sessions/s/events", 3, None)
    event = {"at": "2024-01-01T00:00:00+00:00", "type": "state.set", "data": {}, "hash": "00"}

    def read_event(seq: int) -> list[int]:
        return [each.seq for each in tail.read_frame("state.set", str(seq), json.dumps(event | {"seq": seq}))]

    assert [read_event(4), read_event(4), read_event(3), read_event(5)] == [[4], [], [], [5]]
    assert list(tail.read_frame("text_delta", "5.1", '{"type":"text_delta","text":"x","index":0}')) == []
    assert tail.call().query["after"] == 5
