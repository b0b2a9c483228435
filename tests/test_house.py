"""The code base stays readable: names, modules and words keep the bounds of `tools/house.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "house.py"


def load_script() -> ModuleType:
    """The script as a module. By path: on the path of the tests, the name `tools` is the folder tests/tools."""
    spec = spec_from_file_location("holdfast_house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


house: Any = load_script()


@pytest.fixture(scope="module")
def measurement() -> Any:
    return house.measure()


def describe_places(title: str, places: Iterable[object]) -> str:
    return "\n".join([title, *map(str, places)])


def test_functions_are_named_by_verbs(measurement: Any) -> None:
    title = f"{measurement.participle_share:.1f} % of the functions are named by a participle or a gerund:"
    assert measurement.participle_share <= house.MAX_PARTICIPLES, describe_places(title, measurement.participles)


def test_modules_are_nouns(measurement: Any) -> None:
    title = f"{len(measurement.gerunds)} modules are named by a gerund:"
    assert len(measurement.gerunds) <= house.MAX_GERUND_MODULES, describe_places(title, measurement.gerunds)


def test_docstrings_and_comments_name_what_they_mean(measurement: Any) -> None:
    title = f"{measurement.source.rate:.1f} riddle words per 1,000 in docstrings and comments:"
    assert measurement.source.rate <= house.MAX_RIDDLES, describe_places(title, measurement.source.riddles)


def test_the_docs_name_what_they_mean(measurement: Any) -> None:
    title = f"{measurement.pages.rate:.1f} riddle words per 1,000 in the docs:"
    assert measurement.pages.rate <= house.MAX_RIDDLES, describe_places(title, measurement.pages.riddles)


# -- the measure itself --------------------------------------------------------------------------------------------

RIDDLE = '''"""Whoever reads this knows nothing.

Nobody does.
"""


class Box:
    def closing_drafts(self) -> list[str]:  # somebody asks
        """Drafts."""
        return []

    def send(self) -> None:
        self.x = "whatever"

    async def send_async(self) -> None:
        self.x = "whatever"


def _told() -> int:
    return 1
'''

CLEAN = '''"""Encodes rows."""


class Box:
    def send(self) -> None:
        """Send the box."""

    send_async = twin(send)

    @property
    def closed(self) -> bool:
        return True

    @property
    def created_at(self) -> int:
        return 1


def encode_row(row: str) -> str:
    """The row as text."""
    return row


def embed(text: str) -> str:
    return text
'''


def write_tree(root: Path, module: str, source: str, page: str) -> Any:
    """A checkout with one module and one page, measured."""
    (root / "src").mkdir()
    (root / "docs").mkdir()
    (root / "src" / module).write_text(source)
    (root / "docs" / "page.md").write_text(page)
    return house.measure(root)


def test_a_tree_of_riddles_is_reported(tmp_path: Path) -> None:
    page = "# Page\n\nSomeone reads, and no one\nanswers.\n\n```python\nwhatever = 1\n```\n\nThe `told` key.\n"
    measurement = write_tree(tmp_path, "keeping.py", RIDDLE, page)
    assert [(place.name, place.line) for place in measurement.participles] == [("_told", 19), ("closing_drafts", 8)]
    assert [place.name for place in measurement.gerunds] == ["keeping"]
    riddles = [(place.name, place.line) for place in measurement.source.riddles]
    assert riddles == [("whoever", 1), ("nobody", 3), ("somebody", 8)]
    assert [(place.name, place.line) for place in measurement.pages.riddles] == [("someone", 3), ("no one", 3)]
    assert [place.name for place in measurement.twins] == ["Box.send / send_async"]
    assert measurement.participle_share == 50.0
    assert measurement.source.rate > house.MAX_RIDDLES
    assert measurement.pages.rate > house.MAX_RIDDLES
    for reporting in (test_functions_are_named_by_verbs, test_docstrings_and_comments_name_what_they_mean):
        with pytest.raises(AssertionError, match=r"src/keeping\.py:\d+  "):
            reporting(measurement)
    with pytest.raises(AssertionError, match=r"docs/page\.md:3  someone"):
        test_the_docs_name_what_they_mean(measurement)
    listed = house.format_list(measurement)
    assert "src/keeping.py:19  _told" in listed
    assert "docs/page.md:3  someone" in listed


def test_a_clean_tree_is_not_reported(tmp_path: Path) -> None:
    measurement = write_tree(tmp_path, "rows.py", CLEAN, "# Rows\n\nA row is a line.\n")
    assert (measurement.participles, measurement.gerunds, measurement.twins) == ([], [], [])
    assert (measurement.source.riddles, measurement.pages.riddles) == ([], [])
    assert measurement.source.words > 0
    assert measurement.pages.words > 0
    test_functions_are_named_by_verbs(measurement)
    test_modules_are_nouns(measurement)
    test_docstrings_and_comments_name_what_they_mean(measurement)
    test_the_docs_name_what_they_mean(measurement)
    assert "0.0 %" in house.format_table(measurement)


@pytest.mark.parametrize(
    "name", ["_told", "presented", "reading", "shortened_text", "unfinished", "rebuilt_view", "_kept"]
)
def test_participles_are_recognised(name: str) -> None:
    assert house.is_participle(name)


@pytest.mark.parametrize(
    "name", ["feed", "string", "_docstring", "read", "cut", "run", "is_closed", "created_at", "encode", "__missing__"]
)
def test_verbs_and_nouns_are_no_participles(name: str) -> None:
    assert not house.is_participle(name)
