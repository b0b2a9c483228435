"""Bugs in the fair use of a server."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "large answers are built all at once",
        "large answers",
        ("server.large_answers", "if self.size > LARGE and not self._has_place:", "if False:"),
    ),
    mutant(
        "the place of a large answer is never given back",
        "large answers",
        ("server.large_answers", "        if self._has_place:\n", "        if False:\n"),
    ),
    mutant(
        "one tenant may take every run thread",
        "runs that were left",
        ("worker.thread_shares", "return self._held[tenant] < min(self.limit, SHARE * free)", "return free > 0"),
    ),
    mutant(
        "turns run on the threads of requests",
        "more runs left than threads",
        (
            "server.run_waiter",
            "return await off_thread(admit)",
            "return await off_thread(work, report_result)",
        ),
    ),
    mutant(
        "models asked on the threads of requests",
        "models asked outside of runs",
        (
            "server.app",
            "call_model(self.limits.model_calls, caller, work) if asks_model else off_thread(work)",
            "off_thread(work)",
        ),
    ),
    mutant(
        "runs that are not counted after their request",
        "an escape from the limit of runs",
        (
            "server.runs_under_way",
            "            self.give_to_run(result[0], result[1].run_id)\n",
            "            self.release()\n",
        ),
        ("server.run_requests", "lambda run: slot.give_to_run(log, run)", "lambda run: slot._slot.release()"),
    ),
    mutant(
        "a cancelled run that is not counted while its thread hangs",
        "an escape from the limit of runs",
        ("worker.run_pool", "if run in self._driven:", "if False:"),
    ),
    mutant(
        "ready while every write fails",
        "a full store",
        ("server.readiness", "if store.write_fault is not None:", "if False:"),
    ),
    mutant(
        "an error that tells where the store is",
        "a full store",
        ("server.errors", "if not isinstance(error, StoreError) or", "if True or"),
    ),
    mutant(
        "streams of revoked keys",
        "a revoked key",
        ("server.event_stream", "await check_key(self._server, scope)", "pass"),
    ),
    mutant(
        "a whole page in the buffer of a connection",
        "clients that read nothing",
        ("server.http.middleware", "await self._send_in_chunks(message)", "await self._send(message)"),
    ),
    mutant(
        "connections that wait for ever for their clients",
        "clients that read nothing",
        (
            "server.http.header_limits",
            "super().pause_writing()\n        if self._stall_timer is None:",
            "super().pause_writing()\n        if False:",
        ),
    ),
    mutant(
        "an address that is locked out for one client",
        "guesses at one address",
        ("server.auth", "key_id is None or not await self._is_known_id(key_id)", "True"),
    ),
    mutant(
        "guesses that reach the store",
        "guesses at one address",
        ("server.auth", "key_id is None or not await self._is_known_id(key_id)", "False"),
        ("server.auth", "if not self._limits.may_guess(source):", "if False:"),
    ),
)
