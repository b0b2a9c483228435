"""What both decoders promise for any bytes in any pieces."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.errors import BadResponse, ProviderError, ProviderUnavailable, RateLimited, StreamTruncated
from holdfast.log.messages import Message
from holdfast.models import Done, ModelEvent, ModelRequest, anthropic, openai
from holdfast.models.endpoint import Decoder, Endpoint
from holdfast.models.sse import MalformedLine, SSEParser
from tests.models.frames import Reply, encode_frame

CODECS: dict[str, Any] = {"openai": openai, "anthropic": anthropic}
FULL = Reply(thinking="Hm, ünd?", calls=[("a", "look", '{"what": "té 🙂"}'), ("b", "count", "{}")])
REQUEST = ModelRequest(model="m", messages=[Message.user("hi")])


def make_decoder(wire: str, limit: int = 1 << 20) -> Any:
    return CODECS[wire].decoder(REQUEST, Endpoint(provider=wire, base_url="http://x", api_key="sk-key"), limit)


def decode_events(wire: str, *chunks: bytes) -> list[ModelEvent]:
    found: Decoder = make_decoder(wire)
    return [event for chunk in chunks for event in found.feed(chunk)] + found.finish()


def test_the_events_of_a_reply(wire: str) -> None:
    events = decode_events(wire, FULL.body(wire))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["block_start", "thinking_delta"]
    assert kinds[-1] == "done"
    assert kinds.count("done") == 1
    assert kinds.count("block_start") == kinds.count("block_stop") == 4
    assert "".join(event.text for event in events if event.type == "text_delta") == FULL.text
    assert "".join(event.text for event in events if event.type == "thinking_delta") == FULL.thinking
    assert "".join(e.input_json for e in events if e.type == "input_json_delta") == '{"what": "té 🙂"}{}'
    indexes = [event.index for event in events if not isinstance(event, Done)]
    assert set(indexes) == {0, 1, 2, 3}


def test_every_cut_gives_the_same_events(wire: str) -> None:
    body = Reply(text="né 🙂", calls=[("a", "f", '{"x":1}')]).body(wire)
    whole = decode_events(wire, body)
    for at in range(len(body) + 1):
        assert decode_events(wire, body[:at], body[at:]) == whole
    assert decode_events(wire, *(body[at : at + 1] for at in range(len(body)))) == whole


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_lines_may_end_as_they_like(wire: str, ending: bytes) -> None:
    body = Reply(text="né").body(wire)
    other = body.replace(b"\n", ending)
    for at in range(len(other) + 1):
        assert decode_events(wire, other[:at], other[at:]) == decode_events(wire, body)


def test_a_reply_that_breaks_off_at_any_byte_is_no_reply(wire: str) -> None:
    body = Reply(text="né 🙂", calls=[("a", "f", '{"x":1}')]).body(wire)
    whole = decode_events(wire, body)
    # OpenAI's reply is complete with its finish reason; what follows is the usage and a word of goodbye.
    complete = body.index(b"\n\n", body.index(b'"finish_reason": "tool_calls"')) if wire == "openai" else len(body)
    for at in range(len(body)):
        found = make_decoder(wire)
        events = found.feed(body[:at])
        is_open = at <= complete or found._frames.incomplete_data not in (b"", b"[DONE]")
        if is_open and not any(event.type == "done" for event in events):
            with pytest.raises(StreamTruncated):
                found.finish()
            continue
        done = [*events, *found.finish()][-1]
        assert isinstance(done, Done)
        assert done.message == whole[-1].message  # type: ignore[union-attr]
        assert at > complete or body[at:] == b"\n"


def test_a_corrupt_chunk_is_an_error_and_shows_nothing(wire: str) -> None:
    frames = FULL.frames(wire)
    for at in range(len(frames) - 1):
        damaged = frames[at].replace(b'"', b"", 1)
        with pytest.raises(BadResponse) as caught:
            decode_events(wire, *frames[:at], damaged, *frames[at + 1 :])
        assert not isinstance(caught.value, StreamTruncated)
        assert caught.value.__cause__ is caught.value.__context__ is None  # a JSON error would hold the text


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: 1\n\n",
        b"data: []\n\n",
        b'data: "x"\n\n',
        b'data: {"choices": 5, "type": 5}\n\n',
        b'data: {"choices": [5], "type": "content_block_delta", "index": {}}\n\n',
        b'data: {"choices": [{"delta": {"content": 5}}], "type": "content_block_start"}\n\n',
        b'data: {"choices": [{"delta": {"tool_calls": 5}}], "type": "message_start", "message": 5}\n\n',
        b'data: {"choices": [{"delta": {}, "finish_reason": 5}], "type": "content_block_stop", "index": 77}\n\n',
        b"data: " + b"[" * 5000 + b"]" * 5000 + b"\n\n",
        b'data: {"choices": [], "usage": {"prompt_tokens": 1e300}, "type": "message_delta", "delta": 5}\n\n',
        b'data: {"a": "\xff"}\n\n',
        b'data: {"a": "\\ud800"}\n\n',
        b"<html>busy</html>\n\n",
        b"dXta: {}\n\n",
    ],
)
def test_nonsense_is_a_bad_response(wire: str, nonsense: bytes) -> None:
    with pytest.raises(BadResponse):
        decode_events(wire, Reply().frames(wire)[0], nonsense)


@pytest.mark.parametrize("seed", range(300))
def test_damaged_bytes_give_events_or_one_of_our_errors(wire: str, seed: int) -> None:
    choose = random.Random(seed)
    body = bytearray(FULL.body(wire))
    for _ in range(choose.randrange(1, 6)):
        at = choose.randrange(len(body))
        kind = choose.randrange(4)
        if kind == 0:
            body[at] = choose.randrange(256)
        elif kind == 1:
            del body[at : at + choose.randrange(1, 40)]
        elif kind == 2:
            body[at:at] = body[at : at + choose.randrange(1, 200)]
        else:
            body[at:at] = bytes(choose.randrange(256) for _ in range(3))
    try:
        events = decode_events(wire, *(bytes(body[at : at + 97]) for at in range(0, len(body), 97)))
    except ProviderError:
        return
    assert [event.type for event in events].count("done") == 1
    assert events[-1].type == "done"


def test_an_error_inside_the_stream_is_typed(wire: str) -> None:
    frames = Reply().frames(wire)[:4]
    error = {"type": "overloaded_error", "message": "Overloaded"}
    with pytest.raises(ProviderUnavailable, match="Overloaded") as caught:
        decode_events(wire, *frames, encode_frame({"type": "error", "error": error}, "error"))
    assert caught.value.retryable
    quota = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}
    with pytest.raises(RateLimited) as refused:
        decode_events(wire, *frames, encode_frame({"type": "error", "error": quota}))
    assert not refused.value.retryable


def test_an_endless_reply_is_cut(wire: str) -> None:
    frames = Reply().frames(wire)
    found = make_decoder(wire, limit=10_000)
    with pytest.raises(BadResponse, match="more than 10000 bytes"):
        [found.feed(chunk) for chunk in [*frames[:3], *[frames[3]] * 1000]]
    with pytest.raises(BadResponse, match="more than"):
        make_decoder(wire, limit=10).feed(b"data: " + b"x" * 10)


def test_what_follows_the_end_does_not_count(wire: str) -> None:
    body = Reply().body(wire)
    events = decode_events(wire, body, body, b"\x00 nonsense \n\n")
    assert [event.type for event in events].count("done") == 1


def test_comments_and_other_fields_say_nothing(wire: str) -> None:
    noise = b": PROCESSING\n\nid: 4\nretry: 10\n\n"
    assert decode_events(wire, noise, Reply().body(wire), noise) == decode_events(wire, Reply().body(wire))


def test_no_reply_at_all_is_truncated(wire: str) -> None:
    with pytest.raises(StreamTruncated):
        decode_events(wire)
    if wire == "openai":
        with pytest.raises(StreamTruncated):
            decode_events(wire, b"data: [DONE]\n\n")


class TestFrames:
    def test_several_lines_of_data_are_one_event(self) -> None:
        assert SSEParser(1000).feed(b"data: a\ndata:b\n\n") == [b"a\nb"]

    def test_an_unknown_field_is_not_skipped(self) -> None:
        with pytest.raises(MalformedLine):
            SSEParser(1000).feed(b"dat: a\n\n")

    def test_a_long_line_in_many_pieces_is_joined_once(self) -> None:
        frames = SSEParser(1 << 24)
        for _ in range(20_000):
            assert frames.feed(b"data: " + b"x" * 250) == []
        (line,) = frames.feed(b"\n\n")
        assert len(line) == 20_000 * 256 - 6
