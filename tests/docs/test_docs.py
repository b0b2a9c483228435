"""Every code block of the documentation runs, and prints what the page says; nothing public is left undocumented."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import errors
from holdfast.cli.main import main
from holdfast.log.events import VERSIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    names: dict[str, object] = {"__name__": page.stem}
    printed = None
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(page), "exec", dont_inherit=True), names)
            printed = out.getvalue()
        elif language == "text":
            assert printed == code, f"{page.name} prints something else than it says"
            printed = None
        else:
            assert language in ("console", "sh"), f"a block of unknown kind in {page.name}: {language}"
        if language == "python" and "print(" in code:
            assert printed
    close = getattr(names.get("store"), "close", None)
    if close:
        close()


def test_every_event_type_is_documented() -> None:
    text = (ROOT / "docs" / "log.md").read_text()
    assert [name for name in VERSIONS if f"`{name}`" not in text] == []


def test_every_error_is_documented() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    names = [
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.AgentError)
    ]
    assert [name for name in names if f"`{name}`" not in text] == []


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
