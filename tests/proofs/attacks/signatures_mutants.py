"""Bugs in signed heads and the walls inside the database."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a signed head that is not compared with the log",
        "forged history",
        ("stores.verification", "if rows[0].hash.hex() != signed.hash:", "if False:"),
    ),
    mutant(
        "a signed head beyond the end that counts",
        "forged history",
        (
            "stores.verification",
            "    if not rows:\n        return _bad(found",
            "    if not rows:\n        return replace(found, signed=signed.seq)\n        return _bad(found",
        ),
    ),
    mutant(
        "a signature that is not checked",
        "forged history",
        ("stores.signing_keys", "key.verify(bytes.fromhex(signature), statement)", "pass"),
    ),
    mutant(
        "what contradicts its signature is signed again",
        "forged history",
        ("worker.head_signer", "if _contradicts(store.for_tenant(each.tenant), each):", "if False:"),
    ),
    mutant(
        "an export that needs no signature",
        "forged history",
        ("session.export", "if not found or not keys:", "if not found or not keys or self.signed is None:"),
    ),
    mutant(
        "a tombstone without a record",
        "open triggers",
        ("stores.verification", "if not is_recorded and seq >", "if False and seq >"),
    ),
    mutant(
        "an erasure without a record",
        "open triggers",
        ("stores.verification", "for whole in store.erasures_of(log.number):", "for whole in ():"),
    ),
    mutant(
        "a wall that every connection passes",
        "forgotten tenants",
        ("stores.postgres_tenants", 'EVERY_TENANT if tenant is None else f"tenant:{tenant}"', "EVERY_TENANT"),
    ),
    mutant(
        "a connection that keeps the tenant before",
        "forgotten tenants",
        ("stores.postgres_tenants", "if _current.get(db) == self._setting:", "if _current.get(db) is not None:"),
    ),
)
