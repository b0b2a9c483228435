"""Slips beyond one process: others want the same one, answers get lost, processes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.clock import arm
from holdfast.stores import PostgresStore, SQLiteStore
from holdfast.stores import migrations as migrate
from holdfast.stores.base import Store
from holdfast.stores.migrations import migrations
from holdfast.testing.contract import together
from holdfast.testing.crash import Acknowledge, Child, Point, dying
from kit.postgres import PostgresServer

KEYS = [f"key {number}" for number in range(100)]
Opener = Callable[[], Store]


@contextmanager
def lost_answer(meanwhile: Callable[[], object]) -> Iterator[None]:
    """While the block runs, the first answer to a COMMIT gets lost, after somebody else did something."""
    lost: list[str] = []

    def reached(point: str) -> None:
        if point == "after commit" and not lost:
            lost.append(point)
            meanwhile()
            raise psycopg.OperationalError("the answer was lost")

    arm(reached)
    try:
        yield
    finally:
        arm(None)
    assert lost


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """A way to open a fresh database, in whatever process."""
    if request.param == "sqlite":
        yield lambda: SQLiteStore(tmp_path / "slips.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    dsn = server.database(tcp=True)
    yield lambda: PostgresStore(dsn)
    server.drop(dsn)


class TestProcesses:
    def test_of_two_that_want_a_new_slip_one_gets_it(self, opener: Opener, tmp_path: Path) -> None:
        with opener() as store:
            for key in KEYS[::2]:
                store.put_slip("race", key, b"old", expires=1)
        start = tmp_path / "start"

        def racer(name: str) -> Callable[[Acknowledge], None]:
            def work(acknowledge: Acknowledge) -> None:
                with opener() as store:
                    acknowledge("ready")
                    while not start.exists():
                        pass
                    for key in KEYS:
                        there = store.put_slip("race", key, name.encode(), only_new=True)
                        acknowledge([name, key, there and there.decode()])

            return work

        with Child(racer("one")) as one, Child(racer("two")) as two:
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
                assert store.slip("race", key) == winner.encode()

    def test_writers_of_one_slip_do_not_fail_each_other(self, opener: Opener) -> None:
        with opener() as store, opener() as other:

            def write(store: Store, value: bytes) -> None:
                for turn in range(20):
                    store.put_slip("space", "key", value, only_new=turn % 3 == 0, expires=turn % 2)
                    store.drop_slip("space", "key")
                    store.purge_slips(1)

            together(*[lambda n=n: write((store, other)[n % 2], b"%d" % n) for n in range(4)])
            assert store.put_slip("space", "key", b"", only_new=True) is None

    @pytest.mark.parametrize("point", ["before commit", "after commit"])
    def test_what_was_acknowledged_outlives_the_process(self, opener: Opener, point: str) -> None:
        opener().close()

        def work(acknowledge: Acknowledge) -> None:
            with opener() as store:
                for number in range(10):
                    store.put_slip("space", f"{number}", b"\0value", only_new=bool(number % 2))
                    acknowledge(number)

        end = dying(work, at=Point(point, 5))
        assert (end.killed, end.acknowledged) == (True, [0, 1, 2, 3])
        kept = 4 if point == "before commit" else 5
        with opener() as store:
            assert store.slips("space") == [(f"{number}", b"\0value") for number in range(kept)]
            assert store.put_slip("space", "0", b"", only_new=True) == b"\0value"
            assert store.drop_slip("space", "0") is True
        with opener() as store:
            assert store.slip("space", "0") is None


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
    def test_a_slip_that_was_written_counts_as_written(self, store: Store, only_new: bool) -> None:
        with lost_answer(lambda: None):
            assert store.put_slip("space", "key", b"mine", only_new=only_new) is None
        assert store.slip("space", "key") == b"mine"
        assert store.put_slip("space", "key", b"mine", only_new=True) == b"mine"

    def test_a_write_does_not_come_back_over_a_later_one(self, store: Store, other: Store) -> None:
        store.put_slip("space", "key", b"before")
        with lost_answer(lambda: other.put_slip("space", "key", b"later")):
            assert store.put_slip("space", "key", b"mine") is None
        assert store.slip("space", "key") == b"later"
        with lost_answer(lambda: other.drop_slip("space", "key")):
            assert store.put_slip("space", "key", b"mine") is None
        assert store.slip("space", "key") is None

    def test_a_drop_spares_what_was_written_after_it(self, store: Store, other: Store) -> None:
        store.put_slip("space", "key", b"before")
        with lost_answer(lambda: other.put_slip("space", "key", b"later", only_new=True)):
            assert store.drop_slip("space", "key") is True
        assert store.slip("space", "key") == b"later"
        with lost_answer(lambda: None):
            assert store.drop_slip("space", "key") is True
        with lost_answer(lambda: other.put_slip("space", "key", b"new")):
            assert store.drop_slip("space", "key") is False
        assert store.slip("space", "key") == b"new"


def test_a_database_from_before_slips_gets_their_table(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as past:
        past.setattr(migrate, "migrations", lambda dialect: migrations(dialect)[:2])
        opener().close()
    with opener() as store:
        assert store.slips("space") == []
        assert store.put_slip("space", "key", b"value", only_new=True) is None
