"""Every code block of the documentation runs, and prints what the page says; nothing public is left undocumented."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import errors
from holdfast.cli.main import main
from holdfast.log.events import VERSIONS
from tests.docs.pages import Page
from tests.kit.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SERVING = [page for page in PAGES if "$ holdfast serve" in page.read_text()]
CASES = [(page, "sqlite") for page in PAGES] + [(page, "postgres") for page in SERVING]


@pytest.mark.parametrize(("page", "kind"), CASES, ids=[f"{page.name} on {kind}" for page, kind in CASES])
def test_the_code_on_a_page_runs_and_prints_what_it_says(
    page: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_STORE", "HOLDFAST_TOKEN", "HOLDFAST_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {}
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        environment["HOLDFAST_STORE"] = server.database()
    Page(page, tmp_path, environment).run()


def test_every_event_type_is_documented() -> None:
    text = (ROOT / "docs" / "log.md").read_text()
    assert [name for name in VERSIONS if f"`{name}`" not in text] == []


def test_every_error_is_documented() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.AgentError)]
    rows = [f"| `{kind.__name__}` | `{kind.code}` | {kind.status} | " for kind in kinds]
    assert [row for row in rows if row not in text] == []


def test_every_command_is_documented_and_explains_itself() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for name, command in main.commands.items():
        assert f"holdfast {name}" in text or f"make {name}" in text, name
        shown = CliRunner().invoke(main, [name, "--help"])
        assert shown.exit_code == 0
        assert command.help


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
