"""Quotas on a server: whom a limit holds for, what a request is charged, and the headers that say what is left.

A tenant has the quota of the settings; a key may have one of its own, for its user, or for its tenant if it has no
user. Of two limits of one owner the smaller one holds. The store counts, so all servers of a store share the limits.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.log.times import to_datetime
from holdfast.log.view import decode_view
from holdfast.policy.budget import Budget
from holdfast.policy.quota import DAY, FLOWS, STOCKS, Quota, parse_tenant_quotas, seconds_to_midnight
from holdfast.server.config import Config
from holdfast.stores.base import Log, Store
from holdfast.stores.usage import Allowance, Price

MAX_KNOWN_QUOTAS = 10_000
MILLION = 1_000_000
# Requests by operation id whose body is charged to `bytes`: they add content. What removes content is never refused.
ADDING = frozenset(
    (
        "add_fact", "add_messages", "change_fact", "change_session", "create_agent", "create_session", "fork_session",
        "import_session", "ingest_session", "message", "message_stream", "replace_agent", "replay_session",
        "set_state_value", "store_memory", "succeed_session",
    )
)  # fmt: skip
# Requests that may call a model. Messages, resumes and retries are checked where a repeated one finds its run.
ASKING = frozenset(("ingest_session", "prune_session"))


class Quotas:
    """The quotas of a server."""

    def __init__(self, config: Config) -> None:
        self._tenants = parse_tenant_quotas(config.quotas)
        self._prices = parse_prices(config.prices)
        self._lock = threading.Lock()
        # Quotas of the keys that were used here, by tenant and user: runs are limited by them as well.
        self._keys: OrderedDict[tuple[str, str | None], Quota] = OrderedDict()

    def limit_store(self, store: Store, user_id: str | None, quota: Quota | None) -> Store:
        """Return the store of a caller, bound to the limits of its tenant and its key."""
        if quota is not None:
            with self._lock:
                self._keys[store.tenant, user_id] = quota
                self._keys.move_to_end((store.tenant, user_id))
                if len(self._keys) > MAX_KNOWN_QUOTAS:
                    self._keys.popitem(last=False)
        return self._bind(store, {user_id: quota})

    def limit_run(self, store: Store, log: Log, budget: Budget | None) -> tuple[Store, RunMeter | None]:
        """Return the store of a run's session, bound to the limits of its tenant and user, and the meter of the run."""
        known = {user: self._keys.get((store.tenant, user)) for user in (log.user_id, None)}
        limited = self._bind(store, known)
        if limited.allowances:
            limited.start_counting()
        meter = None
        if any(each.quota.has_flow for each in limited.allowances):
            meter = RunMeter(limited, log, self._find_price(limited, budget))
        return limited, meter

    def _bind(self, store: Store, found: Mapping[str | None, Quota | None]) -> Store:
        quotas = {user: quota for user, quota in found.items() if quota}
        of_tenant = self._tenants.get(store.tenant, self._tenants[None])
        if of_tenant:
            quotas[None] = of_tenant.tighten(quotas[None]) if None in quotas else of_tenant
        return store.limited(Allowance(user, quota) for user, quota in quotas.items()) if quotas else store

    def check_run(self, store: Store, size: int) -> None:
        """Admit a run with a message of this size; raise QuotaExceeded if a limit leaves no room for it. Blocks."""
        if not store.allowances:
            return
        store.start_counting()
        store.check_day()
        store.reserve_bytes(size)

    def _find_price(self, store: Store, budget: Budget | None) -> Price:
        """Return the price of an agent's model calls. Without prices money cannot be limited, so nothing may run."""
        for each in (budget, self._prices):
            if each is not None and each.prices:
                return each.cost_of
        if any(each.quota.cost_per_day is not None for each in store.allowances):
            raise InvalidArgument(
                "a quota limits the money of a day, and this agent has no prices: start the server with --price, or "
                "give the agent a budget with prices"
            )
        return self._prices.cost_of


class RunMeter:
    """Settles the usage of a run before each of its model calls and at its end, and stops it if the day is used up."""

    def __init__(self, store: Store, log: Log, price: Price) -> None:
        self._store, self._log, self._price = store, log, price

    def __call__(self, used: Mapping[str, int]) -> None:
        self._store.settle_usage(self._log, used, self._price)
        self._store.check_day()

    def settle(self) -> None:
        used = decode_view(self._store.head(self._log).view).usage
        self._store.settle_usage(self._log, used, self._price)


def charge_request(store: Store, operation: str | None, size: int) -> None:
    """Charge a request that changes something; raise QuotaExceeded if a limit leaves no room for it. Blocks."""
    store.start_counting()
    if operation in ASKING:
        store.check_day()
    if operation in ADDING:
        store.reserve_bytes(size)


def parse_prices(texts: tuple[str, ...]) -> Budget:
    """Return a budget that has only prices, from texts such as "input=2.5"."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, price = text.partition("=")
        try:
            prices[name.strip()] = float(price)
        except ValueError:
            raise InvalidArgument(f"price {text!r}: write it as name=price, such as input=2.5") from None
    return Budget(prices=prices)


# -- what is left ------------------------------------------------------------------------------------------------------


def describe_quotas(store: Store) -> list[dict[str, Any]]:
    """Return the limits of a store with what is used and left of them, as GET /quota shows them. Blocks."""
    store.start_counting()
    now, found = store.clock.now(), []
    for each in store.allowances:
        for name, limit in each.quota.to_dict().items():
            used = getattr(each.used, name)
            found.append(
                {
                    "name": name,
                    "user_id": each.user_id,
                    "limit": limit,
                    "used": used,
                    "left": max(0, limit - used),
                    "resets_at": to_datetime((now // DAY + 1) * DAY).isoformat() if name in FLOWS else None,
                }
            )
    return found


def quota_headers(store: Store) -> list[tuple[bytes, bytes]]:
    """Return the headers RateLimit-Policy and RateLimit: of each name the limit of which least is left. Numbers are
    whole there, so money is in millionths."""
    least: dict[str, tuple[int, int]] = {}  # left, limit
    for each in store.allowances:
        for name, limit in each.quota.to_dict().items() if each.used is not None else ():
            scale = MILLION if name == "cost_per_day" else 1
            left = max(0, math.floor((limit - getattr(each.used, name)) * scale))
            least[name] = min(least.get(name, (left, int(limit * scale))), (left, int(limit * scale)))
    if not least:
        return []
    wait = math.ceil(seconds_to_midnight(store.clock.now()))
    names = [name for name in (*STOCKS, *FLOWS) if name in least]
    policy = [f'"{name}";q={least[name][1]}' + (";w=86400" if name in FLOWS else "") for name in names]
    state = [f'"{name}";r={least[name][0]}' + (f";t={wait}" if name in FLOWS else "") for name in names]
    return [(b"ratelimit-policy", ", ".join(policy).encode()), (b"ratelimit", ", ".join(state).encode())]
