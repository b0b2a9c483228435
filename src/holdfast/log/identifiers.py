"""What may be an id, and what may not."""

from __future__ import annotations

from hashlib import sha256

from holdfast.errors import InvalidId, NotJSON
from holdfast.log import codec

MAX_ID = 128


def check_id(value: object, what: str = "session_id") -> str:
    """1 to 128 printable characters, no slash, not `.` or `..`."""
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    if not 1 <= len(value) <= MAX_ID:
        raise InvalidId(f"{what} has {len(value)} characters: use 1 to {MAX_ID}")
    if "/" in value or value in (".", "..") or not value.isprintable():
        raise InvalidId(f"{what}={value!r}: use printable characters without '/', and not '.' or '..'")
    return value


def is_id(value: object) -> bool:
    """Whether a session could have this id."""
    try:
        check_id(value)
    except InvalidId:
        return False
    return True


def check_owner(value: object, what: str) -> str | None:
    """`user_id` and `app_name`: any text of 1 to 512 bytes, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise NotJSON(f"{what} has a lone surrogate, which is not valid Unicode: replace it first") from error
    if not 1 <= len(data) <= 512:
        raise InvalidId(f"{what} has {len(data)} bytes: use 1 to 512")
    return value


def check_name(value: object, what: str, limit: int = 512) -> str:
    """The name of a state value."""
    if not isinstance(value, str) or not value:
        raise InvalidId(f"{what} must be a non-empty string, not {value!r}")
    codec.text_bytes(value, what, limit)
    return value


def call_key(uid: str, run: str, call_id: str) -> str:
    """What names one call of a tool for ever: the log, the turn, the call."""
    return f"{uid}:{run}:{call_id}"


def session_of_call(key: str) -> str:
    """Return the id of the session in which an agent that is called as a tool works: it follows from the call."""
    return "call-" + sha256(key.encode()).hexdigest()[:32]
