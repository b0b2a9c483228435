"""Words for the search index, made the same way for every store.

A text becomes its words without case and accents; every character of a script that writes without spaces is a word of
its own. Words outside ASCII are spelled in hexadecimal, so that no database's own tokenizer has a say in what matches.

Messages are found by their words as they are, memories by the stems of theirs: a small English stemmer, which need not
be right, only give "allergic" and "allergies" the same stem. Other languages pass through it nearly unchanged.
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[぀-ヿ㐀-䶿一-鿿豈-﫿]|[^\W_぀-ヿ㐀-䶿一-鿿豈-﫿]+")
MAX_WORD = 64
# English words that say nothing about what a text is about.
_STOP_WORDS = frozenset(
    (  # noqa: SIM905 - a list of them would take a page
        "a about am an and any are as at be been but by can could did do does for from had has have he her him his how "
        "i if in is it its just me my no not of on or our please s she should so t that the their them there these "
        "they this those to us was we were what when where which who whom whose why will with would you your"
    ).split()
)
_VOWELS = frozenset("aeiouy")


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text.casefold()).casefold()  # some decompose into capitals
        text = "".join(character for character in decomposed if not unicodedata.combining(character))
    else:
        text = text.lower()
    return [word if word.isascii() else "_" + word.encode().hex() for word in _split_words(text)]


def _split_words(text: str) -> list[str]:
    return [word[:MAX_WORD] for word in _WORD.findall(text)]


def stems(text: str) -> list[str]:
    """The words of a text without their endings, in order."""
    return [_stem(word) for word in words(text)]


def content_stems(text: str) -> list[str]:
    """The stems that say what a text is about, each once, in order; all of them, if none says much."""
    found = words(text)
    return list(dict.fromkeys(_stem(word) for word in ([each for each in found if each not in _STOP_WORDS] or found)))


def _stem(word: str) -> str:
    if len(word) <= 3 or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) >= len(ending) + 3 and not _VOWELS.isdisjoint(word[: -len(ending)]):
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":  # planned, running
                word = word[:-1]
            break
    for ending, left in (("ly", 4), ("ic", 4), ("e", 3), ("y", 3)):
        if word.endswith(ending) and len(word) >= len(ending) + left:
            word = word[: -len(ending)]
    return word
