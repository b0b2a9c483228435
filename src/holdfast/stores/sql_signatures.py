"""The signed heads and the legal erasures of a store in a SQL database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.stores.base import Log, TenantLog
from holdfast.stores.rows import log_from_columns
from holdfast.stores.signatures import HeadToSign
from holdfast.stores.signing_keys import SignedHead
from holdfast.stores.sql_reads import SQLConnection, SQLReads

T = TypeVar("T")


class SQLSignatures(SQLReads):
    """The audit methods of a store in a SQL database."""

    @abstractmethod
    def _transaction(self, job: Callable[[Any], T]) -> T:
        """Run a job in a transaction and return its result when it is durable."""

    def logs_after(self, number: int, *, limit: int) -> list[TenantLog]:
        rows = self._across_tenants()._fetch_all(self.sql.LOGS_AFTER, (number, self.tenant, self.tenant, limit))
        return [TenantLog(row[12], log_from_columns(row)) for row in rows]

    def heads_to_sign(self, *, after: int = 0, limit: int = 1000) -> list[HeadToSign]:
        rows = self._across_tenants()._fetch_all(self.sql.HEADS_TO_SIGN, (after, self.tenant, self.tenant, limit))
        found = []
        for row in rows:
            log, (tenant, head, hash, *signed) = log_from_columns(row), row[12:]
            found.append(HeadToSign(tenant, log, head, bytes(hash), _signed_head(tenant, log, signed)))
        return found

    def put_signatures(self, signed: Sequence[tuple[int, SignedHead]], *, anchored: bool) -> None:
        def job(db: SQLConnection) -> None:
            for number, each in signed:
                hash, signature = bytes.fromhex(each.hash), bytes.fromhex(each.signature)
                values = (number, each.seq, hash, each.at, each.key, signature, anchored, number)
                db.execute(self.sql.PUT_SIGNATURE, values)

        self._across_tenants()._transaction(job)

    def signed_head(self, log: Log) -> SignedHead | None:
        found = self._fetch_one(self.sql.SIGNATURE, (log.number,))
        return None if found is None else _signed_head(self.tenant, log, found)

    def erasures_of(self, number: int) -> list[bool]:
        return [bool(whole) for (whole,) in self._fetch_all(self.sql.ERASURES, (number,))]


def _signed_head(tenant: str, log: Log, columns: Sequence[Any]) -> SignedHead | None:
    seq, hash, at, key, signature = columns
    if seq is None:
        return None
    return SignedHead(
        tenant=tenant,
        kind=log.kind,
        id=log.id,
        uid=log.uid,
        seq=seq,
        hash=bytes(hash).hex(),
        at=at,
        key=key,
        signature=bytes(signature).hex(),
    )
