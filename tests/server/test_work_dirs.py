"""The work_dir of a session belongs to the owner of the session: tenants and users share no files."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from holdfast.server.config import Config
from holdfast.server.work_dirs import folder_of
from tests.proofs.secured_server import Caller, SecuredServer
from tests.proofs.work_dirs import check_later_work_dirs, check_work_dirs, make_folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    make_folders(found)
    return found


@pytest.fixture
def server(tmp_path: Path, root: Path) -> Iterator[SecuredServer]:
    with SecuredServer(tmp_path, sessions=1, work_roots=(str(root),)) as server:
        yield server


@pytest.fixture
def caller(server: SecuredServer) -> Iterator[Caller]:
    with Caller(server.port) as caller:
        yield caller


def test_a_session_works_only_in_the_folder_of_its_owner(server: SecuredServer, caller: Caller, root: Path) -> None:
    assert list(check_work_dirs(caller, server, root)) == []


def test_a_work_dir_is_checked_again_when_a_tool_uses_it(server: SecuredServer, caller: Caller, root: Path) -> None:
    assert list(check_later_work_dirs(caller, server, root)) == []


NAMES = [
    "alice",
    "Alice",
    "ALICE",
    "alice ",
    "alice.",
    "..",
    ".",
    "...",
    "a/b",
    "a%2Fb",
    "a%2fb",
    "@",
    "%40",
    "caf\u00e9",
    "cafe\u0301",
    "\u212b",
    "\u00c5",
    "A\u030a",
    "\u017f",
    "s",
    "S",
    "ﬁ",
    "fi",
    "ß",
    "ss",
    "con",
    "a_b",
    "a-b",
    "a:b",
    "a\\b",
]


def test_no_two_names_have_one_folder() -> None:
    found = {name: folder_of("acme", name) for name in NAMES}
    for one, other in combinations(NAMES, 2):
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            texts = [unicodedata.normalize(form, found[name]).casefold() for name in (one, other)]
            assert texts[0] != texts[1], (one, other)
    for name in NAMES:
        assert found[name].split("/")[0] == "acme"
        assert len(Path(found[name]).parts) == 2
        assert ".." not in found[name]
        assert folder_of(name, None) != folder_of("", name)


def test_owners_without_a_tenant_or_a_user_have_a_place_too() -> None:
    assert folder_of("", None) == ""
    assert folder_of("acme", None) == "acme"
    assert folder_of("", "alice") == "@/alice"
    assert folder_of("acme", "alice@example.com") == "acme/alice%40example%2Ecom"


def test_a_work_root_inside_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(Exception, match="inside") as caught:
        Config(work_roots=(str(tmp_path), str(tmp_path / "inner"))).check()
    assert getattr(caught.value, "code", "") == "invalid_argument"
