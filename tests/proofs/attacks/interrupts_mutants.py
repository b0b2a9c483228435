"""Bugs in interrupted and abandoned calls."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a place that stays held after its call",
        "interrupted writes",
        ("stores.places", "if not call.is_under_way():", "if False:"),
        ("stores.places", "if call.is_under_way():\n                    return True", "if True: return True"),
    ),
    mutant(
        "a transaction that stays open after an interrupt",
        "interrupted writes",
        (
            "stores.group_commit",
            "        if self._writer.in_transaction:\n            self._roll_back()\n        elif",
            "        if",
        ),
    ),
    mutant(
        "an interrupt answers the jobs of other threads",
        "interrupted leader",
        (
            "stores.group_commit",
            "        except AgentError as error:\n            if isinstance",
            "        except BaseException as error:\n            if isinstance",
        ),
    ),
    mutant(
        "a time limit of the leader answers the job of another thread",
        "interrupted leader",
        (
            "stores.group_commit",
            "if not is_repeated and job.thread != _MAIN_THREAD",
            "if False and job.thread != _MAIN_THREAD",
        ),
    ),
    mutant(
        "a write inside a write waits for itself",
        "writes inside writes",
        ("stores.group_commit", "if self._lead.is_held_here():", "if False:"),
    ),
    mutant(
        "the collector cancels a stream where it strikes",
        "collected streams",
        ("turn.drivers", "isinstance(error, GeneratorExit) and is_inside_store()", "False"),
    ),
    mutant(
        "a silent server is waited for",
        "silent server",
        ("stores.postgres_connections", "self.answer_seconds if timeout is None else timeout", "timeout"),
    ),
    mutant(
        "connections to a silent server stay in the pool",
        "silent server",
        (
            "stores.postgres_connections",
            "                    self._close_idle()  # they lead",
            "                    pass  # they lead",
        ),
    ),
    mutant(
        "reads go on after the file was replaced",
        "replaced file",
        ("stores.sqlite_connections", "        self._refuse_replaced()\n", ""),
    ),
)
