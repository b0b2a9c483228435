"""What operators read of a tool call that failed: one record with the traceback. The model gets the result as before.

The text of an exception of the user's code is shown, because it is what the record is for. The text of an error of
holdfast is not, nor the texts of what caused it: they may quote an argument, an answer, or the words of a provider.
"""

from __future__ import annotations

import logging
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import suppress

from holdfast.diagnostics import LOGGER, Fields, class_name, report, report_exception
from holdfast.errors import AgentError, FileRefused, StaleEpoch
from holdfast.models.base import Model
from holdfast.models.provider_errors import redact_traceback
from holdfast.models.registry import LanguageModel

# A path that the model may not use, and a turn that was taken over: neither is a fault of a tool.
_EXPECTED = (FileRefused, StaleEpoch)


def report_failure(error: BaseException, model: Model, call: Fields) -> None:
    """Report an exception of a tool. The key of `model`, which called the tool, is removed from the traceback."""
    level = logging.DEBUG if isinstance(error, _EXPECTED) else logging.WARNING
    if not LOGGER.isEnabledFor(level):
        return
    text = "tool %(tool)s raised %(error)s in session %(session_id)s"
    with suppress(Exception):  # the result of the call must reach the turn, also if a traceback cannot be formatted
        whole = "".join(traceback.format_exception(error))
        shown = "".join(_format_chain(error)) if _has_own_error(error) else whole
        shown = redact_traceback(shown, model.secrets() if isinstance(model, LanguageModel) else ())
        fields: Fields = {"error": class_name(error), **call}
        report_exception(level, text, fields, error if shown == whole else None, shown)


def report_timeout(seconds: float, call: Fields) -> None:
    """Report a tool that did not answer in time."""
    text = "tool %(tool)s did not answer within %(seconds)g s in session %(session_id)s"
    report(logging.WARNING, text, {"seconds": seconds, **call})


def _is_own_error(error: BaseException) -> bool:
    """Whether the class of an error is one of holdfast. A user's own class is not, also if it derives from one."""
    return isinstance(error, AgentError) and type(error).__module__.startswith("holdfast.")


def _has_own_error(error: BaseException) -> bool:
    """Whether an error of holdfast is in the chain of an exception."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if _is_own_error(each):
            return True
        seen.add(id(each))
        left += [each.__cause__, each.__context__, *_members(each)]
    return False


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _format_chain(error: BaseException, *, is_quiet: bool = False, seen: set[int] | None = None) -> Iterator[str]:
    """Yield the traceback of an exception and of what led to it, with no text of an error of holdfast or of what caused
    such an error (`is_quiet`)."""
    seen = set() if seen is None else seen
    seen.add(id(error))
    is_quiet = is_quiet or _is_own_error(error)
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _format_chain(before, is_quiet=is_quiet, seen=seen)
        yield "\nThe exception above led to this one:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    if is_quiet:
        yield f"{class_name(error)}{f' ({error.code})' if isinstance(error, AgentError) else ''}\n"
    else:
        yield from traceback.format_exception_only(error)
    for each in _members(error):
        if id(each) not in seen:
            yield textwrap.indent("".join(_format_chain(each, is_quiet=is_quiet, seen=seen)), "  ")
