"""What a store keeps beside its logs for audits: the last signed head of each log, and the legal erasures.

A signature outlives redactions and erasures, because they change no hash. It goes when its log is purged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.stores.signing_keys import SignedHead

if TYPE_CHECKING:
    from holdfast.stores.base import Log, TenantLog


class HeadToSign(NamedTuple):
    """A log whose head is not the one that was signed last, or whose signature the anchor has not taken."""

    tenant: str
    log: Log
    head: int
    hash: bytes
    signed: SignedHead | None  # its last signature


class SignedHeads(ABC):
    """The methods of a store for audits."""

    @abstractmethod
    def logs_after(self, number: int, *, limit: int) -> list[TenantLog]:
        """Logs of every kind that have a name, by number; of every tenant, if this store is bound to none."""

    @abstractmethod
    def heads_to_sign(self, *, after: int = 0, limit: int = 1000) -> list[HeadToSign]:
        """Logs after the number `after`, in order; of every tenant, if this store is bound to none."""

    @abstractmethod
    def put_signatures(self, signed: Sequence[tuple[int, SignedHead]], *, anchored: bool) -> None:
        """Keep these as the last signatures of their logs, by number; a log that was purged is left out."""

    @abstractmethod
    def signed_head(self, log: Log) -> SignedHead | None:
        """The last signed head of a log. It is not checked here."""

    def erasures_of(self, number: int) -> list[bool]:
        """The erasures for which the database let a log be changed: whether each was one of the whole log. A store
        without triggers has none."""
        return []
