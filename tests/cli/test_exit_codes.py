"""The exit codes are those of the table in docs/command-line.md: every row of it is tried, and no other code is."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast import Message, Session
from holdfast.log.events import Draft
from holdfast.stores import MemoryStore, SQLiteStore
from holdfast.stores.lease import Claim, encode_holder
from tests.cli.terminal import PATIENCE, Terminal, run_command
from tests.docs.page_server import PageServer

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
ROW = re.compile(r"^\| (`[a-z]+`|any|any but `serve`) \| (\d+) \|", re.MULTILINE)


class Workspace:
    """A folder of its own: an export, a forged one, a store, and what commands are told about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"HOLDFAST_DATA": str(folder / "data"), "HOLDFAST_STORE": f"sqlite:///{folder / 'sessions.db'}"}
        session = Session(store=MemoryStore())
        session.add_message(Message.user("hello"))
        (folder / "good.jsonl").write_text(session.export())
        (folder / "forged.jsonl").write_text(session.export().replace("hello", "hullo"))
        SQLiteStore(folder / "sessions.db").close()

    def run(self, *args: str) -> int:
        found = run_command(*args, env=self.env, cwd=self.folder)
        assert "Traceback" not in found.stderr
        return found.returncode

    def sign(self, *args: str) -> int:
        self.env["HOLDFAST_SIGNING_KEY"] = "11" * 32
        with SQLiteStore(self.folder / "sessions.db") as store:
            Session(store=store)
        return self.run("sign", *args)

    def sweep_beside_another(self) -> int:
        with SQLiteStore(self.folder / "sessions.db") as store:
            log = store.create("sweep", "sweep", [Draft(type="entity.created")])
            store.append(log, [], claim=Claim(holder=encode_holder("another"), seconds=PATIENCE))
            return self.run("sweep")

    def restore_an_altered_copy(self) -> int:
        with SQLiteStore(self.folder / "altered.db") as store:
            Session("s", store=store).add_message(Message.user("hello"))
        db = apsw.Connection(str(self.folder / "altered.db"))
        db.execute("UPDATE events SET at = at + 1")
        db.close()
        return self.run("restore", "altered.db", "--store", "sqlite:///new.db")

    def doctor_with_a_taken_port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            return self.run("doctor", "--port", str(taken.getsockname()[1]))

    def stop_a_server(self) -> int:
        server = PageServer(["--open"], self.folder, self.env)
        with urllib.request.urlopen(f"http://{server.address}/health", timeout=PATIENCE) as answer:
            assert answer.status == 200
        return server.stop()

    def interrupt(self) -> int:
        terminal = Terminal("verify", "-")
        terminal.wait_for_error_text("verifying -")
        terminal.interrupt()
        terminal.process.wait(PATIENCE)
        return terminal.end()


WAYS: dict[tuple[str, str], list[Callable[[Workspace], int]]] = {
    ("`backup`", "0"): [lambda each: each.run("backup", "copy.db")],
    ("`backup`", "2"): [
        lambda each: each.run("backup", "good.jsonl"),
        lambda each: each.run("backup", "copy.db", "--store", "sqlite:///missing.db"),
    ],
    ("`demo`", "0"): [lambda each: each.run("demo")],
    ("`demo`", "2"): [lambda each: each.run("demo", "--keep", "sessions.db")],
    ("`doctor`", "0"): [lambda each: each.run("doctor", "--port", "0")],
    ("`doctor`", "1"): [
        Workspace.doctor_with_a_taken_port,
        lambda each: each.run("doctor", "--port", "0", "--store", "nonsense:"),
    ],
    ("`keys`", "0"): [
        lambda each: each.run("keys", "create"),
        lambda each: each.run("keys", "list"),
    ],
    ("`keys`", "1"): [lambda each: each.run("keys", "revoke", "nonesuch")],
    ("`keys`", "2"): [
        lambda each: each.run("keys", "list", "--store", "nonsense:"),
        lambda each: each.run("keys", "create", "--expires-days", "0"),
    ],
    ("`restore`", "0"): [lambda each: each.run("restore", "sessions.db", "--store", "sqlite:///new.db")],
    ("`restore`", "1"): [Workspace.restore_an_altered_copy],
    ("`restore`", "2"): [
        lambda each: each.run("restore", "sessions.db"),
        lambda each: each.run("restore", "good.jsonl", "--store", "sqlite:///new.db"),
    ],
    ("`serve`", "0"): [Workspace.stop_a_server],
    ("`serve`", "2"): [
        lambda each: each.run("serve", "missing.py", "--port", "0"),
        lambda each: each.run("serve", "--port", "99999"),
        lambda each: each.run("serve", "--port", "0", "--store", "nonsense:"),
    ],
    ("`sign`", "0"): [lambda each: each.sign()],
    ("`sign`", "1"): [lambda each: each.sign("--anchor", "command:false")],
    ("`sign`", "2"): [lambda each: each.run("sign"), lambda each: each.sign("--anchor", "nonsense")],
    ("`sweep`", "0"): [
        lambda each: each.run("sweep"),
        lambda each: each.run("sweep", "--dry-run", "--json"),
    ],
    ("`sweep`", "1"): [Workspace.sweep_beside_another],
    ("`sweep`", "2"): [lambda each: each.run("sweep", "--store", "sqlite:///missing.db")],
    ("`verify`", "0"): [lambda each: each.run("verify", "good.jsonl", "good.jsonl")],
    ("`verify`", "1"): [lambda each: each.run("verify", "forged.jsonl", "good.jsonl")],
    ("`verify`", "2"): [
        lambda each: each.run("verify", "sessions.db", "forged.jsonl", "good.jsonl"),
        lambda each: each.run("verify", "missing.jsonl"),
        lambda each: each.run("verify", "."),
    ],
    ("any", "2"): [
        lambda each: each.run("verify"),
        lambda each: each.run("sweep", "--batch", "0"),
        lambda each: each.run("serve", "--nonsense"),
        lambda each: each.run("nonsense"),
    ],
    ("any but `serve`", "130"): [Workspace.interrupt],
}


def test_every_row_of_the_page_is_tried_here() -> None:
    assert ROW.findall(PAGE.read_text()) == list(WAYS)


@pytest.mark.parametrize(("command", "code"), list(WAYS))
def test_a_command_ends_with_the_code_of_its_row(tmp_path: Path, command: str, code: str) -> None:
    workspace = Workspace(tmp_path)
    assert [way(workspace) for way in WAYS[command, code]] == [int(code)] * len(WAYS[command, code])
