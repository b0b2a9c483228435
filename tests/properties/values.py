"""What hypothesis draws: JSON values, text, messages and events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from holdfast import File, Image, Message
from holdfast.log.messages import Text, Thinking, ToolCall, ToolResult

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
lone = st.sampled_from(["\ud800", "a\udfff", "\udc00\ud800"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
objects = st.dictionaries(texts, values, max_size=4)
refused: st.SearchStrategy[Any] = (
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 2**63, -(2**63) - 1, 10**40, b"x", bytearray(b"y")])
    | st.tuples(scalars)
    | st.sets(st.integers(), min_size=1, max_size=2)
    | st.dictionaries(st.integers(), scalars, min_size=1, max_size=2)
    | lone
    | st.builds(lambda key: {key: 1}, lone)
    | st.just(object())
)

media = st.one_of(
    st.builds(
        lambda kind, url, name: kind(url=f"https://{url}", name=name),
        st.sampled_from([Image, File]),
        texts,
        st.none() | texts,
    ),
    st.builds(
        lambda kind, data, name: kind(data=data, media_type="x/y", name=name),
        st.sampled_from([Image, File]),
        st.binary(max_size=40),
        st.none() | texts,
    ),
)
calls = st.builds(ToolCall, id=texts, name=texts, arguments=objects | texts.map(lambda text: "not JSON " + text))
results = st.builds(ToolResult, call_id=texts, content=texts, is_error=st.booleans())
thoughts = st.builds(Thinking, text=texts, signature=st.none() | texts, provider=st.none() | texts)
parts = st.one_of(texts.map(Text), media, calls, results, thoughts)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "system", "tool"]),
    st.lists(parts, max_size=5),
    author=st.none() | texts,
    metadata=st.dictionaries(texts, values, max_size=3),
    created_at=st.none() | st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),
)
