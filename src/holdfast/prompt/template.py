"""Placeholders in instructions: `{name}` becomes the state value of that name, in one pass over the text.

What must stay true: the text of a value is never read for placeholders, and the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.errors import MissingState
from holdfast.prompt.state_values import ABSENT, SCOPES

# The look-behind and the possessive repeats make each run of braces and each name one step, also in a text of braces.
_NAME_IN_BRACES = re.compile(rf"(?<!\{{)(\{{++)((?:({'|'.join(SCOPES)}):)?([^\W\d][\w.\-]*+)(\??))(\}}++)")


def fill_template(template: str, read: Callable[[str | None, str], Any]) -> str:
    """Return instructions with each `{name}` replaced by `read(scope, name)`; the scope is None if the text has none.

    `{name?}` is empty if the value is ABSENT, and `{name}` then raises MissingState. Braces around a name are read in
    pairs, as in `str.format`: `{{name}}` is the text `{name}`. All other braces stay.
    """
    values: dict[tuple[str | None, str], Any] = {}

    def replace(match: re.Match[str]) -> str:
        left, text, scope, name, optional, right = match.groups()
        braces = min(len(left), len(right))
        if not (name[0].isalpha() or name[0] == "_"):
            return match.group()
        if braces % 2:
            if (scope, name) not in values:
                values[scope, name] = read(scope, name)
            value = values[scope, name]
            if value is ABSENT and not optional:
                raise MissingState(name, scope=scope or "session")
            text = "" if value is ABSENT else value if isinstance(value, str) else str(value)
        pairs = braces // 2
        return left[: len(left) - braces + pairs] + text + right[: len(right) - braces + pairs]

    return _NAME_IN_BRACES.sub(replace, template)


def escape_placeholders(text: str) -> str:
    """Return instructions that `fill_template` turns into this text, whatever the state is."""

    def double(match: re.Match[str]) -> str:
        left, *_, right = match.groups()
        braces = min(len(left), len(right))
        return "{" * braces + match.group() + "}" * braces

    return _NAME_IN_BRACES.sub(double, text)
