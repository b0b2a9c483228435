"""Ids sort by time, never repeat, and can be read back; old events are brought up to date."""

from __future__ import annotations

import pytest

from holdfast.clock import Clock, FixedClock, decode_ulid, encode_ulid
from holdfast.errors import SchemaTooNew
from holdfast.log import codec, events
from holdfast.log.events import SALT_SIZE, Event, Row, make_body


def test_ids_are_strictly_increasing_even_when_the_clock_stands_or_goes_back() -> None:
    class Stuck(Clock):
        times = iter([5_000_000, 5_000_000, 4_000_000, 1, 6_000_000])

        def now(self) -> int:
            return next(self.times)

    ids = Stuck()
    made = [ids.new_id() for _ in range(5)]
    assert made == sorted(set(made))
    assert all(len(id) == 26 for id in made)


def test_an_id_can_be_read_back() -> None:
    assert decode_ulid(encode_ulid(123, 456)) == 123 << 80 | 456


def test_a_fixed_world_repeats_itself() -> None:
    one, two = FixedClock(), FixedClock()
    assert [one.new_id(), one.now(), one.random_bytes(16)] == [two.new_id(), two.now(), two.random_bytes(16)]


def test_old_versions_of_an_event_are_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(events.VERSIONS, "state.set", 3)
    monkeypatch.setitem(events.UPCASTS, ("state.set", 1), lambda data: {"name": data["key"], "value": data["value"]})
    monkeypatch.setitem(events.UPCASTS, ("state.set", 2), lambda data: data | {"value": [data["value"]]})
    body = make_body(bytes(SALT_SIZE), codec.encode({"key": "a", "value": 1}))
    assert Event(Row(1, 0, "state.set", None, 0, body, None, b"")).data == {"name": "a", "value": [1]}


def test_what_a_newer_holdfast_wrote_is_refused_by_name() -> None:
    body = make_body(bytes(SALT_SIZE), codec.encode({}))
    with pytest.raises(SchemaTooNew, match=r"unknown type 'dream\.had'"):
        Event(Row(7, 0, "dream.had", None, 0, body, None, b""))
    header = codec.encode([9, None, None, None, None])
    with pytest.raises(SchemaTooNew, match="version 9"):
        Event(Row(7, 0, "state.set", header, 0, body, None, b"")).data
