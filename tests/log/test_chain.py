"""The chain: whatever is done to the rows of a log, the first event that is not as it was is named."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.log import chain, codec
from holdfast.log.events import Draft, Event, Row
from holdfast.log.tombstones import make_tombstone
from tests.properties.values import objects, texts

ORIGIN = "origin"
drafts = st.lists(
    st.builds(
        Draft,
        type=st.sampled_from(["message.added", "state.set", "model.replied", "turn.started"]),
        data=objects,
        run=st.none() | texts,
        author=st.none() | texts,
        actor=st.none() | texts,
    ),
    min_size=2,
    max_size=6,
)


def sealed(asked: list[Draft]) -> list[Row]:
    salts = bytes(range(16)) * len(asked)
    payloads = chain.encode_payloads(asked)
    return chain.chain_rows(asked, payloads, head=0, hash=chain.genesis(ORIGIN), tokens=0, at=7, salts=salts)


def verified(rows: list[Row], original: list[Row]) -> chain.Verification:
    return chain.verify(ORIGIN, rows, head=len(original), hash=original[-1].hash)


def flip(data: bytes, place: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def of_salt_or_payload(row: Row, place: int) -> None:
    row.body = flip(row.body or b"", place)


def of_the_hash(row: Row, place: int) -> None:
    row.hash = flip(row.hash, place)


def of_the_time(row: Row, place: int) -> None:
    row.at += place + 1


def of_the_type(row: Row, place: int) -> None:
    row.type = "fact.added"


def of_the_author(row: Row, place: int) -> None:
    row.header = codec.encode([1, None, None, f"somebody else {place}", None])


def of_the_whole_payload(row: Row, place: int) -> None:
    row.body, row.tombstone = None, bytes(32)


CHANGES = (of_salt_or_payload, of_the_hash, of_the_time, of_the_type, of_the_author, of_the_whole_payload)


@given(drafts)
def test_a_chain_verifies(asked: list[Draft]) -> None:
    rows = sealed(asked)
    assert verified(rows, rows)
    assert verified(rows, rows).checked == len(rows)


@given(drafts, st.data(), st.integers(0, 500), st.sampled_from(CHANGES))
def test_a_change_is_found_where_it_was_made(
    asked: list[Draft], data: st.DataObject, place: int, change: Callable[[Row, int], None]
) -> None:
    rows, original = sealed(asked), sealed(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    change(rows[victim], place)
    assert verified(rows, original).first_bad == victim + 1


@given(drafts, st.data(), st.integers(0, 500))
def test_a_change_with_its_own_hash_made_to_fit_is_found_at_the_next_event(
    asked: list[Draft], data: st.DataObject, place: int
) -> None:
    rows, original = sealed(asked), sealed(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    of_salt_or_payload(rows[victim], place)
    before = chain.genesis(ORIGIN) if victim == 0 else rows[victim - 1].hash
    rows[victim].hash = chain.next_hash(before, rows[victim]) or b""
    assert verified(rows, original).first_bad == min(victim + 2, len(rows))


@given(drafts, st.data())
def test_a_missing_event_is_named(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = sealed(asked), sealed(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    del rows[victim]
    assert verified(rows, original).first_bad == victim + 1


@given(drafts, st.data())
def test_a_repeated_or_moved_event_is_found(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = sealed(asked), sealed(asked)
    one, two = sorted(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True)))
    rows[one], rows[two] = rows[two], rows[one]
    assert verified(rows, original).first_bad == one + 1
    again = sealed(asked)
    again.insert(two, again[one])
    assert verified(again, original).first_bad == two + 1


@given(drafts, st.data())
def test_numbers_swapped_between_two_events_are_found(asked: list[Draft], data: st.DataObject) -> None:
    """The same rows, each pretending to be the other."""
    rows, original = sealed(asked), sealed(asked)
    one, two = sorted(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True)))
    rows[one], rows[two] = rows[two], rows[one]
    rows[one].seq, rows[two].seq = one + 1, two + 1
    assert verified(rows, original).first_bad == one + 1


@given(drafts, st.data())
def test_an_erased_event_leaves_the_chain_whole(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = sealed(asked), sealed(asked)
    victim = rows[data.draw(st.integers(0, len(rows) - 1))]
    victim.tombstone, victim.body = make_tombstone(Event(victim), names=data.draw(st.booleans())), None
    assert verified(rows, original)


@given(drafts, st.data())
def test_the_hashes_do_not_depend_on_how_events_are_batched(asked: list[Draft], data: st.DataObject) -> None:
    whole = sealed(asked)
    cut = data.draw(st.integers(1, len(asked) - 1))
    first = sealed(asked[:cut])
    rest = chain.chain_rows(
        asked[cut:],
        chain.encode_payloads(asked[cut:]),
        head=cut,
        hash=first[-1].hash,
        tokens=first[-1].tokens,
        at=7,
        salts=bytes(range(16)) * (len(asked) - cut),
    )
    assert [row.columns() for row in first + rest] == [row.columns() for row in whole]
