"""Bugs in files, backups and prompts."""

from __future__ import annotations

from tests.proofs.mutant import Mutant, mutant

MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "a copy that begins again with every write",
        "backup under load",
        (
            "stores.sqlite_backup",
            'source.execute("VACUUM INTO ?", (str(draft.absolute()),))',
            """with _connect(draft) as begun, begun.backup("main", source, "main") as step:
            while not step.done:
                step.step(1000)""",
        ),
    ),
    mutant(
        "a database that others can open while it is new",
        "file modes",
        (
            "stores.sqlite_connections",
            "create_private_file(self.path)",
            "os.path.exists(self.path) or self._connect(6).close() or os.chmod(self.path, 0o600)",
        ),
    ),
    mutant("private files that all can read", "file modes", ("operating_system", "0o600))", "0o644))")),
    mutant(
        "a copy written under its final name",
        "broken backups",
        ("stores.sqlite_backup", 'draft = path.with_name(f".{path.name}.{unique}")', "draft = path"),
        ("stores.sqlite_backup", "        _take_name(draft, path)\n", ""),
        ("stores.sqlite_backup", 'Path(f"{draft}{suffix}").unlink(missing_ok=True)', "pass"),
    ),
    mutant(
        "a copy that replaces a file",
        "broken backups",
        ("stores.sqlite_backup", "if os.path.lexists(file):", "if False:"),
        ("stores.sqlite_backup", "os.link(draft, path)", "draft.replace(path)"),
    ),
    mutant("a damaged copy restored", "altered copies", ("stores.restoration", "if damages:", "if False:")),
)
