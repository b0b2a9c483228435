"""What a person says about themselves, found without a model: a few first-person sentences, and "remember that ...".

Only plain statements are taken, and only from what the user wrote: the author of the text of a tool or a
page is unknown. It is meant to miss much and to invent nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

MAX_SENTENCE = 300  # characters; longer ones are stories
MAX_SLUG = 48


class Statement(NamedTuple):
    """Something to remember: where it goes, how it reads, and what it is."""

    key: str
    text: str
    kind: str


_SENTENCES = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSES = re.compile(r",?\s+(?:and|but|because|so|which)\s+(?=(?:i|i'm|i've|my)\b)|,\s+(?=(?:i|my)\s)", re.IGNORECASE)
_SENTENCE_START = r"^(?:(?:and|but|also|hi|hello|hey|oh|well|so|please)[,!]?\s+)*"
_OBJECT = r"(?P<what>[^;:]{1,120}?)[.!]*$"
_NAME = r"(?P<what>(?-i:[^\W\d_a-z][\w'’-]*(?:\s+[^\W\d_a-z][\w'’-]*){0,3}))"  # "call me later" is no name


def _compile_rule(pattern: str) -> re.Pattern[str]:
    return re.compile(_SENTENCE_START + pattern, re.IGNORECASE)


# (pattern, key, how it reads, kind); a key that ends in a dot is completed by what was said.
_RULES: tuple[tuple[re.Pattern[str], str, str, str], ...] = (
    (
        _compile_rule(rf"(?:my name is|my name's|i am called|i'm called|call me)\s+{_NAME}"),
        "name",
        "Name: {}",
        "profile",
    ),
    (_compile_rule(rf"i(?:'m| am)(?: \w+)? allergic to\s+{_OBJECT}"), "allergy.", "Allergic to {}", "profile"),
    (_compile_rule(rf"i have an? (?:\w+ )?allergy to\s+{_OBJECT}"), "allergy.", "Allergic to {}", "profile"),
    (_compile_rule(rf"i (?:now )?(?:live|am living) in\s+{_OBJECT}"), "home", "Lives in {}", "profile"),
    (_compile_rule(rf"i(?:'ve| have)?(?: just)? moved to\s+{_OBJECT}"), "home", "Lives in {}", "profile"),
    (_compile_rule(rf"i(?: am|'m) (?:originally )?from\s+{_OBJECT}"), "origin", "Comes from {}", "profile"),
    (_compile_rule(rf"i (?:now )?work (?:at|for)\s+{_OBJECT}"), "employer", "Works for {}", "profile"),
    (_compile_rule(rf"i (?:now )?work as\s+{_OBJECT}"), "job", "Works as {}", "profile"),
    (
        _compile_rule(rf"i (?:really )?(?:hate|dislike|can(?:'|no)t stand)\s+{_OBJECT}"),
        "dislikes.",
        "Dislikes {}",
        "preference",
    ),
    (
        _compile_rule(rf"i (?:really )?(?:don't|do not) (?:really )?like\s+{_OBJECT}"),
        "dislikes.",
        "Dislikes {}",
        "preference",
    ),
    (_compile_rule(rf"i (?:really |absolutely )?(?:like|love|enjoy)\s+{_OBJECT}"), "likes.", "Likes {}", "preference"),
    (_compile_rule(rf"i (?:usually |always |really )?prefer\s+{_OBJECT}"), "prefers.", "Prefers {}", "preference"),
)
_REMEMBER_REQUEST = _compile_rule(
    r"(?:please )?(?:remember|don't forget|do not forget|note)(?: that|:)\s+(?P<what>.{3,280})$"
)
_FAVOURITE = _compile_rule(rf"my favou?rite (?P<thing>\w+(?: \w+)?) (?:is|are)\s+{_OBJECT}")


def statements(text: str) -> Iterator[Statement]:
    """What the sentences of a user's message say about the user."""
    for sentence in map(str.strip, _SENTENCES.split(text)):
        if not sentence or len(sentence) > MAX_SENTENCE or sentence.endswith("?"):
            continue
        clauses = [sentence] if _REMEMBER_REQUEST.match(sentence) else _CLAUSES.split(sentence)
        yield from filter(None, map(_parse_statement, clauses))


def _parse_statement(sentence: str) -> Statement | None:
    asked = _REMEMBER_REQUEST.match(sentence)
    if asked:
        inner = asked["what"].strip()
        what = inner.rstrip(".! ")
        return _parse_statement(inner) or Statement("note." + slug(what), what[:1].upper() + what[1:], "fact")
    favourite = _FAVOURITE.match(sentence)
    if favourite:
        thing = favourite["thing"].lower()
        return Statement(f"favourite.{slug(thing)}", f"Favourite {thing}: {favourite['what'].strip()}", "preference")
    for pattern, key, reads, kind in _RULES:
        match = pattern.match(sentence)
        if match:
            what = match["what"].strip(" .'’-")
            if slug(what):
                return Statement(key + slug(what) if key.endswith(".") else key, reads.format(what), kind)
    return None


def slug(text: str) -> str:
    """A text as the end of a key: lower case, words joined by hyphens; a long one cut, and still one of its own."""
    found = "-".join(re.findall(r"[^\W_]+", text.lower()))
    if len(found) <= MAX_SLUG:
        return found
    return f"{found[: MAX_SLUG - 9].strip('-')}-{sha256(found.encode()).hexdigest()[:8]}"
