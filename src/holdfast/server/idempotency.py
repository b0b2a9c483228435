"""Idempotency: the same Idempotency-Key and the same body get the same answer, for a day.

The first request puts a mark that expires by itself, so that a server that dies does not block its key for ever. The
mark is renewed while the request runs, and replaced by the answer at its end. Only answers of success are kept: after a
failure the same request may be tried again. An answer shows a session or memories, so the store drops it in the
transaction that removes text from these, and it is encrypted if the store is.
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
from holdfast.errors import AgentExists, InvalidArgument, KeyInUse, KeyReused, SessionExists, StoreError
from holdfast.log import codec
from holdfast.log.chain import ERASING_TYPES
from holdfast.log.identifiers import is_id
from holdfast.memory.memory_log import memory_log_key
from holdfast.server.auth import Caller
from holdfast.server.errors import count_error
from holdfast.stores.base import Store
from holdfast.stores.kept_answers import ANSWER_LINKS, ANSWERS, LogName, answers_prefix, open_answer, seal_answer

NEW_IDS = "made"  # key-value space: the id that a key creates something under
ANSWER_LIFETIME = 24 * 3600 * 1_000_000  # microseconds
MARK_LIFETIME = 60 * 1_000_000
RENEWAL_SECONDS = 20.0  # seconds
MAX_ANSWER_BYTES = 1024 * 1024  # bytes of an answer that is kept
HEADER = b"idempotency-key"
HEADERS_KEPT = ("content-type", "location")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
T = TypeVar("T")


def handles_idempotency_itself(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that handles Idempotency-Key itself."""
    endpoint.own_answers = True  # type: ignore[attr-defined]
    return endpoint


def removes_content(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that removes content of a session, and whose answer shows none."""
    endpoint.removes_content = True  # type: ignore[attr-defined]
    return endpoint


def key_of(request: Request) -> str | None:
    """Return the Idempotency-Key of a request, of 1 to 255 printable ASCII characters; None without one."""
    found = [value for name, value in request.scope["headers"] if name == HEADER]
    if not found:
        return None
    if len(found) > 1 or not 1 <= len(found[0]) <= 255 or not all(32 <= each < 127 for each in found[0]):
        raise InvalidArgument("Idempotency-Key: send one, of 1 to 255 printable ASCII characters")
    key: str = found[0].decode("ascii")
    return key


def scope_of(request: Request, caller: Caller) -> str | None:
    """Return the key of a request made unique to its user, method and path; the same for every retry."""
    key = key_of(request)
    if key is None:
        return None
    path: str = request.scope["path"]
    return sha256(codec.encode([caller.user, request.method, path, key])).hexdigest()


def create_once(
    caller: Caller, request: Request, wanted_id: str | None, find: Callable[[str], T | None], create: Callable[[str], T]
) -> T:
    """Return what `create` creates under the wanted id or a new one; or what an earlier try of this request created.

    A server may die after it has created something and before it has stored its answer. So the id is stored under the
    key first: a retry finds the id, and `find` returns what was created under it.
    """
    store, place = caller.store, scope_of(request, caller)
    id = wanted_id or store.clock.new_id()
    if place is None:
        return create(id)
    expires = store.clock.now() + ANSWER_LIFETIME
    stored_id = store.kv_put(NEW_IDS, place, id.encode(), only_new=True, expires=expires)
    if stored_id is not None and (wanted_id is None or stored_id == wanted_id.encode()):
        id = stored_id.decode()
        existing = find(id)
        if existing is not None:
            return existing
    elif stored_id is not None:  # an earlier request with this key wanted another id, and failed
        store.kv_put(NEW_IDS, place, id.encode(), expires=expires)
    try:
        return create(id)
    except (AgentExists, SessionExists):
        store.kv_delete(NEW_IDS, place)  # another request created it: a retry must not take it for its own
        raise


def tag_with_memories(response: Response, user_id: str | None, app_name: str | None) -> Response:
    """Mark an answer that shows memories, so that it is dropped when one of them is forgotten."""
    response.about = memory_log_key(user_id, app_name)  # type: ignore[attr-defined]
    return response


async def answer_once(
    request: Request, caller: Caller, run: Callable[[], Awaitable[Response]], *, has_content: bool = True
) -> Response:
    """Run a request, or return the answer that its key got before. Without content, the answer outlives the session:
    it says only that content was removed, and a retry must find it."""
    key, scope = key_of(request), scope_of(request, caller)
    if key is None or scope is None:
        return await run()
    session_id: str = request.path_params.get("session_id", "")
    path_log = ("session", session_id) if has_content and is_id(session_id) else None
    answers = _AnswerRecord(caller.store, path_log, scope)
    digest = sha256(request.scope["query_string"] + b"\n" + await request.body()).hexdigest()
    found = await off_thread(answers.put_mark, digest)
    if found is not None:
        if found["digest"] != digest:
            raise KeyReused(request.scope["path"], key)
        if "status" not in found:
            raise KeyInUse(key)
        return _replay_answer(found)
    renewal = asyncio.create_task(answers.renew_until_cancelled())
    try:
        response = await run()
    except Exception:
        await off_thread(answers.drop_mark)
        raise
    finally:
        renewal.cancel()
        with suppress(asyncio.CancelledError):
            await renewal  # it must not write a mark over the answer
    body = getattr(response, "body", None)
    if response.status_code >= 300 or not isinstance(body, bytes) or len(body) > MAX_ANSWER_BYTES:
        await off_thread(answers.drop_mark)
        return response
    headers = {name: response.headers[name] for name in HEADERS_KEPT if name in response.headers}
    kept = {"digest": digest, "status": response.status_code, "headers": headers, "body": body.decode()}
    about = getattr(response, "about", None) or _find_session(body)
    try:
        await off_thread(answers.store_answer, kept, about)
    except StoreError as error:
        # The request has succeeded and is stored: the client gets its answer, though a retry will not find it.
        count_error(error, request.app.state.server.metrics)
    return response


def _find_session(body: bytes) -> LogName | None:
    """Return the session that an answer shows."""
    try:
        found = codec.decode(body)
    except ValueError:
        return None
    is_session = isinstance(found, dict) and found.keys() >= {"id", "work_dir", "status"}
    return ("session", found["id"]) if is_session and is_id(found["id"]) else None


def _replay_answer(kept: dict[str, Any]) -> Response:
    response = Response(kept["body"].encode(), kept["status"], kept["headers"])
    response.headers["Idempotency-Replayed"] = "true"
    return response


class _AnswerRecord:
    """The stored entry of one key: a mark, then the answer.

    The answer only takes the place of this request's own mark. A removal drops the mark with everything else about the
    session, so an answer that is late is not kept.
    """

    def __init__(self, store: Store, log: LogName | None, scope: str) -> None:
        self._store, self._log = store, log
        self._entry_key = scope if log is None else answers_prefix(log) + scope
        self._mark = b""

    def put_mark(self, digest: str) -> dict[str, Any] | None:
        """Put the mark and return None; or return the entry that is there already."""
        store = self._store
        content = codec.encode({"digest": digest, "by": store.clock.new_id()})
        self._mark = seal_answer(store, self._log, content, self._entry_key)
        while True:
            expires = self._expiry_after(MARK_LIFETIME)
            found = store.kv_put(ANSWERS, self._entry_key, self._mark, only_new=True, expires=expires)
            if found is None:
                return None
            opened = open_answer(store, found, self._entry_key)
            if opened is not None:
                decoded: dict[str, Any] = codec.decode(opened)
                return decoded
            if store.kv_replace(ANSWERS, self._entry_key, found, self._mark, expires=expires):
                return None  # no process can open what was there

    async def renew_until_cancelled(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            with suppress(StoreError):  # the next renewal may succeed
                await off_thread(self._renew_mark)

    def _renew_mark(self) -> None:
        expires = self._expiry_after(MARK_LIFETIME)
        self._store.kv_replace(ANSWERS, self._entry_key, self._mark, self._mark, expires=expires)

    def store_answer(self, answer: dict[str, Any], about: LogName | None) -> None:
        expires = self._expiry_after(ANSWER_LIFETIME)
        if about is not None and about != self._log:
            # Before the answer: an answer without its link could not be dropped.
            link = answers_prefix(about) + sha256(self._entry_key.encode()).hexdigest()
            self._store.kv_put(ANSWER_LINKS, link, self._entry_key.encode(), expires=expires)
            if _has_lost_content(self._store, about):  # before there was a link
                self._store.kv_delete(ANSWER_LINKS, link)
                self.drop_mark()
                return
        value = seal_answer(self._store, about or self._log, codec.encode(answer), self._entry_key)
        self._store.kv_replace(ANSWERS, self._entry_key, self._mark, value, expires=expires)

    def drop_mark(self) -> None:
        with suppress(StoreError):  # the mark expires by itself
            self._store.kv_delete(ANSWERS, self._entry_key)

    def _expiry_after(self, microseconds: int) -> int:
        return self._store.clock.now() + microseconds


def _has_lost_content(store: Store, log: LogName) -> bool:
    """Whether a session that a request has made is gone, or lost content, by now."""
    found = store.find(*log)
    return log[0] == "session" and (found is None or bool(store.read(found, types=ERASING_TYPES, limit=1)))
