"""The same Idempotency-Key and the same body get the same answer, for a day.

The first request puts a mark that runs out by itself, so that a server that dies does not block its key for ever; the
mark is renewed while the request runs, and replaced by the answer when it is done. Only what succeeded is kept: after a
failure the same request may be tried again. An answer tells of a session or of memories, so it goes when these are
deleted or forgotten, and is encrypted where the store is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from holdfast.concurrency import off_thread
from holdfast.errors import InvalidArgument, KeyInUse, KeyReused, StoreError
from holdfast.log import codec
from holdfast.log.identifiers import is_id
from holdfast.memory.memory_log import place_of
from holdfast.server.auth import Who
from holdfast.server.errors import count
from holdfast.stores.base import Store
from holdfast.stores.encryption import WRAPPED

SPACE = "answers"
ABOUT = "answers-about"  # which answers tell of a session besides those to requests about it
KEPT = 24 * 3600 * 1_000_000  # microseconds
RUNNING = 60 * 1_000_000
RENEWED = 20.0  # seconds
LARGEST = 1024 * 1024  # bytes of an answer that is kept
HEADER = b"idempotency-key"
HEADERS_KEPT = ("content-type", "location")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def own_answers(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that honours Idempotency-Key by itself."""
    endpoint.own_answers = True  # type: ignore[attr-defined]
    return endpoint


def key_of(request: Request) -> str | None:
    """The Idempotency-Key of a request: 1 to 255 printable ASCII characters."""
    found = [value for name, value in request.scope["headers"] if name == HEADER]
    if not found:
        return None
    if len(found) > 1 or not 1 <= len(found[0]) <= 255 or not all(32 <= each < 127 for each in found[0]):
        raise InvalidArgument("Idempotency-Key: send one, of 1 to 255 printable ASCII characters")
    key: str = found[0].decode("ascii")
    return key


def scope_of(request: Request, who: Who) -> str | None:
    """What a key is unique in, besides the tenant: the user, and what is asked for. The same for every retry."""
    key = key_of(request)
    if key is None:
        return None
    path: str = request.scope["path"]
    return sha256(codec.encode([who.user, request.method, path, key])).hexdigest()


def forget_session(store: Store, session_id: str) -> None:
    """Drop the answers that tell of a session: it was deleted, erased, or something of it redacted. Blocks."""
    for space in (SPACE, ABOUT):
        prefix, after = _of_session(session_id), _of_session(session_id)
        while page := [each for each in store.slips(space, after=after) if each[0].startswith(prefix)]:
            for key, value in page:
                if space == ABOUT:
                    store.drop_slip(SPACE, value.decode())
                store.drop_slip(space, key)
            after = page[-1][0]


def tells_of_memories(response: Response, user_id: str | None, app_name: str | None) -> Response:
    """Mark an answer that shows memories, so that it goes when one of them is forgotten."""
    response.about = _memories_of(user_id, app_name)  # type: ignore[attr-defined]
    return response


def forget_memories(store: Store, user_id: str | None, app_name: str | None) -> None:
    """Drop the answers that show memories of a user, or of an app where they are nobody's. Blocks."""
    forget_session(store, _memories_of(user_id, app_name))


def _memories_of(user_id: str | None, app_name: str | None) -> str:
    return "\nmemories " + sha256(codec.encode(list(place_of(user_id, app_name)))).hexdigest()


def _of_session(session_id: str) -> str:
    return f"{session_id}\n"  # no id has a line break in it


async def once(request: Request, who: Who, run: Callable[[], Awaitable[Response]]) -> Response:
    """Run a request, or give the answer that it got before."""
    key, scope = key_of(request), scope_of(request, who)
    if key is None or scope is None:
        return await run()
    session_id: str = request.path_params.get("session_id", "")
    answers = _Answers(who.store, _of_session(session_id) + scope if is_id(session_id) else scope)
    digest = sha256(request.scope["query_string"] + b"\n" + await request.body()).hexdigest()
    found = await off_thread(answers.begin, digest)
    if found is not None:
        if found["digest"] != digest:
            raise KeyReused(request.scope["path"], key)
        if "status" not in found:
            raise KeyInUse(key)
        return _again(found)
    renewal = asyncio.create_task(answers.renew(digest))
    try:
        response = await run()
    except Exception:
        await off_thread(answers.forget)
        raise
    finally:
        renewal.cancel()
        with suppress(asyncio.CancelledError):
            await renewal  # it must not write after what comes next
    body = getattr(response, "body", None)
    if response.status_code >= 300 or not isinstance(body, bytes) or len(body) > LARGEST:
        await off_thread(answers.forget)
        return response
    headers = {name: response.headers[name] for name in HEADERS_KEPT if name in response.headers}
    kept = {"digest": digest, "status": response.status_code, "headers": headers, "body": body.decode()}
    about = getattr(response, "about", None) or _new_session(body)
    try:
        await off_thread(answers.keep, kept, about if about != session_id else None)
    except StoreError as error:
        # What was asked for is done and stored; that a retry will not know it is no reason to hide it.
        count(error, request.app.state.server.metrics)
    return response


def _new_session(body: bytes) -> str | None:
    """The id of the session that an answer shows."""
    try:
        found = codec.decode(body)
    except ValueError:
        return None
    is_session = isinstance(found, dict) and found.keys() >= {"id", "work_dir", "status"}
    return found["id"] if is_session and is_id(found["id"]) else None


def _again(kept: dict[str, Any]) -> Response:
    response = Response(kept["body"].encode(), kept["status"], kept["headers"])
    response.headers["Idempotency-Replayed"] = "true"
    return response


class _Answers:
    """The slip of one key."""

    def __init__(self, store: Store, place: str) -> None:
        self._store, self._place = store, place

    def begin(self, digest: str) -> dict[str, Any] | None:
        """Put the mark; or what is there already."""
        found = self._store.put_slip(SPACE, self._place, self._mark(digest), only_new=True, expires=self._in(RUNNING))
        if found is None:
            return None
        opened: dict[str, Any] = codec.decode(_opened(self._store, found, self._place))
        return opened

    async def renew(self, digest: str) -> None:
        while True:
            await asyncio.sleep(RENEWED)
            with suppress(StoreError):  # the next one may succeed, and the answer itself will tell
                await off_thread(self._renew, digest)

    def _renew(self, digest: str) -> None:
        self._store.put_slip(SPACE, self._place, self._mark(digest), expires=self._in(RUNNING))

    def keep(self, answer: dict[str, Any], about: str | None) -> None:
        expires = self._in(KEPT)
        if about is not None:  # before the answer: none must be left that nobody would find
            digest = sha256(self._place.encode()).hexdigest()
            self._store.put_slip(ABOUT, _of_session(about) + digest, self._place.encode(), expires=expires)
        value = _sealed(self._store, codec.encode(answer), self._place)
        self._store.put_slip(SPACE, self._place, value, expires=expires)

    def forget(self) -> None:
        with suppress(StoreError):  # the mark runs out by itself
            self._store.drop_slip(SPACE, self._place)

    def _mark(self, digest: str) -> bytes:
        return _sealed(self._store, codec.encode({"digest": digest}), self._place)

    def _in(self, microseconds: int) -> int:
        return self._store.ids.now() + microseconds


def _sealed(store: Store, value: bytes, place: str) -> bytes:
    """An answer holds content: in an encrypted store it is encrypted as well, with a key of its own."""
    keys = getattr(store, "_keys", None)
    if keys is None or not keys.has_master:
        return b"\0" + value
    wrapped, key = keys.vault.new_key(place.encode())
    sealed: bytes = b"\1" + wrapped + key.seal(value, place.encode())
    return sealed


def _opened(store: Store, value: bytes, place: str) -> bytes:
    if value[:1] == b"\0":
        return value[1:]
    key = store._keys.vault.unwrap(value[1 : 1 + WRAPPED], place.encode())  # type: ignore[attr-defined]
    opened: bytes = key.open(value[1 + WRAPPED :], place.encode())
    return opened
