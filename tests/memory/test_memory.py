"""Memory on every store: keeping, finding, updating, forgetting, and whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import KeywordMemoryService, Memory, Session, VectorMemoryService, aio
from holdfast.clock import FixedClock
from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.memory.memory_log import MemoryLog
from holdfast.stores import MemoryStore
from holdfast.stores.base import Store
from holdfast.testing.contract import run_together
from tests.memory.embedders import MeaningEmbedder, list_keys


@pytest.fixture(params=["keyword", "vector"])
def memory(request: pytest.FixtureRequest, store: Store) -> Memory:
    service = KeywordMemoryService() if request.param == "keyword" else VectorMemoryService()
    return Memory(service=service, store=store)


def test_the_promised_lines(store: Store) -> None:
    memory = Memory(service=VectorMemoryService(), store=store)
    memory.store("patient_history", "Chronic migraines")
    (found,) = memory.recall(["patient_history"])
    assert str(found) == found.text == "Chronic migraines"
    memory.search("headache", limit=5)  # hashed n-grams know spelling, not meaning
    assert list_keys(memory.search("migraine", limit=5)) == ["patient_history"]
    assert memory.forget("patient_history")
    assert memory.recall(["patient_history"]) == []
    assert memory.ingest_from_session(Session(store=store)) == []


def test_what_is_kept_comes_back(memory: Memory) -> None:
    kept = memory.store("diet", "Eats no meat", kind="preference", confidence=0.5)
    assert (kept.key, kept.text, kept.kind, kept.confidence) == ("diet", "Eats no meat", "preference", 0.5)
    assert memory.recall("diet") == memory.recall(["diet"]) == [kept]
    assert kept.created_at == kept.updated_at
    assert (kept.source, kept.expires_at, kept.score) == (None, None, None)
    (found,) = memory.search("meat")
    assert found.score is not None
    assert found.score > 0


def test_recall_keeps_the_order_and_leaves_out_what_is_missing(memory: Memory) -> None:
    for key in "abc":
        memory.store(key, f"text of {key}")
    assert list_keys(memory.recall(["c", "nothing", "a"])) == ["c", "a"]
    assert memory.recall([]) == []


def test_the_same_key_again_updates(memory: Memory, store: Store) -> None:
    first = memory.store("home", "Lives in Berlin")
    again = memory.store("home", "Lives in Paris")
    assert again.created_at == first.created_at
    assert again.updated_at >= first.updated_at
    assert [each.text for each in memory.list()] == ["Lives in Paris"]
    assert memory.search("Berlin") == []
    assert list_keys(memory.search("Paris")) == ["home"]
    log = MemoryLog(store, None, None).find()
    assert log is not None
    head = store.head(log).head
    assert memory.store("home", "Lives in Paris") == again  # nothing new: nothing is written
    assert store.head(log).head == head
    assert store.verify(log)


def test_forgetting_takes_every_version(memory: Memory, store: Store) -> None:
    memory.store("k", "amethyst one")
    memory.store("k", "amethyst two")
    memory.store("other", "an emerald stays")
    assert memory.search("amethyst")
    assert memory.forget("k") is True
    assert memory.forget("k") is False
    assert memory.search("amethyst") == memory.recall("k") == []
    assert list_keys(memory.list()) == ["other"]
    log = MemoryLog(store, None, None).find()
    assert log is not None
    assert store.verify(log)
    assert b"amethyst" not in b"".join(row.body or row.tombstone or b"" for row in store.walk(log))
    assert b'"k"' not in b"".join(row.body or row.tombstone or b"" for row in store.walk(log))
    assert list(store.refs(log, "memory/")) == ["memory//other"]
    kept = memory.store("k", "a new one")
    assert kept.created_at == kept.updated_at
    assert store.verify(log)


def test_search_meets_words_in_other_forms(memory: Memory) -> None:
    memory.store("a", "Suffers from chronic migraines")
    memory.store("b", "Is allergic to peanuts")
    memory.store("c", "Likes running in the morning")
    assert list_keys(memory.search("migraine"))[0] == "a"
    assert list_keys(memory.search("What allergies are there?"))[0] == "b"
    assert list_keys(memory.search("runs"))[0] == "c"
    assert memory.search("spaceship") == []
    assert memory.search("") == memory.search("  ?! ") == []


def test_search_puts_rare_words_first(memory: Memory) -> None:
    for n in range(20):
        memory.store(f"meeting-{n}", f"Meeting about topic {n}")
    memory.store("deep", "Meeting about submarines")
    assert list_keys(memory.search("the meeting about submarines", limit=1)) == ["deep"]


def test_search_filters_by_kind_and_confidence(memory: Memory) -> None:
    for n in range(12):
        memory.store(f"k{n:02}", f"apple number {n}", kind="even" if n % 2 == 0 else "odd", confidence=n / 12)
    assert {each.kind for each in memory.search("apple", limit=12, kind="odd")} == {"odd"}
    assert len(memory.search("apple", limit=12, kind="odd")) == 6
    assert len(memory.search("apple", limit=12, min_confidence=0.75)) == 3
    assert len(memory.search("apple", limit=4)) == 4
    assert memory.search("apple", limit=0) == []


def test_a_list_pages_in_order_of_key(memory: Memory) -> None:
    for n in range(25):
        memory.store(f"k{n:02}", f"text {n}", kind="odd" if n % 2 else "even")
    found, after = [], None
    while page := memory.list(limit=7, after=after):
        found += list_keys(page)
        after = page[-1].key
    assert found == [f"k{n:02}" for n in range(25)]
    assert list_keys(memory.list(kind="odd", limit=3, after="k05")) == ["k07", "k09", "k11"]
    assert memory.list(limit=0) == []


def test_each_user_app_and_tenant_has_memories_of_its_own(memory: Memory, store: Store) -> None:
    scopes: list[dict[str, Any]] = [
        {"user_id": "alice"},
        {"user_id": "bob"},
        {"user_id": "alice", "app_name": "shop"},
        {"app_name": "shop"},
        {"app_name": "="},
        {},
        {"user_id": "="},
        {"user_id": "a/b%2F\0é"},
    ]
    others = [store, store.for_tenant("t2")]
    for tenant in others:
        bound = memory.on(tenant) if tenant is store else Memory(memory.service, store=tenant)
        for n, scope in enumerate(scopes):
            bound.store("where", f"secret of {tenant.tenant or 'nobody'} number {n}", **scope)
    for tenant in others:
        bound = Memory(memory.service, store=tenant)
        for n, scope in enumerate(scopes):
            text = f"secret of {tenant.tenant or 'nobody'} number {n}"
            assert [each.text for each in bound.list(**scope)] == [text]
            assert [each.text for each in bound.search("secret number", 50, **scope)] == [text]
            assert [each.text for each in bound.recall("where", **scope)] == [text]
    assert memory.forget("where", user_id="alice")
    assert memory.recall("where", user_id="alice", app_name="shop")
    assert memory.recall("where", user_id="bob")


def test_a_memory_may_have_a_scope_by_default(store: Store) -> None:
    alice = Memory(store=store, user_id="alice", app_name="shop")
    alice.store("name", "Alice")
    assert Memory(store=store).recall("name") == []
    assert Memory(store=store).recall("name", user_id="alice", app_name="shop")
    assert alice.recall("name", user_id="bob") == []


def test_hostile_text_and_keys_come_back_exactly(memory: Memory) -> None:
    for n, text in enumerate(["'; DROP TABLE events; --", "𝕳 é ﷺ 🏳️‍🌈", '"quoted" AND NOT x*', "x/y/../z", "钻石"]):
        memory.store(text, f"{text}\0\n{n}")
        assert memory.recall(text)[0].text == f"{text}\0\n{n}"
        memory.search(text)
    assert len(memory.list()) == 5
    assert list_keys(memory.search("钻石")) == ["钻石"]


def test_bad_input_is_refused_and_nothing_is_kept(memory: Memory) -> None:
    any_memory: Any = memory
    any_vectors: Any = VectorMemoryService
    bad: list[Callable[[], object]] = [
        lambda: any_memory.store("", "text"),
        lambda: any_memory.store(None, "text"),
        lambda: any_memory.store("k" * 600, "text"),
        lambda: any_memory.store("two\nlines", "text"),
        lambda: any_memory.store("a\0b", "text"),
        lambda: any_memory.store("k", ""),
        lambda: any_memory.store("k", "  \n"),
        lambda: any_memory.store("k", 7),
        lambda: any_memory.store("k", "\ud800"),
        lambda: any_memory.store("k", "x" * 20_000),
        lambda: any_memory.store("k", "text", kind=""),
        lambda: any_memory.store("k", "text", kind="x" * 65),
        lambda: any_memory.store("k", "text", confidence=1.1),
        lambda: any_memory.store("k", "text", confidence=True),
        lambda: any_memory.store("k", "text", confidence=float("nan")),
        lambda: any_memory.store("k", "text", expires=0),
        lambda: any_memory.store("k", "text", expires=-5),
        lambda: any_memory.store("k", "text", expires="tomorrow"),
        lambda: any_memory.store("k", "text", expires=float("nan")),
        lambda: any_memory.store("k", "text", expires=5e11),
        lambda: any_memory.store("k", "text", expires=datetime(2001, 1, 1, tzinfo=UTC)),
        lambda: any_memory.store("k", "text", user_id=""),
        lambda: any_memory.store("k", "text", source="session-1"),
        lambda: any_memory.recall(7),
        lambda: any_memory.recall([7]),
        lambda: any_memory.search(7),
        lambda: any_memory.search("q", limit=-1),
        lambda: any_memory.search("q", limit=10**9),
        lambda: any_memory.search("q", min_confidence=2),
        lambda: any_memory.list(limit=True),
        lambda: any_memory.forget(""),
        lambda: any_memory.ingest_from_session("session-1"),
        lambda: type(any_memory)(service=KeywordMemoryService),
        lambda: any_vectors(embedder=7),
        lambda: any_vectors(embedder="http://host/v1"),
        lambda: any_vectors(floor=7),
        lambda: any_vectors(lambda texts: [], api_key="k"),
    ]
    for call in bad:
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(LimitExceeded, match="the limit is 16384"):
        memory.store("k", "x" * 20_000)
    assert memory.list() == []


# -- expiry ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


def test_what_has_expired_is_never_returned_and_goes_with_the_next_change(clock: FixedClock) -> None:
    store = MemoryStore(clock=clock)
    memory = Memory(store=store)
    kept = memory.store("offer", "Opal at half price", expires=timedelta(hours=1))
    assert kept.expires_at is not None
    memory.store("long", "Opal for ever", expires=3600 * 24)
    memory.store("at", "Opal by date", expires=datetime(2500, 1, 1, tzinfo=UTC))
    assert list_keys(memory.search("opal")) == ["at", "long", "offer"]
    clock.sleep(3601)
    assert memory.recall("offer") == []
    assert list_keys(memory.search("opal")) == ["at", "long"]
    assert list_keys(memory.list()) == ["at", "long"]
    log = MemoryLog(store, None, None).find()
    assert log is not None
    assert any(b"half price" in (row.body or b"") for row in store.walk(log))
    memory.store("other", "something else")
    assert not any(b"half price" in (row.body or b"") for row in store.walk(log))
    assert len(store.refs(log, "expires/")) == 2
    assert store.verify(log)


def test_an_update_may_drop_or_move_the_expiry(clock: FixedClock) -> None:
    store = MemoryStore(clock=clock)
    memory = Memory(store=store)
    memory.store("k", "first", expires=10)
    memory.store("k", "second")
    memory.store("j", "first", expires=10)
    memory.store("j", "second", expires=1000)
    clock.sleep(11)
    memory.store("other", "something else")  # erases the expired versions, which no reader could see
    assert list_keys(memory.list()) == ["j", "k", "other"]
    clock.sleep(1000)
    assert list_keys(memory.list()) == ["k", "other"]
    kept = memory.store("j", "third")
    assert kept.created_at == kept.updated_at
    log = MemoryLog(store, None, None).find()
    assert log is not None
    assert store.verify(log)
    assert store.refs(log, "expires/") == {}


# -- writers at the same time ------------------------------------------------------------------------------------------


def test_of_many_writers_of_one_key_one_version_lives_and_no_other_key_is_lost(store: Store) -> None:
    memory = Memory(store=store, user_id="u")

    def write(writer: int) -> None:
        for turn in range(5):
            memory.store("same", f"from {writer} turn {turn}")
            memory.store(f"own-{writer}-{turn}", f"kept by {writer}")

    run_together(*[lambda writer=writer: write(writer) for writer in range(4)])
    found = memory.list(limit=100)
    assert len(found) == 21
    assert list_keys(found).count("same") == 1
    log = MemoryLog(store, "u", None).find()
    assert log is not None
    assert store.verify(log)
    (living,) = memory.recall("same")
    assert [each.text for each in memory.search("turn from", 50) if each.key == "same"] == [living.text]


def test_storing_and_forgetting_at_once_leaves_all_or_nothing(store: Store) -> None:
    memory = Memory(store=store)
    memory.store("k", "garnet zero")

    def write() -> None:
        for turn in range(8):
            memory.store("k", f"garnet {turn}")

    def forget() -> None:
        for _ in range(8):
            memory.forget("k")

    run_together(write, forget)
    memory.forget("k")
    assert memory.list() == []
    log = MemoryLog(store, None, None).find()
    assert log is not None
    assert store.verify(log)
    assert not any(b"garnet" in (row.body or b"") for row in store.walk(log))


# -- the awaited names -------------------------------------------------------------------------------------------------


def test_the_twins_and_aio_do_the_same(store: Store) -> None:
    async def twins() -> None:
        memory = Memory(store=store)
        await memory.store_async("k", "topaz")
        assert list_keys(await memory.recall_async("k")) == list_keys(await memory.search_async("topaz")) == ["k"]
        assert list_keys(await memory.list_async()) == ["k"]
        assert await memory.ingest_from_session_async(Session(store=store)) == []
        assert await memory.forget_async("k")

    async def awaited() -> None:
        memory = aio.Memory(service=aio.VectorMemoryService(), store=store)
        await memory.store("k", "topaz")
        assert list_keys(await memory.recall(["k"])) == list_keys(await memory.search("topaz")) == ["k"]
        assert list_keys(await memory.list()) == ["k"]
        session = aio.Session(store=store)
        assert await memory.ingest_from_session(session) == []
        assert await memory.forget("k")

    asyncio.run(twins())
    asyncio.run(awaited())


def test_a_service_says_what_it_goes_by(store: Store) -> None:
    assert "spelling, not meaning" in repr(VectorMemoryService())
    assert "spelling, not meaning" in Memory(VectorMemoryService(), store=store).describe()
    assert "meaning" in VectorMemoryService(MeaningEmbedder()).describe()
    assert "keywords" in Memory(store=store).describe()


def test_without_a_store_it_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    Memory(user_id="somebody").store("k", "v")
    assert list_keys(Memory(user_id="somebody").list()) == ["k"]
    assert Memory(user_id="somebody").forget("k")
