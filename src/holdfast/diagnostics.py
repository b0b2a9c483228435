"""What operators read: records of the logger `holdfast` of Python's `logging`. They are no events of a log.

Two things stay true. A record above DEBUG has no content: no message, argument, result, value or word of a provider,
except the traceback of a user's own tool. And the library configures nothing: it adds a `NullHandler`, so that a
program that does not ask for records gets none.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TypedDict

LOGGER = logging.getLogger("holdfast")
LOGGER.addHandler(logging.NullHandler())

SLOW_SECONDS = 1.0  # a store call that takes longer is reported


class Fields(TypedDict, total=False):
    """The facts of a record, each an attribute of the record, for formatters that print fields."""

    session_id: str | None
    run_id: str | None
    agent: str | None
    tool: str
    call_id: str
    provider: str
    model: str | None
    attempt: int  # number of an attempt, from 1
    seconds: float
    code: str  # of an error of holdfast
    status: int | None  # HTTP status of a provider's answer
    error: str  # class of an exception
    store: str
    kind: str  # of a log that is no session
    key: str  # of such a log, for example of an entity
    looked: int  # sessions that a sweep looked at
    archived: int
    purged: int
    kept: int


FIELDS = tuple(Fields.__annotations__)


def report(level: int, text: str, fields: Fields) -> None:
    """Write a record. `text` may name fields, as in "tool %(tool)s"; a field that is None is left out."""
    if LOGGER.isEnabledFor(level):
        _emit(level, text, fields, None, None)


def report_slow_store(store: str, seconds: float) -> None:
    """Report a call of a store that took longer than `SLOW_SECONDS`. The store compares: it does so at each call."""
    report(logging.WARNING, "a call of the store %(store)s took %(seconds).1f s", {"store": store, "seconds": seconds})


def report_exception(level: int, text: str, fields: Fields, exception: BaseException | None, traceback: str) -> None:
    """Write a record with a traceback, as text. `exception` goes with it for handlers that take exceptions; None if the
    text leaves out a part that no handler may see."""
    if LOGGER.isEnabledFor(level):
        _emit(level, text, fields, exception, traceback)


def _emit(level: int, text: str, fields: Fields, exception: BaseException | None, traceback: str | None) -> None:
    facts = {name: value for name, value in fields.items() if value is not None}
    exc_info = None if exception is None else (type(exception), exception, exception.__traceback__)
    # A handler that raises must not change the outcome of the call that is reported, such as a stored append.
    with suppress(Exception):
        path, line, function, _ = LOGGER.findCaller(stacklevel=3)
        record = LOGGER.makeRecord(LOGGER.name, level, path, line, text, (facts,), exc_info, function, facts)
        # Formatters print this text and do not format the exception again.
        record.exc_text = None if traceback is None else traceback.rstrip("\n")
        LOGGER.handle(record)


def read_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the facts of a record."""
    return {name: vars(record)[name] for name in FIELDS if name in vars(record)}


def class_name(error: BaseException) -> str:
    """Return the class of an exception with its module."""
    return f"{type(error).__module__}.{type(error).__qualname__}"
