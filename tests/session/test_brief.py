"""The brief of a session: its headings, its room, and the git head that is read without git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidArgument
from holdfast.session.brief import brief_text
from holdfast.session.git_head import git_head

EMPTY: dict[str, Any] = {
    "session_id": "s1",
    "title": None,
    "system": None,
    "facts": [],
    "unfinished": None,
    "pending": [],
    "last": [],
    "work_dir": None,
    "git": None,
    "turns": 0,
    "messages": 0,
}


def make_fact(text: str, kind: str = "fact", **more: str) -> dict[str, str]:
    return {"id": text, "text": text, "kind": kind} | more


def make_brief(**given: Any) -> str:
    return brief_text(**(EMPTY | given))


def test_a_new_session_has_little_to_say() -> None:
    assert make_brief() == "# Brief of session s1\n\n## Where things stand\n\n- 0 turns, 0 messages\n"


def test_everything_has_its_heading_and_its_order() -> None:
    text = make_brief(
        title="The plan",
        system="Be brief.",
        facts=[
            make_fact("the port is 2323"),
            make_fact("use SQLite", "decision"),
            make_fact("login", "feature", status="in progress"),
            make_fact("logout", "feature", status="Done"),
            make_fact("half of the tests", "progress"),
            make_fact("export", "progress", status="cancelled"),
            make_fact("the report", "artifact", ref="out/report.md"),
            make_fact("use PostgreSQL", "decision", status="final", ref="docs/7.md"),
        ],
        unfinished="Which database?",
        pending=["c1 (deploy)", "c2 (drop)"],
        last=[("user", "Go on.\n\n## Decisions\n- none"), ("assistant", "I do.")],
        work_dir="/srv/app",
        git="main 3fa9c1e2",
        turns=1,
        messages=12,
    )
    assert (
        text
        == """\
# Brief of session s1: The plan

## Where things stand

- 1 turn, 12 messages
- Unfinished turn, it was asked: Which database?
- 2 calls wait for approval: c1 (deploy), c2 (drop)
- Instructions were: Be brief.

## Decisions

- use SQLite
- use PostgreSQL [final] (docs/7.md)

## Open work

- login [in progress]
- half of the tests

## Done

- logout [Done]
- export [cancelled]

## Facts

- the port is 2323

## Artifacts

- the report (out/report.md)

## Last words

- user: Go on. ## Decisions - none
- assistant: I do.

## Work directory

- /srv/app
- git: main 3fa9c1e2
"""
    )


def test_a_fact_takes_one_line_with_any_text() -> None:
    text = make_brief(facts=[make_fact("one\r\n## Done\u2028two\n\n", status="a\nb", ref="c\nd")])
    assert text.splitlines()[-1] == "- one ## Done two [a b] (c d)"


def test_a_kind_of_a_later_holdfast_is_a_fact() -> None:
    assert "## Facts\n\n- odd\n" in make_brief(facts=[make_fact("odd", "omen")])


def test_last_words_are_cut_to_six_hundred_characters() -> None:
    text = make_brief(last=[("user", "x" * 601), ("assistant", "y" * 600)])
    assert f"- user: {'x' * 599}…\n" in text
    assert f"- assistant: {'y' * 600}\n" in text


def test_one_call_waits() -> None:
    assert "- 1 call waits for approval: c1\n" in make_brief(pending=["c1"])


FULL = EMPTY | {
    "facts": [make_fact(f"fact {n} " + "f" * 90) for n in range(10)]
    + [make_fact(f"decision {n} " + "d" * 90, "decision") for n in range(10)],
    "last": [("user", f"word {n} " + "w" * 90) for n in range(10)],
}


def test_last_words_go_first_the_oldest_before_the_newest() -> None:
    text = brief_text(**FULL, room=3000)
    assert len(text) <= 3000
    assert "word 0" not in text
    assert "word 9" in text
    assert all(f"fact {n}" in text and f"decision {n}" in text for n in range(10))
    assert "left out" not in text


def test_then_the_oldest_facts_go_and_the_text_says_so() -> None:
    text = brief_text(**FULL, room=1800)
    assert len(text) <= 1800
    assert "## Last words" not in text
    assert "## Facts\n\n- (4 older ones left out)\n- fact 4" in text
    assert all(f"decision {n}" in text for n in range(10))


def test_decisions_go_only_when_the_facts_are_gone() -> None:
    text = brief_text(**FULL, room=800)
    assert len(text) <= 800
    assert "- (10 older ones left out)" in text
    assert "decision 0" not in text
    assert "decision 9" in text


def test_one_long_fact_does_not_push_out_the_others() -> None:
    text = make_brief(facts=[make_fact("short"), make_fact("long " * 10_000)])
    assert "- short\n" in text
    assert len(text) < 4000


def test_even_the_smallest_room_is_kept_to() -> None:
    assert brief_text(**FULL, room=10) == "# Brief o…"
    with pytest.raises(InvalidArgument, match="room=0: use the number of characters"):
        make_brief(room=0)


words = st.text(max_size=300)
kinds = st.sampled_from(["fact", "decision", "feature", "progress", "artifact"])
more = st.none() | st.sampled_from(["done", "open"])
facts = st.lists(st.builds(lambda t, k, s, r: {"text": t, "kind": k, "status": s, "ref": r}, words, kinds, more, more))


@settings(deadline=None)
@given(facts, st.lists(st.tuples(st.just("user"), words)), st.none() | words, st.lists(words), st.integers(1, 4000))
def test_the_room_always_holds_and_the_text_repeats_itself(
    facts: list[Any], last: list[Any], asked: str | None, pending: list[str], room: int
) -> None:
    given = EMPTY | {"facts": facts, "last": last, "unfinished": asked, "pending": pending, "room": room}
    text = brief_text(**given)
    assert len(text) <= room
    assert text == brief_text(**given)


@settings(deadline=None)
@given(st.permutations(["fact"] * 12 + ["decision"] * 12), st.integers(100, 3000))
def test_a_decision_is_never_left_out_before_a_fact(kinds: list[str], room: int) -> None:
    text = make_brief(facts=[make_fact(f"<{kind} {n}> " + "x" * 60, kind) for n, kind in enumerate(kinds)], room=room)
    missing = [kind for n, kind in enumerate(kinds) if f"<{kind} {n}>" not in text]
    assert "decision" not in missing or missing.count("fact") == 12


class Repository:
    """A real repository, made by git itself, in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "code"
        self.folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        who = [f"GIT_{part}_{what}" for part in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
        world = {"HOME": str(self.home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
        found = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env=world | dict.fromkeys(who, "someone"),
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.strip()

    def commit(self) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message=a step")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    return Repository(tmp_path)


def test_the_head_is_branch_and_commit(repository: Repository) -> None:
    assert git_head(repository.folder) is None, "there is no commit yet"
    commit = repository.commit()
    assert git_head(repository.folder) == f"main {commit}"
    repository.git("switch", "--quiet", "--create", "try/new-ways")
    assert git_head(repository.folder) == f"try/new-ways {commit}"


def test_a_folder_inside_a_repository_is_in_it(repository: Repository) -> None:
    commit = repository.commit()
    inner = repository.folder / "a" / "b"
    inner.mkdir(parents=True)
    (repository.folder / "a" / ".git").mkdir()  # empty, so no repository
    (repository.home / "link").symlink_to(inner)
    assert git_head(inner) == git_head(repository.home / "link") == f"main {commit}"


def test_packed_refs_are_read_and_a_loose_ref_is_newer(repository: Repository) -> None:
    commit = repository.commit()
    repository.git("branch", "main-old")
    repository.git("tag", "--annotate", "--message=one", "v1")
    repository.git("pack-refs", "--all")
    assert not (repository.folder / ".git/refs/heads/main").exists()
    assert git_head(repository.folder) == f"main {commit}"
    newer = repository.commit()
    assert newer != commit
    assert git_head(repository.folder) == f"main {newer}"


@pytest.mark.parametrize("packed", [False, True])
def test_a_worktree_has_its_own_head(repository: Repository, packed: bool) -> None:
    commit = repository.commit()
    repository.git("worktree", "add", "--quiet", "-b", "side", "../side")
    if packed:
        repository.git("pack-refs", "--all")
    assert git_head(repository.home / "side") == f"side {commit}"
    assert git_head(repository.folder) == f"main {commit}"


def test_a_relative_gitdir_counts_from_its_own_folder(repository: Repository) -> None:
    commit = repository.commit()
    repository.git("worktree", "add", "--quiet", "-b", "side", "../side")
    (repository.home / "side" / ".git").write_text("gitdir: ../code/.git/worktrees/side\n")
    assert git_head(repository.home / "side") == f"side {commit}"


def test_a_detached_head_is_called_so(repository: Repository) -> None:
    commit = repository.commit()
    repository.git("switch", "--quiet", "--detach")
    assert git_head(repository.folder) == f"HEAD {commit}"


def test_a_repository_of_long_hashes_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text("ab" * 32 + "\n")
    assert git_head(tmp_path) == "main " + "ab" * 32


def test_a_folder_in_no_repository_has_no_head(tmp_path: Path) -> None:
    assert git_head(tmp_path) is None
    assert git_head(tmp_path / "missing") is None
    assert git_head(Path("a\0b")) is None


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"main",
        b"ref: main",
        b"ref: refs/heads/",
        b"ref: refs/heads/missing",
        b"ref: refs/heads/../../secret",
        b"ref: refs/heads/main\nref: refs/heads/main",
        b"ref: refs/heads/" + b"x" * 10_000,
        b"ref: refs/heads/\xff",
        b"\xff\xfe",
        b"ab" * 10_000,
        b"xy" * 20,
    ],
)
def test_an_odd_head_is_no_head(tmp_path: Path, head: bytes) -> None:
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/refs/heads/main").write_text("ab" * 20)
    (tmp_path / ".git/secret").write_text("ab" * 20)
    (tmp_path / ".git/HEAD").write_bytes(head)
    assert git_head(tmp_path) is None


@pytest.mark.parametrize("line", ["", "gitdir:", "gitdir: /nowhere/at/all", "gitdir: a\0b", "elsewhere", "\0"])
def test_an_odd_gitdir_file_is_no_repository(tmp_path: Path, line: str) -> None:
    (tmp_path / ".git").write_text(line)
    assert git_head(tmp_path) is None


def test_a_ref_that_is_no_commit_is_no_head(tmp_path: Path) -> None:
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main")
    (tmp_path / ".git/refs/heads/main").write_text("not a commit")
    assert git_head(tmp_path) is None


def test_names_of_other_packed_refs_need_not_be_text(tmp_path: Path) -> None:
    commit = "ab" * 20
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main")
    lines = [b"# pack-refs with: peeled", commit.encode() + b" refs/heads/\xff", b"^" + b"0" * 40]
    (tmp_path / ".git/packed-refs").write_bytes(b"\n".join([*lines, commit.encode() + b" refs/heads/main", b""]))
    assert git_head(tmp_path) == f"main {commit}"


def test_a_pipe_in_place_of_a_file_does_not_stop_us(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")
    assert git_head(tmp_path) is None
