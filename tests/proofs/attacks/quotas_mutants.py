"""Bugs in quotas."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a removed session stays counted",
        "quota counters",
        ("stores.sql_store", "self._count_session(db, log, -1)", "pass"),
    ),
    mutant(
        "an erased session stays counted for its user",
        "quota counters",
        ("stores.sql_store", "        self._count_erased_log(db, number)\n", ""),
    ),
    mutant(
        "a forgotten memory stays counted",
        "quota counters",
        ("stores.sql_store", "            self._count_forgotten(db, number, {name for name, _ in names})\n", ""),
    ),
    mutant(
        "an updated memory counts as a new one",
        "quota counters",
        ("stores.sql_usage", "new = sum(db", "new = sum(True or db"),
    ),
    mutant(
        "the memories of a removed log stay counted",
        "quota counters",
        ("stores.sql_store", "            self._count_lost_memories(db, log)\n", ""),
    ),
    mutant(
        "a session is created without a look at the limit",
        "quota limits",
        (
            "stores.sql_usage",
            "if self.allowances:\n            self._check_growth(db, s",
            "if not self.tenant:\n            self._check_growth(db, s",
        ),
    ),
    mutant(
        "the limit is checked before the transaction, on a count that others change",
        "quota limits",
        (
            "stores.sql_usage",
            "each.used = self._usage_from_columns(found)\n            each.quota.check_growth(each.used, growth",
            "each.quota.check_growth(each.used._replace(sessions=each.used.sessions + 1), growth",
        ),
    ),
    mutant(
        "the first count misses creations that are not committed yet",
        "quota limits",
        ("stores.postgres", "        db.execute(SQL.LOCK_USAGE)", "        pass"),
    ),
    mutant(
        "usage is settled again and again",
        "quota days",
        ("stores.sql_usage", "codec.encode(merge_usage(before, used))", "codec.encode(before)"),
    ),
    mutant(
        "a run goes on when the day is used up",
        "quota days",
        ("server.quotas", "self._price)\n        self._store.check_day()", "self._price)"),
    ),
    mutant(
        "the end of a run is not settled",
        "quota days",
        ("server.app", "                session.cache.meter.settle()", "                pass"),
    ),
    mutant(
        "bytes are not charged",
        "quota charges",
        ("server.quotas", "    if operation in ADDING:\n        store.reserve_bytes(size)", "    pass"),
    ),
    mutant(
        "the bytes of a message are not charged",
        "quota charges",
        ("server.quotas", "        store.reserve_bytes(size)\n\n    def", "\n    def"),
    ),
    mutant(
        "the quota of a key is ignored",
        "quota charges",
        ("server.auth", "None if info.quota is None else Quota.of(info.quota)", "None"),
    ),
    mutant(
        "a run is not limited",
        "quota charges",
        (
            "server.app",
            "session.store, session.cache.meter = found, store,",
            "session.store, session.cache.meter = found, store.limited([]),",
        ),
    ),
    mutant(
        "a repeated message is refused by the quota",
        "quota charges",
        ("server.run_requests", "not (is_known or view.turn or view.queue)", "not (view.turn or view.queue)"),
    ),
)
