"""The same random operations on several stores at once, each compared with the others and with the model.

Every choice is drawn before any store sees it, so that an episode is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.properties.read_operations import ReadOperations
from tests.properties.store_comparison import Difference
from tests.properties.turn_operations import TurnOperations
from tests.properties.write_operations import WriteOperations

__all__ = ["Difference", "RandomOperations"]


class RandomOperations(WriteOperations, TurnOperations, ReadOperations):
    """One episode of random operations; `run` raises a Difference at the first that differs."""

    def run(self, operations: int) -> None:
        """Perform operations until one differs."""
        for _ in range(operations):
            action = self.rng.choices(ACTIONS, WEIGHTS)[0] if self.sessions else RandomOperations.open
            self.done.append(action.__name__)
            action(self)
        self.compare_logs()


ACTIONS: tuple[Callable[[RandomOperations], None], ...]
WEIGHTS: tuple[int, ...]
ACTIONS, WEIGHTS = zip(
    *{
        RandomOperations.open: 4, RandomOperations.reopen_by_name: 2, RandomOperations.fork: 4,
        RandomOperations.delete: 2, RandomOperations.add: 10, RandomOperations.add_once: 4, RandomOperations.clear: 3,
        RandomOperations.rewind: 3, RandomOperations.set_state: 6, RandomOperations.update_state: 4,
        RandomOperations.delete_state: 3, RandomOperations.add_fact: 2, RandomOperations.change_fact: 2,
        RandomOperations.set_field: 2, RandomOperations.change_status: 3, RandomOperations.start_turn: 5,
        RandomOperations.take_over: 1, RandomOperations.step_turn: 8, RandomOperations.end_turn: 5,
        RandomOperations.append_guarded: 4, RandomOperations.export: 2, RandomOperations.save: 2,
        RandomOperations.read_field: 14, RandomOperations.read_state: 4, RandomOperations.read_events: 3,
        RandomOperations.read_list: 3, RandomOperations.compare_two: 1, RandomOperations.pass_bad_arguments: 2,
    }.items(),
    strict=True,
)  # fmt: skip
