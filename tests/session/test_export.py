"""A jsonl export says which event is its last, so a file that was cut does not verify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import File, Message, Session
from holdfast.errors import CorruptLog, InvalidArgument
from holdfast.session.export import read_jsonl, read_lines
from holdfast.stores import MemoryStore


@pytest.fixture
def session() -> Session:
    found = Session("s", store=MemoryStore(), system="Be kind.")
    found.add_messages([Message.user("grüße"), Message.assistant("hello")])
    found.add_message(Message.user("look", File(data=b"%PDF", media_type="application/pdf")))
    return found


def import_text(text: str) -> Session:
    return Session.import_(text, session_id="copy", store=MemoryStore())


def without_end(text: str) -> str:
    """The export as it was before exports named their last event."""
    first, rest = text.split("\n", 1)
    line = json.loads(first)
    del line["log"]["head"], line["log"]["hash"]
    return json.dumps(line) + "\n" + rest


def test_every_line_is_an_event_and_the_first_also_names_the_last(session: Session) -> None:
    lines = [json.loads(line) for line in session.export().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert (lines[0]["log"]["head"], lines[0]["log"]["hash"]) == (4, lines[3]["hash"])


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_an_export_without_its_last_lines_does_not_verify(session: Session, kept: int) -> None:
    text = "".join(session.export().splitlines(keepends=True)[:kept])
    verdict = read_jsonl(text).verify()
    assert (verdict.ok, verdict.checked, verdict.first_bad) == (False, kept, kept + 1)
    assert verdict.reason == f"4 events were written, {kept} found"
    with pytest.raises(CorruptLog, match=f"4 events were written, {kept} found"):
        import_text(text)


def test_an_export_that_is_cut_at_any_byte_does_not_verify(session: Session, tmp_path: Path) -> None:
    data = session.export().encode()
    first = data.index(b"\n") + 1
    assert read_lines(data.splitlines(keepends=True)).verify()
    assert read_lines(data[:-1].splitlines(keepends=True)).verify()  # only the last line end is missing
    for size in range(first, len(data) - 1):
        verdict = read_lines(data[:size].splitlines(keepends=True)).verify()
        assert not verdict, size
        assert verdict.checked == data[:size].count(b"\n") or data[size : size + 1] == b"\n", size
    file = tmp_path / "cut.jsonl"
    file.write_bytes(data[: data.index("ü".encode()) + 1])  # inside a character
    with pytest.raises(CorruptLog, match="line 2 is cut off"):
        Session.import_(file, session_id="copy", store=MemoryStore())


def test_a_first_line_that_names_another_last_event_does_not_verify(session: Session) -> None:
    text = session.export()
    last = json.loads(text.splitlines()[-1])["hash"]
    first, rest = text.split("\n", 1)
    for changed in (first.replace('"head":4', '"head":3'), first.replace(last, "0" * 64)):
        assert changed != first
        assert not read_jsonl(f"{changed}\n{rest}").verify()


def test_an_export_of_an_older_holdfast_verifies_and_its_end_is_not_known(session: Session) -> None:
    text = without_end(session.export())
    exported = read_jsonl(text)
    assert (exported.verify().ok, exported.is_end_known) == (True, False)
    assert import_text(text).messages == session.messages
    assert read_jsonl(session.export()).is_end_known


def test_an_export_of_a_fork_and_of_an_import_names_their_last_event(session: Session) -> None:
    fork = session.fork("f")
    fork.add_message(Message.user("more"))
    copy = import_text(fork.export())
    for each in (fork, copy):
        head = json.loads(each.export().splitlines()[0])["log"]["head"]
        assert head == each.head
        assert read_jsonl(each.export()).verify()


@pytest.mark.parametrize(
    ("junk", "why"),
    [
        ("junk", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("{}\n", "'log' is missing"),
        ('{"log": {"id": "a"}}\n', "'version' is missing"),
        ('{"log": {"version": 1, "id": "a", "origin": "b", "head": "x", "hash": ""}}\n', "'head' and 'hash'"),
        ("[]\n", "a value is not as in an export"),
    ],
)
def test_junk_is_refused_in_words(junk: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        import_text(junk)
    text = str(caught.value)
    assert text.startswith("line 1 is not a line of a jsonl export: ")
    assert why in text
    assert "Path" in text  # what to do: give the text or the file of an export
    assert "NotJSON(" not in text
    assert "Error(" not in text
