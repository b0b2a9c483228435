"""Words for the search index, made the same way for every store.

A text becomes its words without case and accents; every character of a script that writes without spaces is a word of
its own. Words outside ASCII are spelled in hexadecimal, so that no database's own tokenizer has a say in what matches.
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[぀-ヿ㐀-䶿一-鿿豈-﫿]|[^\W_぀-ヿ㐀-䶿一-鿿豈-﫿]+")
MAX_WORD = 64


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text.casefold()).casefold()  # some decompose into capitals
        text = "".join(character for character in decomposed if not unicodedata.combining(character))
    else:
        text = text.lower()
    return [word if word.isascii() else "_" + word.encode().hex() for word in _clipped(text)]


def _clipped(text: str) -> list[str]:
    return [word[:MAX_WORD] for word in _WORD.findall(text)]
