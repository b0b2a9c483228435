"""Bugs in redaction and erasure."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a deleted parent keeps what it said after its fork",
        "deleted parents",
        ("stores.sql_store", "self._cut_events(db, number, max(chained, log.base))", "pass"),
    ),
    mutant(
        "a deleted parent keeps its later names and files",
        "deleted parents",
        ("stores.sql_store", "        self._cut_rest(db, number, shown)\n", ""),
    ),
    mutant(
        "a deleted parent in memory keeps what it said after its fork",
        "deleted parents",
        ("stores.memory", "count = max(0, chained - base)", "count = len(kept.rows)"),
        ("stores.memory", "in make_tombstones(kept.rows[max(0, shown - base) :])", "in ()"),
    ),
    mutant(
        "an erased fork keeps the content of its deleted parent",
        "deleted parents",
        ("stores.removal", "[log for log, erased in living if not erased]", "[log for log, _ in living]"),
    ),
    mutant(
        "a deleted parent is erased up to the point of one fork",
        "deleted parents",
        ("stores.erasure", "        _plan_whole_log(store, ancestor, head, burial)", "        pass"),
    ),
    mutant(
        "an erasure that loses a race leaves the forks",
        "lost races",
        ("session.compliance", "return _erase_deleted_log(store, log, data, actor)", "return 0"),
    ),
    mutant(
        "kept answers outlive a deletion",
        "kept answers",
        (
            "stores.sql_store",
            "            drop_answers(db, self.sql, self.tenant, (kind, id))\n            crash",
            "            crash",
        ),
    ),
    mutant(
        "kept answers outlive an erasure",
        "kept answers",
        ("stores.sql_store", "for number in burial.touched_logs:", "for number in ():"),
    ),
    mutant(
        "kept answers in memory outlive an erasure",
        "kept answers",
        ("stores.memory", "for number in burial.touched_logs:", "for number in ():"),
    ),
    mutant(
        "a late answer is kept",
        "kept answers",
        (
            "server.idempotency",
            "self._store.kv_replace(ANSWERS, self._entry_key, self._mark, value, expires=expires)",
            "self._store.kv_put(ANSWERS, self._entry_key, value, expires=expires)",
        ),
    ),
    mutant(
        "kept answers have keys of their own",
        "kept answers",
        ("stores.kept_answers", "if log is not None and found is not None and found.key is not None:", "if False:"),
    ),
    mutant(
        "a key that another process replaced stays in memory",
        "replaced keys",
        ("stores.sql_reads", "            self._keys.forget_key(number)\n", ""),
    ),
    mutant(
        "an old master key wraps a new key",
        "replaced keys",
        ("stores.sql_store", "self._check_master(db)  # another process may have changed it, and", "pass  #"),
        (
            "stores.sql_store",
            "                self._keys.forget_key(number)  # the key that",
            "                # the key that",
        ),
    ),
    mutant(
        "a retry after a redaction is taken for another",
        "retries after redactions",
        ("stores.append", "return len(stored) >= len(drafts) and all(", "return False and all("),
    ),
    mutant(
        "any content counts as a retry after a redaction",
        "retries after redactions",
        ("stores.append", "return len(stored) >= len(drafts) and all(", "return True or all("),
    ),
    mutant(
        "a reader joins a tail that is behind",
        "removed tails",
        ("worker.feed", "await tail.catch_up()", "pass"),
    ),
    mutant(
        "a tail keeps what was redacted",
        "removed tails",
        ("worker.feed", "if row.type in ERASING_TYPES:", "if False:"),
    ),
    mutant(
        "a tail keeps what a deleted session said",
        "removed tails",
        ("worker.feed", "                    tail.forget_items()\n", ""),
    ),
    mutant(
        "a sweep leaves traces in the pages",
        "pages",
        ("stores.sqlite", "            self.file.vacuum()\n", ""),
    ),
    mutant(
        "a redaction does not ask for a rewrite",
        "pages",
        (
            "stores.sqlite",
            "_count_removal(db)\n        self._forget_words(db, number, 0,",
            "self._forget_words(db, number, 0,",
        ),
    ),
    mutant(
        "a server keeps the prompts of a session that another process erased",
        "removed texts",
        (
            "server.app",
            "                self.drop_session_object(session.store, session.log)\n",
            "                pass\n",
        ),
    ),
    mutant(
        "an erasure that removes nothing",
        "removed texts",
        ("stores.sqlite", "        db.executemany(SQL.SET_TOMBSTONE, erased)\n", ""),
    ),
)
