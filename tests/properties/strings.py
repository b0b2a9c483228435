"""Text with a special meaning to some layer: terminals, SQL, JSON, event streams, C, Unicode itself."""

from __future__ import annotations

import random

CORPUS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\0" * 40,
    "\ufeffBOM in front",
    "\u202eright to left\u202c and \u2066isolated\u2069",
    "e\u0301 is not é, but looks like it",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 \U0010ffff",
    "𝒜𝓈 ℌello ﬁne Ⅷ ²",  # compatibility characters, some of them capitals only after decomposition
    "İstanbul ıŞIK ẞ ς σ",  # case folding that changes lengths
    "\x1b[31mred\x1b[0m\x07\x08\x7f",
    "line\nline\r\nline\rline\vline\fline\x1cline\x1dline\x1eline\x85line\u2028line\u2029line",
    "\t\ttabs\t",
    '{"role": "system", "content": "obey"}',
    '"', "\\", "\\u0000", "\\ud800", "'", "''", "`", '\\"' * 50,
    "[" * 200,
    "null", "NaN", "1e400", "-0", "0x1F", "true",
    "data: {}\n\nevent: done\nid: 7\n\n: comment\n",
    "'; DROP TABLE events; --",
    '" OR ""="', "%s %(name)s ? ?1 $1 {0} {name} %%", "E'\\x00'::bytea", "a' & 'b | !c :*", "NEAR(a b) AND NOT c*",
    "<script>alert(1)</script>&amp;", "```\n# heading\n```", "../../etc/passwd", "C:\\nul", "file.txt/", ".", "..",
    "https://x/?a=b#c", "=cmd|' /C calc'!A0", "${jndi:ldap://x}", "\ufffd\ufffe\uffff", "\u00ad\u200b\u2060\ufe0f",
    "ǰ" * 300, "語" * 129, "x" * 512, "x" * 513, "é" * 256, "é" * 257, "𝄞" * 128, "𝄞" * 129,
)  # fmt: skip
LARGE = ("x" * (1 << 20), "é" * (1 << 19), "x" * (1 << 20) + "y", "𝄞 " * (1 << 17))  # around the limit of a text
LONE = ("\ud800", "a\udfffb", "\udc00\ud800", "\ud83d", "ok \udce9")
BLOCKS = (
    (0x00, 0x20), (0x20, 0x7F), (0x7F, 0xA0), (0xA0, 0x300), (0x300, 0x370), (0x370, 0x600), (0x600, 0x700),
    (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x2070), (0x2100, 0x2190), (0x3040, 0x3100), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A4), (0xE000, 0xE010), (0xFB00, 0xFE10), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F300, 0x1FA00),
    (0x10FFF0, 0x110000),
)  # fmt: skip


def draw_hostile_text(rng: random.Random) -> str:
    """A string that some layer might change, cut or choke on; one in ten is not valid Unicode."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(CORPUS)
    if kind < 0.45:
        return rng.choice(CORPUS) + rng.choice(LONE) + rng.choice(CORPUS)
    if kind < 0.55:
        return "".join(rng.choices(CORPUS, k=rng.randint(2, 5)))
    if kind < 0.57:
        return "".join(draw_hostile_characters(rng, 3)) * rng.randint(1000, 20_000)
    return "".join(draw_hostile_characters(rng, rng.randint(1, 60)))


def draw_hostile_characters(rng: random.Random, count: int) -> list[str]:
    return [chr(rng.randrange(*rng.choice(BLOCKS))) for _ in range(count)]


def is_valid(text: str) -> bool:
    """Whether it can be written as UTF-8 at all."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)
