"""Key values beyond one process: concurrent writers, lost answers, killed processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.crashpoints import arm_crashpoints
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.testing.contract import run_together
from holdfast.testing.crash import Acknowledge, Child, Point, run_in_child
from tests.kit.postgres import PostgresServer

KEYS = [f"key {number}" for number in range(100)]
Opener = Callable[[], Store]


@contextmanager
def lose_first_answer(action: Callable[[], object]) -> Iterator[None]:
    """While the block runs, the first answer to a COMMIT gets lost, after `action` was called."""
    lost: list[str] = []

    def lose_answer(point: str) -> None:
        if point == "after commit" and not lost:
            lost.append(point)
            action()
            raise psycopg.OperationalError("the answer was lost")

    arm_crashpoints(lose_answer)
    try:
        yield
    finally:
        arm_crashpoints(None)
    assert lost


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """A function that opens a fresh database, from any process."""
    if request.param == "sqlite":
        yield lambda: SQLiteStore(tmp_path / "values.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.database(tcp=True)
    yield lambda: PostgresStore(dsn)
    server.drop(dsn)


class TestProcesses:
    def test_of_two_that_want_a_new_value_one_gets_it(self, opener: Opener, tmp_path: Path) -> None:
        with opener() as store:
            for key in KEYS[::2]:
                store.kv_put("race", key, b"old", expires=1)
        start = tmp_path / "start"

        def make_racer(name: str) -> Callable[[Acknowledge], None]:
            def work(acknowledge: Acknowledge) -> None:
                with opener() as store:
                    acknowledge("ready")
                    while not start.exists():
                        pass
                    for key in KEYS:
                        there = store.kv_put("race", key, name.encode(), only_new=True)
                        acknowledge([name, key, there and there.decode()])

            return work

        with Child(make_racer("one")) as one, Child(make_racer("two")) as two:
            for child in (one, two):
                assert child.next() == "ready"
            start.touch()
            ends = [child.wait() for child in (one, two)]
        assert [end.error for end in ends] == [None, None]
        told = [each for end in ends for each in end.acknowledged[1:]]
        with opener() as store:
            for key in KEYS:
                outcomes = {name: there for name, asked, there in told if asked == key}
                (winner,) = [name for name, there in outcomes.items() if there is None]
                assert set(outcomes.values()) == {None, winner}
                assert store.kv_get("race", key) == winner.encode()

    def test_writers_of_one_key_do_not_fail_each_other(self, opener: Opener) -> None:
        with opener() as store, opener() as other:

            def write(store: Store, value: bytes) -> None:
                for turn in range(20):
                    store.kv_put("space", "key", value, only_new=turn % 3 == 0, expires=turn % 2)
                    store.kv_delete("space", "key")
                    store.kv_purge(1)

            run_together(*[lambda n=n: write((store, other)[n % 2], b"%d" % n) for n in range(4)])
            assert store.kv_put("space", "key", b"", only_new=True) is None

    @pytest.mark.parametrize("point", ["before commit", "after commit"])
    def test_what_was_acknowledged_outlives_the_process(self, opener: Opener, point: str) -> None:
        opener().close()

        def work(acknowledge: Acknowledge) -> None:
            with opener() as store:
                for number in range(10):
                    store.kv_put("space", f"{number}", b"\0value", only_new=bool(number % 2))
                    acknowledge(number)

        end = run_in_child(work, at=Point(point, 5))
        assert (end.killed, end.acknowledged) == (True, [0, 1, 2, 3])
        kept = 4 if point == "before commit" else 5
        with opener() as store:
            assert store.kv_list("space") == [(f"{number}", b"\0value") for number in range(kept)]
            assert store.kv_put("space", "0", b"", only_new=True) == b"\0value"
            assert store.kv_delete("space", "0") is True
        with opener() as store:
            assert store.kv_get("space", "0") is None


class TestLostAnswers:
    """The COMMIT arrives, its answer does not: the next attempt must know what became of the first."""

    @pytest.fixture
    def dsn(self, postgres_server: PostgresServer) -> Iterator[str]:
        dsn = postgres_server.database()
        yield dsn
        postgres_server.drop(dsn)

    @pytest.fixture
    def store(self, dsn: str) -> Iterator[Store]:
        with PostgresStore(dsn) as store:
            yield store

    @pytest.fixture
    def other(self, dsn: str) -> Iterator[Store]:
        with PostgresStore(dsn) as other:
            yield other

    @pytest.mark.parametrize("only_new", [True, False])
    def test_a_value_that_was_written_counts_as_written(self, store: Store, only_new: bool) -> None:
        with lose_first_answer(lambda: None):
            assert store.kv_put("space", "key", b"mine", only_new=only_new) is None
        assert store.kv_get("space", "key") == b"mine"
        assert store.kv_put("space", "key", b"mine", only_new=True) == b"mine"

    def test_a_write_does_not_come_back_over_a_later_one(self, store: Store, other: Store) -> None:
        store.kv_put("space", "key", b"before")
        with lose_first_answer(lambda: other.kv_put("space", "key", b"later")):
            assert store.kv_put("space", "key", b"mine") is None
        assert store.kv_get("space", "key") == b"later"
        with lose_first_answer(lambda: other.kv_delete("space", "key")):
            assert store.kv_put("space", "key", b"mine") is None
        assert store.kv_get("space", "key") is None

    def test_a_drop_spares_what_was_written_after_it(self, store: Store, other: Store) -> None:
        store.kv_put("space", "key", b"before")
        with lose_first_answer(lambda: other.kv_put("space", "key", b"later", only_new=True)):
            assert store.kv_delete("space", "key") is True
        assert store.kv_get("space", "key") == b"later"
        with lose_first_answer(lambda: None):
            assert store.kv_delete("space", "key") is True
        with lose_first_answer(lambda: other.kv_put("space", "key", b"new")):
            assert store.kv_delete("space", "key") is False
        assert store.kv_get("space", "key") == b"new"
