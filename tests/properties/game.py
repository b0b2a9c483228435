"""The same random operations on several stores at once, each compared with the others and with the model.

Every choice is drawn before any store sees it, so that an episode is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.properties.moves import Moves
from tests.properties.questions import Questions
from tests.properties.table import Difference
from tests.properties.turning import Turning

__all__ = ["Difference", "Game"]


class Game(Moves, Turning, Questions):
    """One episode of random operations; `play` raises a Difference at the first that differs."""

    def play(self, operations: int) -> None:
        """Perform operations until one differs."""
        for _ in range(operations):
            action = self.rng.choices(ACTIONS, WEIGHTS)[0] if self.held else Game.open
            self.done.append(action.__name__)
            action(self)
        self.compare_logs()


ACTIONS: tuple[Callable[[Game], None], ...]
WEIGHTS: tuple[int, ...]
ACTIONS, WEIGHTS = zip(
    *{
        Game.open: 4, Game.reopen_by_name: 2, Game.fork: 4, Game.delete: 2,
        Game.add: 10, Game.add_once: 4, Game.clear: 3, Game.rewind: 3,
        Game.set_state: 6, Game.update_state: 4, Game.delete_state: 3,
        Game.add_fact: 2, Game.change_fact: 2, Game.set_field: 2, Game.move: 3,
        Game.start_turn: 5, Game.take_over: 1, Game.step_turn: 8, Game.end_turn: 5, Game.append_guarded: 4,
        Game.export: 2, Game.save: 2,
        Game.look: 14, Game.look_at_state: 4, Game.look_at_events: 3, Game.look_at_list: 3, Game.look_at_two: 1,
        Game.ask_nonsense: 2,
    }.items(),
    strict=True,
)  # fmt: skip
