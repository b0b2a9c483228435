"""The questions of the retrieval benchmark: each has one answer, in other words."""

from __future__ import annotations

from collections import Counter

from benchmarks.retrieval_questions import content, notes

NOTES = notes()
ASKED = [(note, question) for note in NOTES for question in note.questions]


def test_there_is_much_to_choose_from_and_much_to_ask() -> None:
    assert len(NOTES) >= 150
    assert len(ASKED) >= 300
    assert len({note.key for note in NOTES if note.questions}) >= 150


def test_nothing_is_there_twice() -> None:
    for values in ([note.key for note in NOTES], [note.text for note in NOTES], [question for _, question in ASKED]):
        assert [value for value, times in Counter(values).items() if times > 1] == []


def test_memories_are_statements_and_questions_are_questions() -> None:
    assert [note for note in NOTES if not note.text.endswith(".")] == []
    assert [question for _, question in ASKED if not question.endswith("?") or not content(question)] == []


def test_questions_have_few_words_in_common_with_their_memories() -> None:
    shared = [len(note.shared(question)) for note, question in ASKED]
    assert shared.count(0) >= len(ASKED) / 2
    assert max(shared) <= 2
    parts = [count / len(content(question)) for count, (_, question) in zip(shared, ASKED, strict=True)]
    assert sum(parts) / len(parts) <= 0.25
