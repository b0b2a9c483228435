"""B3: the real server is killed under clients that retry."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.kit.postgres import PostgresServer
from tests.kit.server_process import ServerProcess
from tests.proofs import Report, proof
from tests.proofs.clients import APP, ClientLoad, compare_with_store
from tests.proofs.crashes import make_scratch_directory

SESSIONS = [f"s{number}" for number in range(5)]
PAUSE = 0.005


@proof("B3", ci=4, long=1_000)
def server_kills(size: int, seed: int) -> Report:
    """Kill -9 of the server `size` times on each store, under eight clients that ask again with the same key."""
    figures, failures = [], []
    with make_scratch_directory() as directory, PostgresServer(durable=True) as postgres:
        urls = {"sqlite": f"sqlite:///{directory}/sessions.db", "postgres": postgres.database(tcp=True)}
        for kind, url in urls.items():
            effects = directory / kind
            effects.mkdir()
            told, found = kill_under_load(url, effects, size, f"{seed} {kind}")
            figures.append(f"{kind} {told}")
            failures += [f"{kind}: {failure}" for failure in found]
    return Report(figures=f"{'; '.join(figures)}; {len(failures)} lost, doubled or stuck", failures=failures)


def kill_under_load(url: str, effects: Path, kills: int, seed: str) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    with ServerProcess(APP, url, prove_effects=effects, prove_pause=PAUSE) as server:
        load = ClientLoad([server], SESSIONS, seed)
        load.make_sessions()
        with load.running():
            for number in range(kills):
                time.sleep(rng.uniform(0.05, 0.8))
                server.kill()
                server.launch()
                if number % 4 == 3:  # while it starts, too
                    time.sleep(rng.uniform(0.2, 1.0))
                    server.kill()
                    server.launch()
                server.wait_until_ready()
        failures = compare_with_store(url, load, effects)
        if failures:
            failures.append(f"the servers said: {server.stderr[-2000:]}")
    broken = sum(number for word, number in load.statuses.items() if isinstance(word, str) and "done" not in word)
    told = f"{server.starts - 1} kills, {load.acknowledged} acknowledged over {broken} broken connections"
    return f"{told}, the longest within {load.longest:.1f} s", failures
