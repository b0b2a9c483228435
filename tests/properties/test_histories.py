"""Histories of what is kept, at a small size; the proofs run thousands. Seeds that once failed are kept here."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Message, Session
from holdfast.errors import ViewChanged
from holdfast.policy.pruning import strategy_of
from holdfast.prompt.compaction import plan_prune
from holdfast.stores.base import Store
from tests.kit.stores import open_store
from tests.properties.compliance import RandomHistory, Violation

PLAIN = "2026/2"  # begins with a session that may be pruned
SEEDS = ("2026/2", "2026/13", "2026/19", "2026/97", "1/29", "2/26", "3/6", "3/15", "4/67", "7/3", "7/17", "7/45")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Where a fork shares the events of its parent: in a store of documents it is a copy."""
    return open_store(request.param, request, tmp_path)


class TestHistories:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_nothing_is_changed_orphaned_or_raised_from_the_dead(self, store, seed):
        history = RandomHistory(store, seed)
        assert history.run(50) == []
        assert history.done.total() == 50


class TestTheModel:
    """A model that accepts everything proves nothing."""

    def test_it_notices_an_event_that_it_did_not_record(self, store):
        history = RandomHistory(store, PLAIN)
        (one,) = history.sessions
        history.add_messages(one)
        history.check(one)
        one.session.add_message(Message.user("behind its back"))
        with pytest.raises(Violation, match="not what it was"):
            history.check(one)

    def test_it_notices_what_is_shown_and_was_pruned(self, store):
        history = RandomHistory(store, PLAIN)
        (one,) = history.sessions
        for _ in range(4):
            history.add_messages(one)
        one.session.prune("keep_last_1")
        history.record_events(one, one.now)
        with pytest.raises(Violation, match="shows"):
            history.check(one)

    def test_it_notices_a_word_that_was_erased(self, store):
        history = RandomHistory(store, PLAIN)
        (one,) = history.sessions
        history.add_messages(one)
        history.erased_words |= set().union(*history.words.values())
        with pytest.raises(Violation, match="erased"):
            history.check(one)


class TestPlansThatCameTooLate:
    def test_a_summary_of_a_message_redacted_since_the_plan_is_refused(self, store):
        session = Session("s", store=store)
        session.add_messages([Message.user(f"secret {number}") for number in range(9)])
        plan = plan_prune(store, session.log, store.head(session.log), strategy_of("summarize_old", threshold=3))
        session.redact(3, reason="asked to")
        with pytest.raises(ViewChanged):
            store.append(session.log, plan.drafts())

    def test_also_in_a_fork_of_where_it_was_redacted(self, store):
        parent = Session("p", store=store)
        parent.add_messages([Message.user(f"secret {number}") for number in range(9)])
        fork = parent.fork("f")
        plan = plan_prune(store, fork.log, store.head(fork.log), strategy_of("summarize_old", threshold=3))
        parent.redact(3, reason="asked to")
        with pytest.raises(ViewChanged):
            store.append(fork.log, plan.drafts())
        fork.prune("summarize_old", threshold=3)
        assert "secret 1" not in fork.export()
