"""Numbered SQL files, each applied once, in a transaction with its record. A landed file is never edited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from holdfast.errors import CorruptLog, SchemaTooNew


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return sha256(self.sql.encode()).hexdigest()


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The migrations of `sqlite` or `postgres`, in order."""
    folder = files("holdfast.stores") / "sql" / dialect
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(found)


def migrate(dialect: str, applied: Mapping[int, str], apply: Callable[[Migration], None]) -> None:
    """Apply what is missing. The caller holds a lock and a transaction; `applied` is version -> digest."""
    known = {migration.version: migration for migration in migrations(dialect)}
    for version, digest in applied.items():
        if version not in known:
            raise SchemaTooNew(
                f"the database has schema {version}, this holdfast knows {max(known)}: upgrade holdfast to open it"
            )
        if known[version].digest != digest:
            raise CorruptLog(f"migration {version} of the database is not the one of this holdfast: restore the file")
    for version, migration in known.items():
        if version not in applied:
            apply(migration)
