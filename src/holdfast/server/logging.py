"""What the server says about itself: one JSON object a line on stderr, never with content, never with a key.

Whoever logs gives a fixed text and facts beside it (`extra=fields(...)`). An exception is told by its class and the
lines it passed, not by its text, which may quote what a user wrote.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any

import orjson

from holdfast.clock import REAL
from holdfast.log.events import to_datetime
from holdfast.models.provider_errors import redacted

log = logging.getLogger("holdfast.server")
access = logging.getLogger("holdfast.access")
request_id: ContextVar[str] = ContextVar("request_id", default="")

LONGEST = 2000  # characters of one text
DEEPEST = 20  # lines of a traceback
LOGGERS = ("holdfast", "uvicorn")


def fields(**facts: object) -> dict[str, Any]:
    """For `extra=`: facts that become fields of the line."""
    return {"fields": facts}


def setup(level: str, *, secrets: Iterable[str] = (), stream: IO[str] | None = None) -> None:
    """Send what holdfast and uvicorn log to stderr. `secrets` are removed wherever they turn up."""
    handler = Sink(stream or sys.stderr)
    handler.setFormatter(Lines(secrets))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # It writes whole addresses, with whatever somebody put into them; the guard has its own line for a request.
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL + 1)


def note_request(level: int, facts: dict[str, Any]) -> None:
    """One line for a request. There is one for every request, so it goes past the records of `logging`, which cost more
    than the rest of the way; nothing in it comes from outside unchecked, so nothing has to be cleaned."""
    if not access.isEnabledFor(level):
        return
    for handler in logging.getLogger(LOGGERS[0]).handlers:
        if isinstance(handler, Sink):
            name = logging.getLevelName(level).lower()
            line = {"time": to_datetime(REAL.now()), "level": name, "logger": access.name, "message": "request"}
            handler.write(orjson.dumps(line | facts).decode())
            return
    access.log(level, "request", extra={"fields": facts})


class Sink(logging.StreamHandler[IO[str]]):
    """Where the lines go."""

    def write(self, line: str) -> None:
        try:
            with self.lock or nullcontext():
                self.stream.write(line + self.terminator)
                self.flush()
        except (OSError, ValueError):
            pass  # whoever read the log is gone: requests are served all the same


class Lines(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if asked := request_id.get():
            line["request_id"] = asked
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line |= told(record.exc_info[1])
        # ASCII only: a line break of another alphabet, or a control character, is no way out of the line.
        text = json.dumps({key: self._clean(value) for key, value in line.items()}, default=_name_of)
        return text.replace("\x7f", "\\u007f")

    def _clean(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return [self._clean(each) for each in value]
        if not isinstance(value, str):
            return value
        for secret in self._secrets:
            value = value.replace(secret, "[removed]")
        return redacted(value[:LONGEST])


def told(error: BaseException) -> dict[str, Any]:
    """An exception without its text: its class, and where it came from."""
    frames = traceback.extract_tb(error.__traceback__)[-DEEPEST:]
    return {
        "error": f"{type(error).__module__}.{type(error).__qualname__}",
        "trace": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _name_of(value: object) -> str:
    """What is no JSON is not shown: its `repr` may hold anything."""
    return f"({type(value).__name__})"
