"""The chain: after any change to the rows of a log, verification names the first changed event."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from holdfast.log import chain, codec
from holdfast.log.events import SALT_SIZE, Draft, Event, Row
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


def seal_drafts(asked: list[Draft]) -> list[Row]:
    salts = bytes(range(SALT_SIZE)) * len(asked)
    payloads = chain.encode_payloads(asked)
    return chain.chain_rows(asked, payloads, head=0, hash=chain.genesis(ORIGIN), tokens=0, at=7, salts=salts)


def verify_rows(rows: list[Row], original: list[Row]) -> chain.Verification:
    return chain.verify(ORIGIN, rows, head=len(original), hash=original[-1].hash)


def flip_bit(data: bytes, place: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def change_salt_or_payload(row: Row, place: int) -> None:
    row.body = flip_bit(row.body or b"", place)


def change_hash(row: Row, place: int) -> None:
    row.hash = flip_bit(row.hash, place)


def change_time(row: Row, place: int) -> None:
    row.at += place + 1


def change_type(row: Row, place: int) -> None:
    row.type = "fact.added"


def change_author(row: Row, place: int) -> None:
    row.header = codec.encode([1, None, None, f"somebody else {place}", None])


def drop_payload(row: Row, place: int) -> None:
    row.body, row.tombstone = None, bytes(32)


CHANGES = (change_salt_or_payload, change_hash, change_time, change_type, change_author, drop_payload)


@given(drafts)
def test_a_chain_verifies(asked: list[Draft]) -> None:
    rows = seal_drafts(asked)
    assert verify_rows(rows, rows)
    assert verify_rows(rows, rows).checked == len(rows)


@given(drafts, st.data(), st.integers(0, 500), st.sampled_from(CHANGES))
def test_a_change_is_found_where_it_was_made(
    asked: list[Draft], data: st.DataObject, place: int, change: Callable[[Row, int], None]
) -> None:
    rows, original = seal_drafts(asked), seal_drafts(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    change(rows[victim], place)
    assert verify_rows(rows, original).first_bad == victim + 1


@given(drafts, st.data(), st.integers(0, 500))
def test_a_change_with_its_own_hash_made_to_fit_is_found_at_the_next_event(
    asked: list[Draft], data: st.DataObject, place: int
) -> None:
    rows, original = seal_drafts(asked), seal_drafts(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    change_salt_or_payload(rows[victim], place)
    before = chain.genesis(ORIGIN) if victim == 0 else rows[victim - 1].hash
    rows[victim].hash = chain.next_hash(before, rows[victim]) or b""
    assert verify_rows(rows, original).first_bad == min(victim + 2, len(rows))


@given(drafts, st.data())
def test_a_missing_event_is_named(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = seal_drafts(asked), seal_drafts(asked)
    victim = data.draw(st.integers(0, len(rows) - 1))
    del rows[victim]
    assert verify_rows(rows, original).first_bad == victim + 1


@given(drafts, st.data())
def test_a_repeated_or_moved_event_is_found(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = seal_drafts(asked), seal_drafts(asked)
    one, two = sorted(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True)))
    rows[one], rows[two] = rows[two], rows[one]
    assert verify_rows(rows, original).first_bad == one + 1
    again = seal_drafts(asked)
    again.insert(two, again[one])
    assert verify_rows(again, original).first_bad == two + 1


@given(drafts, st.data())
def test_numbers_swapped_between_two_events_are_found(asked: list[Draft], data: st.DataObject) -> None:
    """The same rows, each pretending to be the other."""
    rows, original = seal_drafts(asked), seal_drafts(asked)
    one, two = sorted(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2, unique=True)))
    rows[one], rows[two] = rows[two], rows[one]
    rows[one].seq, rows[two].seq = one + 1, two + 1
    assert verify_rows(rows, original).first_bad == one + 1


@given(drafts, st.data())
def test_an_erased_event_leaves_the_chain_whole(asked: list[Draft], data: st.DataObject) -> None:
    rows, original = seal_drafts(asked), seal_drafts(asked)
    victim = rows[data.draw(st.integers(0, len(rows) - 1))]
    victim.tombstone, victim.body = make_tombstone(Event(victim), names=data.draw(st.booleans())), None
    assert verify_rows(rows, original)


@given(drafts, st.data())
def test_the_hashes_do_not_depend_on_how_events_are_batched(asked: list[Draft], data: st.DataObject) -> None:
    whole = seal_drafts(asked)
    cut = data.draw(st.integers(1, len(asked) - 1))
    first = seal_drafts(asked[:cut])
    rest = chain.chain_rows(
        asked[cut:],
        chain.encode_payloads(asked[cut:]),
        head=cut,
        hash=first[-1].hash,
        tokens=first[-1].tokens,
        at=7,
        salts=bytes(range(SALT_SIZE)) * (len(asked) - cut),
    )
    assert [row.columns() for row in first + rest] == [row.columns() for row in whole]
