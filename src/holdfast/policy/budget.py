"""Budgets: what a session may use, checked before each model call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from holdfast.errors import BudgetExceeded, InvalidArgument
from holdfast.log.arguments import suggest_keywords, suggest_name

MILLION = 1_000_000


@suggest_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits for a whole session; what is not given is not limited.

    `cost` needs `prices`, in money per million tokens: `Budget(cost=2.0, prices={"input": 2.5, "output": 10.0})`; the
    keys are `input`, `output`, `cache_read`, `cache_write` and `reasoning`.
    """

    tokens: int | None = None
    cost: float | None = None
    turns: int | None = None
    steps: int | None = None
    seconds: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tokens", "cost", "turns", "steps", "seconds"):
            limit = getattr(self, name)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0):
                raise InvalidArgument(f"Budget({name}={limit!r}): use a number that is not negative")
        for name, price in self.prices.items():
            if name not in _PRICE_NAMES or isinstance(price, bool) or not isinstance(price, int | float) or price < 0:
                raise InvalidArgument(f"prices={{{name!r}: {price!r}}}: use {', '.join(_PRICE_NAMES)} and numbers")
        if self.cost is not None and not self.prices:
            raise InvalidArgument("Budget(cost=...) needs prices={'input': ..., 'output': ...} per million tokens")

    def to_dict(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "prices"}
        found = {name: value for name, value in found.items() if value is not None}
        return found | ({"prices": dict(self.prices)} if self.prices else {})

    @classmethod
    def of(cls, value: Budget | Mapping[str, Any]) -> Budget:
        if isinstance(value, Budget):
            return value
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"budget= is a Budget or a dict, not {type(value).__name__}")
        known = [each.name for each in fields(cls)]
        for name in value:
            if name not in known:
                raise InvalidArgument(f"unknown in a budget: {name!r}: {suggest_name(name, known)}")
        return cls(**value)

    def cost_of(self, usage: Mapping[str, int]) -> float:
        """What the usage of some calls costs. Cached and reasoning tokens are counted apart where they have a price."""
        total = 0.0
        counted = dict(usage)
        for name, part_of in (("cache_read", "input"), ("cache_write", "input"), ("reasoning", "output")):
            if name in self.prices:
                amount = counted.get(f"{name}_tokens", 0)
                counted[f"{part_of}_tokens"] = counted.get(f"{part_of}_tokens", 0) - amount
                total += amount * self.prices[name]
        for name in ("input", "output"):
            total += max(0, counted.get(f"{name}_tokens", 0)) * self.prices.get(name, 0.0)
        return total / MILLION

    def check(self, *, usage: Mapping[str, int], turns: int) -> None:
        """Raise if the next model call is over the budget. `usage` is everything the session used so far."""
        used = {
            "tokens": usage.get("input_tokens", 0) + usage.get("output_tokens", 0),
            "cost": self.cost_of(usage),
            "turns": turns,
            "steps": usage.get("steps", 0),
            "seconds": usage.get("milliseconds", 0) / 1000,
        }
        for name, amount in used.items():
            limit = getattr(self, name)
            if limit is not None and amount >= limit:
                raise BudgetExceeded(name, used=amount, limit=limit)


_PRICE_NAMES = ("input", "output", "cache_read", "cache_write", "reasoning")
