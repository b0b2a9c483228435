"""What went wrong at a provider, as one of our errors.

Its own words are quoted where they help, shortened, and never with a key in them: some providers repeat the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import orjson

from holdfast.errors import (
    AuthenticationFailed,
    BadResponse,
    ContextTooLong,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    RequestRejected,
)
from holdfast.models.endpoint import Endpoint

_BY_CODE: dict[str, type[ProviderError]] = {
    "authentication_error": AuthenticationFailed,
    "invalid_api_key": AuthenticationFailed,
    "permission_error": AuthenticationFailed,
    "permission_denied": AuthenticationFailed,
    "context_length_exceeded": ContextTooLong,
    "request_too_large": ContextTooLong,
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "insufficient_quota": RateLimited,
    "billing_error": RateLimited,
    "timeout_error": ProviderTimeout,
    "overloaded_error": ProviderUnavailable,
    "api_error": ProviderUnavailable,
    "server_error": ProviderUnavailable,
    "internal_server_error": ProviderUnavailable,
    "service_unavailable": ProviderUnavailable,
    "invalid_request_error": RequestRejected,
    "not_found_error": RequestRejected,
    "model_not_found": RequestRejected,
}
_BY_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationFailed,
    402: RateLimited,
    403: AuthenticationFailed,
    408: ProviderTimeout,
    409: ProviderUnavailable,
    413: ContextTooLong,
    425: ProviderUnavailable,
    429: RateLimited,
    504: ProviderTimeout,
}
_EXPLANATIONS: dict[type[ProviderError], tuple[str, str]] = {
    AuthenticationFailed: ("does not accept the API key", "check {key_source}"),
    ContextTooLong: ("says that the request is longer than the model can read", "shorten the conversation"),
    RateLimited: ("allows no more requests now", "wait, or look at the account's limits"),
    ProviderTimeout: ("timed out", "ask again"),
    ProviderUnavailable: ("failed on its side", "ask again later"),
    RequestRejected: ("does not take this request", "change the model or the options"),
}
# Endpoints that have no code for it say it in words.
_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size|limit)|prompt is too long|too many tokens|maximum (number of )?tokens"
    r"|reduce the length|exceeds? the (available )?context",
    re.IGNORECASE,
)
_NO_QUOTA = ("insufficient_quota", "billing_error")
_SECRET = re.compile(
    r"(?:bearer\s+|(?<![A-Za-z0-9])(?:(?:sk|pk|rk|gsk|xai|key|ghp|gho|pat|hf|r8)[-_]|AKIA|AIza|ya29\.|eyJ))"
    r"[A-Za-z0-9_\-.*/+=]{8,}",
    re.IGNORECASE,
)
MAX_QUOTE = 300
MIN_SECRET = 8  # characters; a shorter text is found everywhere, and is no key
MIN_LONG_SECRET = 12  # characters; of a longer key a part is a secret too


def error_from_response(
    endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes, *, now: int
) -> ProviderError:
    """The error behind an answer that is no stream; `now` is in microseconds."""
    if 300 <= status < 400:
        text = (
            f"{endpoint.place} answered with a redirect ({status}), which is not followed: check {endpoint.url_source}"
        )
        return RequestRejected(text, provider=endpoint.provider, http_status=status)
    code, message = _read_error_body(body)
    if status < 300:
        if code or message:  # an error, although the status is a success
            return _build_error(_error_class(0, code, message), endpoint, status, message)
        text = f"{endpoint.place} did not answer with a stream: check {endpoint.url_source}"
        return BadResponse(text, provider=endpoint.provider, http_status=status, retryable=False)
    kind = _error_class(status, code, message)
    retryable = False if code in _NO_QUOTA or status == 402 else None
    if headers.get("x-should-retry") in ("true", "false"):
        retryable = headers["x-should-retry"] == "true"
    return _build_error(
        kind, endpoint, status, message, retryable=retryable, retry_after=read_retry_after(headers, now)
    )


def error_from_stream(endpoint: Endpoint, error: object) -> ProviderError:
    """The error behind an `error` that came inside a stream."""
    code, message = _read_error_body(orjson.dumps({"error": error}))
    status = int(code) if code.isdecimal() and len(code) == 3 else None
    kind = _error_class(status or 0, code, message)
    return _build_error(kind, endpoint, status, message, retryable=False if code in _NO_QUOTA else None)


def read_retry_after(headers: Mapping[str, str], now: int) -> float | None:
    """Seconds that the provider asks us to wait: given in milliseconds, in seconds, or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < 1e9:
            return seconds
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.fromtimestamp(now / 1e6, UTC)).total_seconds())


def quote_message(message: str, api_key: str | None, secrets: Sequence[str] = ()) -> str:
    """A provider's words, made safe for logs: short, on one line, without keys and passwords.

    Local servers take any key, so users give them a word such as `x` or `ollama`: a key below `MIN_SECRET` characters
    is none. A short secret is removed where it stands as a word. Of a longer one any eight characters give it away:
    then nothing is quoted at all.
    """
    for secret in [*([api_key] if api_key and len(api_key) >= MIN_SECRET else []), *filter(None, secrets)]:
        if len(secret) >= MIN_LONG_SECRET and any(secret[at : at + 8] in message for at in range(len(secret) - 7)):
            return ""
        message = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", "[removed]", message)
    line = " ".join(_SECRET.sub("[removed]", message).split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"


def redact_secrets(text: str) -> str:
    """A text of unknown origin without what has the shape of a key."""
    return _SECRET.sub("[removed]", text)


def redact_traceback(text: str, secrets: Iterable[str] = ()) -> str:
    """A traceback without these secrets and without what has the shape of a key. A key has digits; a name in the source
    code, such as `key_variables`, mostly has none and stays."""
    for secret in secrets:
        if len(secret) >= MIN_SECRET:
            text = text.replace(secret, "[removed]")
    return _SECRET.sub(_replace_key, text)


def _replace_key(found: re.Match[str]) -> str:
    has_digit = any(letter.isdigit() for letter in found[0])
    return "[removed]" if has_digit or found[0][:6].lower() == "bearer" else found[0]


def _build_error(
    kind: type[ProviderError],
    endpoint: Endpoint,
    status: int | None,
    message: str,
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
) -> ProviderError:
    what, advice = _EXPLANATIONS[kind]
    advice = advice.format(key_source=endpoint.key_source)
    text = f"{endpoint.place} {what}" + (f" ({status})" if status else "")
    # What is said about a rejected key tends to repeat it.
    words = "" if kind is AuthenticationFailed else quote_message(message, endpoint.api_key, endpoint.secrets)
    text += f": {words.rstrip('.')}; {advice}" if words else f": {advice}"
    return kind(text, provider=endpoint.provider, http_status=status, retryable=retryable, retry_after=retry_after)


def _error_class(status: int, code: str, message: str) -> type[ProviderError]:
    found = _BY_CODE.get(code)
    if found is None or found is RequestRejected:
        if status in (0, 400, 413, 422) and _TOO_LONG.search(message):
            return ContextTooLong
        found = found or _BY_STATUS.get(status) or (_BY_STATUS.get(int(code)) if code.isdecimal() else None)
    if found is not None:
        return found
    return ProviderUnavailable if status >= 500 or status == 0 else RequestRejected


def _read_error_body(body: bytes) -> tuple[str, str]:
    """Code and message of an error body: OpenAI's, Anthropic's, Google's list of one, or just words."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", ""  # a page of HTML says nothing
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return "", error if isinstance(error, str) else ""
    message = error.get("message") or error.get("detail")
    for name in ("code", "type"):
        code = error.get(name)
        if isinstance(code, str) and code in _BY_CODE:
            return code, message if isinstance(message, str) else ""
    code = error.get("code")
    return str(code) if isinstance(code, (str, int)) else "", message if isinstance(message, str) else ""
