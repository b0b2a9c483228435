"""B23: bugs put into our own code on purpose. A proof that does not catch the one made for it is itself the bug.

A mutant is a change to the text of a module, made while it is imported, in a process of its own; the files stay as they
are. Its detector is a proof at a small size. A text that is no longer there is a failure too: the mutant must follow
the code. The control runs every detector without a mutant, and all must be silent.
"""

from __future__ import annotations

from tests.proofs.attacks import (
    erasures_mutants,
    fairness_mutants,
    files_mutants,
    imports_mutants,
    interrupts_mutants,
    quotas_mutants,
    roles_mutants,
    signatures_mutants,
)
from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "no fence", "random operations", ("stores.append", "asked.epoch is not None and asked.epoch != epoch", "False")
    ),
    mutant(
        "no head check",
        "random operations",
        ("stores.append", "is not None and asked.expected != before.head", "is ..."),
    ),
    mutant(
        "no key check", "random operations", ("stores.sqlite", "if asked.idempotency_key is not None:", "if False:")
    ),
    mutant("a key taken for other content", "random operations", ("stores.append", "if not same:", "if False:")),
    mutant(
        "a lease that any process may take",
        "random operations",
        ("stores.append", "lease is not None and lease.is_alive", "False"),
    ),
    mutant(
        "acknowledged before COMMIT",
        "power loss",
        ("stores.group_commit", 'db.execute("COMMIT")\n            except apsw', "pass\n            except apsw"),
        (
            "stores.group_commit",
            "if self._writer.in_transaction:\n            self._roll_back()",
            "if False: pass",
        ),
        (
            "stores.group_commit",
            'db.execute("BEGIN IMMEDIATE")\n            if len',
            'db.in_transaction and db.execute("COMMIT"); db.execute("BEGIN IMMEDIATE")\n            if len',
        ),
    ),
    mutant(
        "NORMAL instead of FULL", "power loss", ("stores.sqlite_connections", "synchronous=FULL", "synchronous=NORMAL")
    ),
    mutant("tenants mixed", "tenants", ("stores.statements", "WHERE l.tenant = ?", "WHERE (1=1 OR l.tenant = ?)")),
    mutant("tenants mixed in lists", "tenants", ("stores.sql_reads", '["s.tenant = ?"]', '["s.tenant <> ?"]')),
    mutant(
        "a chain without links",
        "tampering",
        ("log.chain", "sha256(hash + top", "sha256(top"),
        ("log.chain", "sha256(previous + top", "sha256(top"),
    ),
    mutant("the same salt for all", "salts", ("stores.append", "salts=random(", "salts=bytes(")),
    mutant(
        "a fork that sees what its parent did later",
        "random operations",
        ("stores.base", "lo, hi = max(first, start), min(last, end)", "lo, hi = max(first, start), last"),
    ),
    mutant(
        "a closed session takes messages",
        "random operations",
        ("stores.append", "if draft.run is None and draft.type in REFUSED_WHEN_ENDED:", "if False:"),
    ),
    mutant(
        "a rewind that forgets the state", "random operations", ("session.history", '"state": changed', '"state": {}')
    ),
    mutant(
        "half of a refused job kept",
        "group commit",
        ("stores.group_commit", 'db.execute("ROLLBACK TO job")', "pass"),
    ),
    mutant(
        "one broken job breaks the others",
        "group commit",
        ("stores.group_commit", "job.run(db)\n        except Exception", "job.run(db)\n        except KeyError"),
    ),
    mutant(
        "a view that is not folded",
        "random operations",
        ("stores.append", "folded.apply(row.seq", "(lambda *_: None)(row.seq"),
    ),
    mutant(
        "PostgreSQL appends without looking at the head",
        "two stores",
        ("stores.postgres_statements", "AND head = ? AND epoch = ?", "AND ?::bigint > 0 AND ?::bigint >= 0"),
    ),
    mutant(
        "PostgreSQL refuses from what it remembers",
        "two stores",
        ("stores.postgres", "except AgentError:", "except KeyError:"),
    ),
    mutant(
        "a lost answer is taken for a lost request",
        "lost requests",
        ("stores.postgres", "found is not None and found[0] == batch.rows[-1].hash", "False"),
    ),
    mutant(
        "delete leaves the events",
        "families",
        ("stores.sqlite", "db.execute(SQL.CUT_EVENTS, self._range(number, last + 1, MAX_SEQ))", "pass"),
    ),
    mutant(
        "delete leaves the words",
        "families",
        ("stores.sqlite", "self._forget_words(db, number, last + 1, None)", "pass"),
    ),
    mutant("delete forgets a dead parent", "families", ("stores.memory", "self._purge(ancestor)", "pass")),
    mutant(
        "delete does not look for forks",
        "families",
        ("stores.sql_store", "if readers:\n            self._cut", "if False:\n            self._cut"),
    ),
    mutant(
        "an append brings a deleted session back",
        "families",
        (
            "stores.statements",
            ' HEAD = _HEAD + " WHERE log = ? AND id IS NOT NULL"',
            ' HEAD = _HEAD + " WHERE log = ?"',
        ),
    ),
    mutant(
        "cleared messages come back",
        "random operations",
        ("log.view", "turn.mixed = True\n        elif", "pass\n        elif"),
    ),
    mutant(
        "messages added in a turn stand in it",
        "random operations",
        ("log.view", "append_seq(turn.outside_messages, seq)", "append_seq(turn.own_messages, seq)"),
    ),
    mutant("a failed turn stays in the messages", "random operations", ("log.view", "kept=False)", "kept=True)")),
    mutant(
        "marks that miss outside messages",
        "rebuild",
        ("stores.append", "or (busy and draft.type in MESSAGE_TYPES)", ""),
    ),
    mutant("names that a rewind does not move", "rebuild", ("log.named_values", '== "view.rewound":', '== "never":')),
    mutant("NaN is JSON", "hostile text", ("log.codec", "value != value or", "False and")),
    mutant(
        "text cut at NUL",
        "hostile text",
        (
            "log.codec",
            "return orjson.loads(data)",
            'return orjson.loads(data.replace(b"\\\\u0000", b""))',
        ),
    ),
    mutant(
        "events in one transaction, the head in another",
        "faults",
        (
            "stores.sqlite",
            'crashpoint("between events and head")',
            'db.execute("COMMIT"); db.execute("BEGIN IMMEDIATE"); crashpoint("between events and head")',
        ),
    ),
    mutant(
        "a key that is not remembered", "faults", ("stores.sql_store", "if batch.idempotency is not None:", "if False:")
    ),
    mutant(
        "the memory store hands out its own objects",
        "copies",
        ("stores.memory", "copy.deepcopy(", "("),
        ("stores.memory_reads", "copy.deepcopy(", "("),
    ),
    mutant(
        "a cut that was planned for another view",
        "stale plans",
        ("log.view", 'if data.get("after", self.edition) != self.edition:', "if False:"),
    ),
    mutant(
        "a burial that was planned for another log",
        "stale plans",
        ("stores.sql_store", "return db.execute(self.sql.HAS_TYPES, values).fetchone() is None", "return True"),
    ),
    mutant(
        "a burial that overlooks a new fork",
        "stale plans",
        ("stores.sql_store", "if readers != {", "if False and readers != {"),
    ),
    mutant(
        "a held session can be deleted",
        "guards",
        (
            "stores.append",
            'if view.held:\n        raise SessionHeld("delete"',
            'if False:\n        raise SessionHeld("delete"',
        ),
    ),
    mutant(
        "a held session can be erased",
        "guards",
        (
            "stores.erasure",
            'if decode_view(head.view).held:\n        raise SessionHeld("erase"',
            'if False:\n        raise SessionHeld("erase"',
        ),
    ),
    mutant(
        "immutable is not enforced", "guards", ("stores.append", "return view.immutable and (", "return False and (")
    ),
    mutant(
        "an immutable session can be kept for less",
        "guards",
        ("stores.append", 'if shorter or not draft.data.get("immutable"):', "if False:"),
    ),
    mutant(
        "the sweep purges a session used since it looked",
        "guards",
        ("worker.sweep", "store.remove(log.kind, log.id, expected=head.head)", "store.remove(log.kind, log.id)"),
    ),
    mutant(
        "the sweep purges what is at work",
        "guards",
        ("policy.retention", "if standing.running:", "if False:"),
        (
            "stores.append",
            "if lease is not None and lease.is_alive:\n        raise SessionBusy(id",
            "if False:\n        raise SessionBusy(id",
        ),
    ),
    mutant(
        "no record covers the remains of an erased event",
        "altered logs",
        ("log.chain", 'return digest_tombstones(own) == data.get("tombs")', "return True"),
    ),
    mutant("token counts are believed", "altered logs", ("log.chain", "if row.tokens != tokens:", "if False:")),
    mutant(
        "attached bytes are believed",
        "altered logs",
        ("stores.verification", "if not _has_blob(store, log, digest):", "if False:"),
    ),
    mutant(
        "the end of an export is not checked",
        "altered logs",
        ("session.export", "head=self._head, hash=self._head_hash", "head=None, hash=None"),
    ),
    mutant(
        "events may stand behind the head", "altered logs", ("stores.verification", "if beyond and", "if False and")
    ),
    mutant(
        "a sealed payload opens anywhere",
        "sealed payloads",
        ("stores.encrypted_rows", "key.seal(row.body, event_context(number, row.seq))", 'key.seal(row.body, b"")'),
        ("stores.encrypted_rows", "key.open(row.body, event_context(number, row.seq))", 'key.open(row.body, b"")'),
    ),
    mutant(
        "the old master key still opens the store",
        "sealed payloads",
        ("stores.sql_store", "db.execute(self.sql.SET_MASTER, (rotation.fingerprint,))", "pass"),
    ),
    mutant(
        "redacted words stay in the index",
        "remains of redaction",
        ("stores.sqlite", "self._forget_words(db, number, 0, [seq for seq, _ in tombstones])", "pass"),
    ),
    mutant(
        "a digest of what was redacted stays",
        "remains of redaction",
        ("stores.sqlite", "db.executemany(SQL.CLEAR_ONCE_DIGEST,", "(lambda *_: None)(SQL.CLEAR_ONCE_DIGEST,"),
    ),
    mutant(
        "freed pages keep their text",
        "remains of redaction",
        ("stores.sqlite_connections", "secure_delete=ON", "secure_delete=OFF"),
    ),
    mutant(
        "summaries keep what was redacted",
        "histories",
        ("stores.erasure", "found += _summaries_over(", "_summaries_over("),
    ),
    mutant(
        "copies keep what was redacted",
        "histories",
        ("stores.repetition", "found.events.append(each)", "pass"),
    ),
    mutant(
        "a prune makes a session live longer",
        "histories",
        ("stores.append", "in rare) else before", "in rare) else at"),
    ),
    mutant(
        "an undo forgets what came later",
        "histories",
        ("session.pruning", "for first, last in later:", "for first, last in ():"),
    ),
    mutant(
        "a prune parts a call from its result",
        "histories",
        ("policy.pruning", "if newest_orphan is None:\n        return", "if True:\n        return"),
    ),
    mutant(
        "a summary that is not visible",
        "histories",
        ("log.view", "self.ranges.insert(place, [seq - 1, seq - 1])", "pass"),
    ),
    mutant(
        "a prompt that is too long is sent for ever",
        "long prompts",
        ("turn.drivers", "for may_retry in (True, False):", "for may_retry in iter(lambda: True, None):"),
    ),
    mutant(
        "a queued message is shown at once",
        "queues",
        (
            "log.view",
            "self._close_last(seq - 1)\n        if self.turn is None:\n            self.ranges.append([seq + 1, 0])",
            "if self.turn is None:\n            pass",
        ),
    ),
    mutant(
        "an import takes the queue along",
        "queues",
        ("log.view", "        self.queue, self.ended_turn, self.failed", "        _, self.ended_turn, self.failed"),
    ),
    mutant(
        "a fork takes the queue along",
        "queues",
        (
            "log.view",
            "self.retention, self.queue, self.ended_turn = 0, [], None",
            "self.retention, self.ended_turn = 0, None",
        ),
    ),
    mutant(
        "a run that is over stays in the queue",
        "queues",
        ("log.view", "self._dequeue(turn.run)  # nothing is left", "pass  # nothing is left"),
    ),
    mutant(
        "a cancelled run stays in the queue",
        "queues",
        (
            "log.view",
            'elif type == "run.dropped":\n            self._dequeue(run)',
            'elif type == "run.dropped":\n            pass',
        ),
    ),
    mutant(
        "a message that may not wait is queued", "queues", ("log.view", 'if mode == "reject" and (', "if False and (")
    ),
    mutant("an interrupt waits like the rest", "queues", ("log.view", 'if mode == "interrupt" else', "if False else")),
    mutant(
        "a key names another run each time",
        "queues",
        (
            "worker.admission",
            "run = store.clock.new_id() if self.once is None else run_id_of_key(log, self.once)",
            "run = store.clock.new_id()",
        ),
    ),
    mutant(
        "a cancelled turn may go on writing",
        "cancellations",
        ("worker.admission", 'fence = {"epoch": head.epoch, "claim": claim, "release": True}', "fence = {}"),
    ),
    mutant(
        "a turn is begun anew, not taken up",
        "takeovers",
        ("worker.run_pool", "is_open = turn is not None and turn.run == run", "is_open = False"),
    ),
    mutant(
        "what is not finished is not given back",
        "takeovers",
        ("worker.run_pool", "            release_turn(running.runtime)", "            pass"),
    ),
    mutant(
        "deltas come before their event",
        "tails",
        ("worker.feed", "if message.after > self.last or self._early_deltas:", "if False:"),
    ),
    mutant(
        "Last-Event-ID is not looked at",
        "tails",
        ("server.event_stream", "if text is None or not text.strip():", "if True:"),
    ),
    mutant(
        "the last event is sent again",
        "tails",
        ("server.event_stream", "(item.seq, item.n) <= (seq, n)", "(item.seq, item.n) < (seq, n)"),
        ("server.event_stream", "(item.seq, item.n) > (seq, n)", "(item.seq, item.n) >= (seq, n)"),
    ),
    mutant(
        "a reader from another server gets events again",
        "tails",
        ("server.event_stream", "if items[0].seq <= seq:", "if False:"),
    ),
    mutant(
        "a reply is sent again without a start",
        "cut streams",
        ("server.event_stream", "if self._delta_count or not self._has_all_deltas or not self.has_begun:", "if False:"),
    ),
    mutant(
        "deltas are sent again without a start",
        "cut streams",
        ("server.event_stream", "if not self._delta_count and not self.has_begun:", "if False:"),
    ),
    mutant(
        "any Host will do",
        "browsers",
        ("server.http.origins", "found is None or found[0] not in self._names", "found is None"),
    ),
    mutant(
        "any Origin will do",
        "browsers",
        ("server.http.origins", "if not is_configured and (len(", "if False and (len("),
    ),
    mutant("any site will do", "browsers", ("server.http.origins", "sites is not None and not is_configured", "False")),
    mutant("a form is taken for JSON", "browsers", ("server.http.middleware", "and not _is_json(kinds)", "and False")),
    mutant(
        "a key opens every tenant",
        "callers",
        ("server.auth", "store=self._store.for_tenant(info.tenant)", "store=self._store"),
    ),
    mutant(
        "a session is open to all users",
        "callers",
        ("server.auth", "if self.user is not None and session.user_id != self.user:", "if False:"),
    ),
    mutant(
        "a list shows the sessions of all users",
        "callers",
        ("server.routes.sessions", "owner = caller.resolve_owner(check_owner(", "owner = (check_owner("),
    ),
    mutant(
        "a session of another user can be compared with",
        "callers",
        (
            "server.routes.forks",
            "caller.open_session(session_id), caller.open_session(other)",
            "caller.open_session(session_id), type(caller.open_session(session_id)).open(other, store=caller.store)",
        ),
    ),
    mutant("a revoked key works", "callers", ("server.api_keys", "return self.revoked_at is None and (", "return (")),
    mutant("an expired key works", "callers", ("server.api_keys", "or now < self.expires_at)", "or True)")),
    mutant(
        "half a key is enough",
        "callers",
        ("server.api_keys", "return info if hmac.compare_digest(", "return info if True or hmac.compare_digest("),
    ),
    mutant(
        "a read key may write",
        "callers",
        ("server.auth", "return ROLES.index(self.role)", 'return self.role == "read" or ROLES.index(self.role)'),
    ),
    mutant("every key may operate the server", "callers", ("server.auth", "if not caller.is_operator:", "if False:")),
    mutant(
        "two users share their keys for requests",
        "callers",
        ("server.idempotency", "codec.encode([caller.user, ", "codec.encode([None, "),
    ),
    mutant(
        "every user may write shared state",
        "callers",
        ("server.routes.state", 'if scope == "app" and not caller.is_application', "if False"),
    ),
    mutant(
        "a route is open unless it is closed",
        "unguarded routes",
        ("server.http.strict_routes", "if permission is None:", "if False:"),
    ),
    mutant(
        "a session works wherever it likes",
        "work roots",
        ("server.work_dirs", "is_inside = any(", "is_inside = True or any("),
    ),
    mutant(
        "a head may come for ever",
        "slow clients",
        ("server.http.header_limits", "self._timer = self.loop.call_later(HEAD_SECONDS, self._on_timeout)", "pass"),
    ),
    mutant(
        "a head may be as long as it likes",
        "slow clients",
        ("server.http.header_limits", "if self._size > MAX_HEAD_BYTES:", "if False:"),
        ("server.http.header_limits", "if self._parsed_size > MAX_HEAD_BYTES:", "if False:"),
    ),
    # -- several agents, and memory
    mutant(
        "an agent that is over is asked again",
        "flows",
        ("turn.flow_loop", "progress is not None and progress.end_status", "False"),
    ),
    mutant("a call of an agent has no owner", "flows", ("agent_base", "idempotent=True, timeout", "timeout")),
    mutant(
        "a called agent has another session each time",
        "flows",
        ("log.identifiers", "sha256(key.encode())", "sha256(f\"{id(key)}{__import__('os').getpid()}\".encode())"),
    ),
    mutant(
        "a resumed flow sees nothing of itself",
        "flows",
        ("turn.progress", "path_sort_key(each) < here and", "False and"),
    ),
    mutant("branches stand as they came", "branches", ("log.view", "sorted(inner, key=path_sort_key)", "inner")),
    mutant("branches see each other", "branches", ("turn.progress", "is_within(path, outer_path(branch))", "False")),
    mutant("calls share their ids", "branches", ("turn.agent_loop", "and not used.intersection(new_ids)", "")),
    mutant(
        "a late agent may still write",
        "branches",
        ("turn.runtime", "if self._is_over or self._is_halted(path):", "if False:"),
        ("turn.agent_runtime", "if self.batch is not None:", "if False:"),
    ),
    mutant(
        "what others said is one's own", "handoffs", ("prompt.perspective", "message.named_author != name", "False")
    ),
    mutant(
        "a failed turn moves the conversation",
        "handoffs",
        ("log.view", 'turn.active = data.get("active", turn.active)', 'self.active = data.get("active")'),
    ),
    mutant(
        "the conversation has no active agent", "handoffs", ("log.view", "turn.active or self.active", "self.active")
    ),
    mutant(
        "a router forgets the chosen agent",
        "handoffs",
        ("turn.flow_loop", "if position.owner is not None:", "if False:"),
    ),
    mutant(
        "a called agent has a budget of its own",
        "budgets",
        ("turn.runtime", "if self._caller_budget is not None:", "if False:"),
    ),
    mutant("two take the last call", "budgets", ("turn.runtime", '{"steps": under_way}', "{}")),
    mutant(
        "a condition is the wrong way round",
        "loops",
        (
            "turn.flow_loop",
            "if not (yield CallUserFunction(_bind_condition",
            "if (yield CallUserFunction(_bind_condition",
        ),
    ),
    mutant("apps share their memories", "memories", ("memory.memory_log", "and name.startswith(mine)", "")),
    mutant(
        "memories last for ever",
        "memories",
        ("memory.memory_log", "expires is None or self.store.clock.now() < expires", "True"),
    ),
    mutant(
        "an erasure does not reach memory",
        "memories",
        ("session.compliance", "erase_memories_from(", "(lambda *a: None)("),
    ),
    mutant(
        "a change does not read the document first",
        "shared documents",
        ("stores.document_store", "self._refresh(log)\n            # A", "# A"),
    ),
    mutant(
        "events that were saved over are forgotten",
        "shared documents",
        ("stores.document_store", "if common < kept.head.head:", "if False:"),
    ),
    mutant(
        "an erasure does not reach shared memories",
        "memories",
        ("memory.memory_log", "[(user_id, app_name), (None, app_name), (None, None)]", "[(user_id, app_name)]"),
    ),
    *erasures_mutants.MUTANTS,
    *fairness_mutants.MUTANTS,
    *files_mutants.MUTANTS,
    *imports_mutants.MUTANTS,
    *interrupts_mutants.MUTANTS,
    *quotas_mutants.MUTANTS,
    *roles_mutants.MUTANTS,
    *signatures_mutants.MUTANTS,
)
