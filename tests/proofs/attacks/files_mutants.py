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
    mutant(
        "a doctor that verifies nothing",
        "sampled damage",
        ("cli.soundness", "if found is not None:", "if False:"),
    ),
    mutant(
        "a doctor that looks at no page",
        "sampled damage",
        ("stores.restoration", 'return None if found == "ok" else', "return None if found else"),
    ),
    mutant(
        "a thread of a tool that waits for its own turn",
        "nested turns",
        ("session.turns", "(self._is_turn_over is not None and not self._is_turn_over())", "False"),
    ),
    mutant(
        "a fact of several lines",
        "forged lines",
        ("prompt.sections", "one_line(f\"- {fact.get('kind'", "str(f\"- {fact.get('kind'"),
    ),
    mutant(
        "an agent's words without an indent",
        "forged lines",
        ("prompt.perspective", "{indent_lines(text)}", "{text}"),
    ),
    mutant(
        "a Markdown export with the texts as they are",
        "forged lines",
        ("session.export", '*([] if kind == "text" else [f"*{kind}*", ""]), fence, text, fence, ""]', 'text, ""]'),
    ),
    mutant(
        "names with a meaning in Markdown",
        "forged lines",
        ("session.export", 'return _MARKDOWN.sub(r"\\\\\\g<0>", one_line(text))', "return one_line(text)"),
    ),
    mutant(
        "a redaction that misses facts of several lines",
        "forged lines",
        ("stores.erasure", "text.encode(), one_line(text).encode(), ", "text.encode(), "),
    ),
    mutant(
        "a lease of any length",
        "lease settings",
        ("stores.lease", "if not MIN_SECONDS <= seconds <= MAX_SECONDS:", "if False:"),
    ),
    mutant(
        "an empty variable that counts",
        "lease settings",
        ("stores.lease", "_parse_seconds(text) if text else DEFAULT_SECONDS", "_parse_seconds(text)"),
    ),
    mutant(
        "a damaged byte is shown",
        "damaged events",
        ("log.events", "if body[SALT_SIZE:PAYLOAD_AT] != crc32(payload).to_bytes(4):", "if False:"),
    ),
    mutant("a damaged copy restored", "altered copies", ("stores.restoration", "if damages:", "if False:")),
)
