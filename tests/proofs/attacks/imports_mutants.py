"""Bugs in imports and the sweep."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "an import keeps its open turn",
        "imported work",
        (
            "log.view",
            "            self.turn.merge_branches(None)\n            self._end_turn(self.turn, seq, kept=True)\n",
            "            pass\n",
        ),
    ),
    mutant(
        "an import keeps its queue and its failed turn",
        "imported work",
        (
            "log.view",
            "self.queue, self.ended_turn, self.failed, self.released, self.unverified = [], None, False, False, seq",
            "self.failed, self.released, self.unverified = False, False, seq",
        ),
    ),
    mutant(
        "an import keeps its retention and its hold",
        "imported rules",
        ("log.view", "        self.held, self.immutable, self.ttl, self.retention = 0, False, None, 0\n", ""),
    ),
    mutant(
        "an import shows its retention",
        "imported rules",
        ("log.named_values", 'if type == "session.imported" or (', "if False and ("),
    ),
    mutant(
        "a fork from inside an import takes its retention over",
        "imported rules",
        ("session.session", "if point.view.retention > unverified:", "if point.view.retention:"),
    ),
    mutant(
        "the actors of an import count as verified",
        "imported actors",
        ("log.events", "self.verified = row.seq > unverified", "self.verified = True"),
    ),
    mutant(
        "a fork from inside an import verifies its actors",
        "imported actors",
        ("session.session", 'data["unverified"] = unverified', "pass"),
    ),
    mutant(
        "a document may bring a decision",
        "imported work",
        (
            "stores.turn_documents",
            '        "approval.requested",\n',
            '        "approval.requested",\n        "approval.decided",\n',
        ),
    ),
    mutant(
        "an import is not checked by the types of its events",
        "forged payloads",
        ("session.export", "fault = event_rules.find_fault(self.rows, self.blobs)", "fault = None"),
    ),
    mutant(
        "unknown fields pass",
        "forged payloads",
        ("policy.event_rules", '            return f"the field {name[:40]!r} is unknown"\n', "            continue\n"),
    ),
    mutant(
        "ranges may overlap and name events that are not there",
        "forged payloads",
        ("policy.event_rules", "and 0 < pair[0] <= pair[1] < seq", "and 0 < pair[0] <= pair[1]"),
        (
            "policy.event_rules",
            "_covers(value, seq) and sum(last - first + 1 for first, last in value) < seq",
            "_covers(value, seq)",
        ),
    ),
    mutant(
        "erasure needs to understand a payload",
        "odd payloads",
        (
            "log.tombstones",
            "    except UNREADABLE:  # it cannot be read",
            "    except ZeroDivisionError:  # it cannot be read",
        ),
    ),
    mutant(
        "the index needs to understand a payload",
        "odd payloads",
        ("stores.rows", "    except UNREADABLE:", "    except ZeroDivisionError:"),
    ),
    mutant(
        "one bad session stops the sweep",
        "bad sessions",
        (
            "worker.sweep",
            "if isinstance(error, StoreError) and not isinstance(error, CorruptLog | WrongKey):",
            "if True:",
        ),
    ),
    mutant(
        "a bad session is due again at once",
        "bad sessions",
        ("worker.sweep", "self.now + FAILURE_DELAY", "0"),
    ),
    mutant(
        "a sweep without an interval",
        "maintenance",
        (
            "server.app",
            "            if self.config.sweep_every:\n                await",
            "            if True:\n                await",
        ),
        ("server.app", "PURGE_EVERY = 60.0", "PURGE_EVERY = 0.05"),
    ),
    mutant(
        "an unexpected error ends the maintenance",
        "maintenance",
        (
            "server.app",
            "        except Exception as error:  # noqa: BLE001",
            "        except ZeroDivisionError as error:  # noqa: BLE001",
        ),
    ),
    mutant(
        "the sweep believes the clock of its machine",
        "clocks",
        ("worker.sweep", "    now = store.read_time()\n", "    now = before\n"),
    ),
    mutant(
        "a clock that is behind makes a session older",
        "clocks",
        ("stores.append", "return max(before, at) if", "return at if"),
    ),
)
