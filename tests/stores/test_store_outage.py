"""Servers that go away, replies that get lost, processes that are stopped or fork. The proofs do this at size."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import psycopg
import pytest

from holdfast import Message, Session
from holdfast.crashpoints import arm_crashpoints
from holdfast.stores import PostgresStore
from holdfast.testing.crash import Child
from tests.kit.crash_workload import Workspace, generate_steps
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import PostgresProxy
from tests.proofs import postgres_servers
from tests.proofs.crashes import shorten_leases


class TestServerGone:
    def test_writers_outlive_a_crash_of_the_server(self, tmp_path: Path):
        with PostgresServer() as server:
            dsn = server.database(tcp=True)
            with PostgresStore(dsn) as store:
                Session(id=postgres_servers.SHARED, store=store)
            enough = tmp_path / "enough"
            children = [Child(postgres_servers.make_writer(dsn, name, enough)) for name in range(2)]
            for child in children:
                child.next()
            server.restart("immediate")
            for child in children:
                child.watch(0.0)
                child.next()
            enough.touch()
            ends = [child.wait() for child in children]
            with PostgresStore(dsn) as store:
                assert postgres_servers.compare_with_writers(store, ends) == []

    def test_a_server_that_refuses_gives_a_named_error(self):
        assert postgres_servers.awkward_servers(1, 7).failures == []


class TestLostReplies:
    def test_every_step_happens_once(self, postgres_server):
        dsn = postgres_server.database(tcp=True)
        with (
            PostgresProxy(postgres_server.port) as proxy,
            PostgresStore(proxy.dsn(dsn)) as store,
            PostgresStore(dsn) as other,
        ):
            todo = list(islice(generate_steps(7), 40))
            assert (
                postgres_servers.run_lossy_steps(Workspace(store, "r"), Workspace(other, "r"), proxy, Random(7), todo)
                == []
            )
            assert proxy.requests_cut + proxy.replies_lost > 20
        postgres_server.drop(dsn)

    def test_a_delete_whose_reply_was_lost_spares_the_namesake(self, postgres_server):
        dsn = postgres_server.database()
        with PostgresStore(dsn) as store, PostgresStore(dsn) as other:
            Session(id="name", store=store)
            lost: list[str] = []

            def lose(point: str) -> None:
                if point == "after commit" and not lost:
                    lost.append(point)
                    Session(id="name", store=other).add_message(Message.user("I am another"))
                    raise psycopg.OperationalError("the reply was lost")

            arm_crashpoints(lose)
            try:
                assert store.delete("name")
            finally:
                arm_crashpoints(None)
            assert [message.text for message in Session.open("name", store=other).messages] == ["I am another"]
        postgres_server.drop(dsn)


class TestStopped:
    @pytest.mark.parametrize(
        "play",
        [postgres_servers.check_stopped_turn, postgres_servers.check_stopped_call, postgres_servers.check_dead_holder],
        ids=lambda play: play.__name__,
    )
    def test_writes_of_a_stopped_process_are_refused_after_a_takeover(self, opener, play):
        with shorten_leases(postgres_servers.LEASE):
            assert play(opener, "s") == []

    def test_no_writer_waits_for_ever_for_a_frozen_one(self, opener):
        assert postgres_servers.check_frozen_writer(opener) == []


class TestForked:
    @pytest.mark.parametrize(
        "case",
        [
            postgres_servers.fork_while_writing,
            postgres_servers.fork_while_opening,
            postgres_servers.check_parent_closes,
            postgres_servers.check_parent_closes_another,
        ],
        ids=lambda case: case.__name__,
    )
    def test_parent_and_child_go_on_each_on_its_own(self, opener, case):
        assert case(opener) == []
