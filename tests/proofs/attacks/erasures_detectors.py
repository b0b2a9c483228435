"""Detectors of bugs in redaction and erasure. They return what they found; nothing means all is well."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast import File, Message, Session
from holdfast.errors import AgentError, KeyReused, WrongKey
from holdfast.server.event_stream import follow_tail
from holdfast.server.idempotency import _AnswerRecord
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.kept_answers import ANSWERS, open_answer
from holdfast.worker.feed import Feed, TailItem
from holdfast.worker.sweep import sweep
from tests.proofs.models import make_directory

MASTER, OTHER = sha256(b"master").digest(), sha256(b"other").digest()
PATIENCE = 5.0


@contextmanager
def _open_stores() -> Iterator[list[Store]]:
    with (
        make_directory() as home,
        SQLiteStore(home / "log.db") as plain,
        SQLiteStore(home / "sealed.db", key=MASTER) as sealed,
    ):
        yield [MemoryStore(), plain, sealed]


def _read_texts(store: Store) -> str:
    """What the tables of a store hold of logs, opened where it is sealed."""
    if isinstance(store, MemoryStore):
        logs = store._memory.logs.values()
        return repr([([row.body for row in kept.rows], kept.names, kept.blobs) for kept in logs])
    assert isinstance(store, SQLiteStore)
    found: list[Any] = [store._fetch_all("SELECT * FROM blobs"), store._fetch_all("SELECT * FROM once")]
    for (number,) in store._fetch_all("SELECT log FROM logs"):
        rows = store._scan(number, 0, 1 << 31, limit=None, reverse=False, types=None, marked=False, since=None)
        found += [[row.body for row in rows], store._list_names(number, "state/", 1 << 31)]
    return repr(found)


def _make_family(store: Store) -> tuple[Session, int]:
    parent = Session("parent", store=store, user_id="alice", title="latetitle")
    at = parent.add_message(Message.user("sharedwords"))
    parent.add_message(Message.user("latewords", File(data=b"latebytes", media_type="text/plain")))
    parent.set_state("latename", "latevalue")
    return parent, at


def find_deleted_parents(seed: int) -> list[str]:
    """What a deleted parent said stays only as far as a living fork shows it."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            parent, at = _make_family(store)
            fork = parent.fork("fork", at=at)
            store.delete("parent")
            held = _read_texts(store)
            late = [word for word in ("latewords", "latebytes", "latename", "latevalue") if word in held]
            found += [f"{store!r}: {late} of the deleted parent"] if late or len(_blobs(store)) else []
            found += [] if fork.verify() else [f"{store!r}: the fork does not verify"]
            store.delete("fork")
            parent, at = _make_family(store)
            fork, far = parent.fork("fork", at=at), parent.fork("far")
            store.delete("parent")
            far.erase(reason="asked", actor="officer")
            fork.erase(reason="asked", actor="officer")
            held = _read_texts(store)
            found += [f"{store!r}: {word} after both erasures" for word in ("sharedwords", "latewords") if word in held]
            found += [] if fork.verify() and far.verify() else [f"{store!r}: an erased fork does not verify"]
            for name in ("fork", "far"):
                store.delete(name)
            parent, at = _make_family(store)
            fork = parent.fork("fork", at=at)
            fork.erase(reason="asked", actor="officer")
            store.delete("parent")
            found += [f"{store!r}: an erased fork keeps it"] if "sharedwords" in _read_texts(store) else []
    return found


def _blobs(store: Store) -> list[Any]:
    if isinstance(store, MemoryStore):
        return [digest for kept in store._memory.logs.values() for digest in kept.blobs]
    assert isinstance(store, SQLiteStore)
    return store._fetch_all("SELECT 1 FROM blobs")


def find_lost_races(seed: int) -> list[str]:
    """A deletion comes between the plan of an erasure and its transaction."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            parent, at = _make_family(store)
            fork = parent.fork("fork", at=at)
            apply = store.apply_erasure

            def lose(log: Any, drafts: Any, plan: Any, store: Store = store, apply: Any = apply) -> Any:
                store.delete("parent")
                return apply(log, drafts, plan)

            store.apply_erasure = lose  # type: ignore[method-assign, assignment]
            parent.erase(reason="asked", actor="officer")
            found += [f"{store!r}: the fork still shows it"] if "sharedwords" in fork.export() else []
    return found


def find_kept_answers(seed: int) -> list[str]:
    """Kept answers go with the text in them, a late one too, and their old copies cannot be opened."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            for way in ("delete", "redact", "erase"):
                session = Session(way, store=store)
                seq = session.add_message(Message.user("secret"))
                kept, late = (_AnswerRecord(store, ("session", way), name) for name in ("kept", "late"))
                for each in (kept, late):
                    each.put_mark("digest")
                kept.store_answer({"digest": "digest", "body": "secret"}, None)
                copies = store.kv_list(ANSWERS)
                if way == "delete":
                    store.delete(way)
                elif way == "redact":
                    session.redact(seq, reason="asked")
                else:
                    session.erase(reason="asked", actor="officer")
                late.store_answer({"digest": "digest", "body": "secret"}, None)
                left = [open_answer(store, value, key) or b"" for key, value in store.kv_list(ANSWERS)]
                found += [f"{store!r}: {way} leaves {each!r}" for each in left if b"secret" in each]
                if way == "erase" and getattr(store, "_keys", None) is not None and store._keys.has_master:  # type: ignore[attr-defined]
                    old = [open_answer(store, value, key) or b"" for key, value in copies]
                    found += [f"{store!r}: an old copy opens"] if any(b"secret" in each for each in old) else []
                for key, _ in store.kv_list(ANSWERS):
                    store.kv_delete(ANSWERS, key)
    return found


def find_replaced_keys(seed: int) -> list[str]:
    """One process erases or rotates, and another has the old keys in memory."""
    found: list[str] = []
    with ExitStack() as stack:
        home = stack.enter_context(make_directory())
        here, there = (stack.enter_context(SQLiteStore(home / "log.db", key=MASTER)) for _ in range(2))
        parent = Session("parent", store=here)
        parent.add_message(Message.user("sharedwords"))
        fork = Session.open(parent.fork("fork").id, store=there)
        found += [] if len(fork.messages) == 1 else ["the fork shows too little"]
        parent.erase(reason="asked", actor="officer")
        try:
            if [message.text for message in fork.messages] != ["[erased]"] or not fork.verify():
                found.append("the fork does not verify beside a replaced key")
        except WrongKey as error:
            found.append(f"a replaced key: {error}")
        one = Session("one", store=here)
        one.add_message(Message.user("words"))
        theirs = Session.open("one", store=there)
        found += [] if theirs.messages else ["nothing to read"]
        here.rotate_key(OTHER)
        try:
            theirs.erase(reason="asked", actor="officer")
        except WrongKey:
            pass
        try:
            here.rotate_key(MASTER)
        except AgentError as error:
            found.append(f"a rotation after an erasure with the old master key: {error}")
        found += [] if one.verify() else ["the session does not verify after a rotation"]
    return found


def find_retries(seed: int) -> list[str]:
    """The same key and content is the same after a redaction, and other content is not."""
    found: list[str] = []
    with _open_stores() as stores:
        for store in stores:
            session = Session("s", store=store)
            seq = session.add_message(Message.user("my number is 4711"), once="key")
            session.redact(seq, reason="asked")
            try:
                if session.add_message(Message.user("my number is 4711"), once="key") != seq:
                    found.append(f"{store!r}: a retry is stored again")
            except KeyReused:
                found.append(f"{store!r}: a retry is taken for another")
            try:
                session.add_message(Message.user("something that is much longer than it was"), once="key")
                found.append(f"{store!r}: other content is taken for a retry")
            except KeyReused:
                pass
    return found


def find_tails(seed: int) -> list[str]:
    return asyncio.run(_find_tails())


async def _find_tails() -> list[str]:
    """A reader that joins a tail late, after a removal that this process has not heard of."""
    found: list[str] = []
    store = MemoryStore()
    for has_heard in (False, True):
        session = Session(f"s{has_heard}", store=store)
        feed = Feed(store, poll=60, tick=60)
        feed.open()
        tail = await feed.open_tail(store, session.log)
        seq = session.add_message(Message.user("a secret"))
        await tail.catch_up()
        session.redact(seq, reason="asked")
        if has_heard:
            await tail.catch_up()
        items: list[TailItem] = []
        async for each in follow_tail(feed, await feed.open_tail(store, session.log), seq - 1, 0):
            items += each
            if items[-1].seq >= seq:
                break
        told = [item for item in items if item.event is not None and b"secret" in (item.event.body or b"")]
        found += ["a redacted text is told"] if told else []
        await feed.close()
    feed = Feed(store, poll=0.01, tick=60)
    feed.open()
    session = Session("deleted", store=store)
    tail = await feed.open_tail(store, session.log)
    session.add_message(Message.user("a secret"))
    await tail.catch_up()
    store.delete("deleted")
    async with asyncio.timeout(PATIENCE):
        while not tail.is_deleted:
            await asyncio.sleep(0.01)
    found += ["a tail holds what a deleted session said"] if tail.items else []
    await feed.close()
    return found


def find_pages(seed: int) -> list[str]:
    """Texts that were redacted after their rows had moved between pages."""
    found: list[str] = []
    for number in (2, 3, 5, 6):
        rng = random.Random(number)
        with make_directory() as home, SQLiteStore(home / "log.db", synchronous="NORMAL") as store:
            sessions = [Session(f"s{each}", store=store) for each in range(12)]
            added = []
            for each in range(400):
                session, word = rng.choice(sessions), f"secret{each}x"
                added.append((session, session.add_message(Message.user(word + "z" * rng.randrange(1200))), word))
            gone = rng.sample(added, 100)
            for session, seq, _ in gone:
                session.redact(seq, reason="asked")
            sweep(store)
            raw = b"".join(path.read_bytes() for path in Path(home).glob("log.db*"))
            found += [f"{word} is in the file" for _, _, word in gone if word.encode() in raw]
    return found


def find_removed_texts(seed: int) -> list[str]:
    from tests.proofs.removals import removed_texts  # imported late: it starts servers

    return removed_texts(2, seed).failures


DETECTORS: dict[str, Callable[[int], list[str]]] = {
    "deleted parents": find_deleted_parents,
    "lost races": find_lost_races,
    "kept answers": find_kept_answers,
    "replaced keys": find_replaced_keys,
    "retries after redactions": find_retries,
    "removed tails": find_tails,
    "pages": find_pages,
    "removed texts": find_removed_texts,
}
