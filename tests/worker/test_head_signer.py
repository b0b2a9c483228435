"""Signed heads: what a diligent attacker does to a database, with the whole chain computed again, is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Message, Session
from holdfast.log.chain import genesis, next_hash
from holdfast.log.events import Row
from holdfast.stores import MemoryStore, PostgresStore, SQLiteStore
from holdfast.stores.base import Store
from holdfast.stores.signing_keys import SigningKey
from holdfast.worker.head_signer import Anchor, sign_heads
from tests.cli.terminal import run_command
from tests.kit.odd_payloads import change_body

SEED, OTHER = "11" * 32, "22" * 32
PUBLIC = SigningKey(SEED).public_key


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", SEED)
    return SigningKey(SEED)


def make_session(store: Store, name: str = "s") -> Session:
    session = Session(name, store=store, user_id="u")
    session.add_messages([Message.user("pay 100"), Message.assistant("paid")])
    return session


def open_raw(store: Store) -> Callable[..., Any]:
    """A function that runs a statement on the database, without holdfast."""
    if isinstance(store, SQLiteStore):
        db = apsw.Connection(store.file.path)
        return lambda text, *values: db.execute(text, values)
    assert isinstance(store, PostgresStore)
    dsn = store.server.dsn

    def run(text: str, *values: Any) -> None:
        with psycopg.connect(dsn, options="-c search_path=holdfast") as wire:
            wire.execute(text.replace("?", "%s").encode(), values)

    return run


def own(session: Session) -> str:
    number = session.log.number
    return f"event >> 32 = {number}" if isinstance(session.store, SQLiteStore) else f"log = {number}"


def seq_of(session: Session) -> str:
    return "event & 4294967295" if isinstance(session.store, SQLiteStore) else "seq"


def rewrite(session: Session) -> None:
    """Write another amount, and compute the whole chain and the head again."""
    raw, previous = open_raw(session.store), genesis(session.log.origin)
    for row in session.store.read(session.log):
        body = change_body(row.body, b"pay 100", b"pay 900")
        previous = next_hash(previous, Row(row.seq, row.at, row.type, row.header, row.tokens, body, None, b"")) or b""
        where = f"WHERE {own(session)} AND {seq_of(session)} = {row.seq}"
        raw(f"UPDATE events SET body = ?, hash = ? {where}", body, previous)
    raw(f"UPDATE logs SET hash = ? WHERE log = {session.log.number}", previous)


def cut(session: Session) -> None:
    """Remove the last event, and move the head back."""
    raw, (last,) = open_raw(session.store), session.store.read(session.log, 2, 2)
    raw(f"DELETE FROM events WHERE {own(session)} AND {seq_of(session)} > 2")
    raw(f"UPDATE logs SET head = 2, hash = ?, tokens = ? WHERE log = {session.log.number}", last.hash, last.tokens)


def test_a_log_that_was_signed_verifies_with_the_public_key(store, key):
    session = make_session(store)
    before = session.verify(PUBLIC)
    assert (before.ok, before.first_bad) == (False, None)
    assert "no signed head" in str(before.reason)
    assert sign_heads(store, key).signed >= 1
    session.add_message(Message.user("more"))
    found = session.verify(public_key=PUBLIC)
    assert (found.ok, found.checked, found.signed) == (True, 4, 3)
    assert sign_heads(store, key).signed == 1
    assert sign_heads(store, key).signed == 0
    assert session.verify([SigningKey(OTHER).public_key, PUBLIC]).signed == 4


def test_a_signature_outlives_redaction_and_erasure_and_ends_with_its_log(store, key):
    session = make_session(store)
    sign_heads(store, key)
    session.redact(2, reason="asked to")
    assert session.verify(PUBLIC).signed == 3
    session.erase(reason="asked to", actor="dpo")
    assert session.verify(PUBLIC).signed == 3
    sign_heads(store, key)
    store.delete("s")
    assert not Session("s", store=store).verify(PUBLIC)


def test_a_fork_and_an_import_are_signed_on_their_own(store, key):
    session = make_session(store)
    sign_heads(store, key)
    fork = session.fork("fork")
    assert not fork.verify(PUBLIC)
    sign_heads(store, key)
    assert fork.verify(PUBLIC).signed == 4
    copy = Session.import_(session.export(), session_id="copy", store=store)
    assert copy.events(types=["session.imported"])[-1].data["signed"]["key"] == key.fingerprint
    assert not copy.verify(PUBLIC)


@pytest.mark.parametrize("attack", [rewrite, cut])
def test_rewritten_and_cut_history_is_found_by_its_signature_alone(durable_store, key, attack):
    session = make_session(durable_store)
    sign_heads(durable_store, key)
    attack(session)
    again = Session.open("s", store=durable_store)
    assert again.verify(), "the chain alone does not show it"
    found = again.verify(PUBLIC)
    assert not found
    assert ("rewritten" if attack is rewrite else "missing") in str(found.reason)


@pytest.mark.parametrize("attack", [rewrite, cut])
def test_what_contradicts_its_signature_is_not_signed_again(durable_store, key, attack):
    session = make_session(durable_store)
    sign_heads(durable_store, key)
    attack(session)
    report = sign_heads(durable_store, key)
    assert (report.signed, report.altered) == (0, ["s"])
    assert not session.verify(PUBLIC)
    assert '"signed"' not in Session.open("s", store=durable_store).export().splitlines()[-1]


def test_a_signature_of_another_key_or_another_log_does_not_count(durable_store, key):
    session, other = make_session(durable_store), make_session(durable_store, "t")
    sign_heads(durable_store, key)
    found = session.verify(SigningKey(OTHER).public_key)
    assert not found
    assert "is none of" in str(found.reason)
    raw = open_raw(durable_store)
    raw(f"UPDATE signatures SET signature = (SELECT signature FROM signatures WHERE log = {other.log.number})"
        f" WHERE log = {session.log.number}")  # fmt: skip
    assert "altered" in str(session.verify(PUBLIC).reason)


class TestAnchors:
    def test_a_file_gets_a_line_for_each_signed_head(self, store, key, tmp_path):
        make_session(store.for_tenant("acme"))
        anchor = tmp_path / "heads"
        assert sign_heads(store, key, Anchor(f"file:{anchor}")).is_anchored
        (line,) = [json.loads(line) for line in anchor.read_text().splitlines() if '"kind":"session"' in line]
        assert (line["tenant"], line["id"], line["seq"], line["key"]) == ("acme", "s", 3, key.fingerprint)
        assert anchor.stat().st_mode & 0o777 == 0o600

    def test_a_place_that_takes_nothing_is_offered_the_heads_again(self, store, key, tmp_path):
        session = make_session(store)
        assert not sign_heads(store, key, Anchor("command:false")).is_anchored
        assert session.verify(PUBLIC).signed == 3
        assert not sign_heads(store, key, Anchor(f"file:{tmp_path}/missing/heads")).is_anchored
        target = tmp_path / "heads"
        assert sign_heads(store, key, Anchor(f"command:tee -a {target}")).is_anchored
        assert '"seq":3' in target.read_text()
        assert sign_heads(store, key, Anchor(f"command:tee -a {target}")).signed == 0

    @pytest.mark.parametrize("attack", [rewrite, cut])
    def test_it_convicts_a_log_whose_signature_was_removed_and_made_again(self, key, tmp_path, attack):
        anchor, url = tmp_path / "heads", f"sqlite:///{tmp_path / 'log.db'}"
        with SQLiteStore(tmp_path / "log.db") as store:
            session = make_session(store)
            sign_heads(store, key, Anchor(f"file:{anchor}"))
            holds = run_command("verify", "--store", url, "--anchor", anchor, "--public-key", PUBLIC)
            assert (holds.returncode, holds.stdout) == (0, "1 log checked, 0 altered, 0 without a checked signature\n")
            attack(session)
            open_raw(store)("DELETE FROM signatures")
            sign_heads(store, key, Anchor(f"file:{anchor}"))
            assert session.verify(PUBLIC), "the database alone does not show it"
        found = run_command("verify", "--store", url, "--anchor", anchor, "--public-key", PUBLIC)
        assert found.returncode == 1
        assert "session s: " in found.stdout
        assert "1 altered" in found.stdout


class TestExports:
    @pytest.fixture
    def text(self, key) -> str:
        return make_session(MemoryStore()).export()

    @pytest.fixture
    def file(self, text: str, tmp_path: Path) -> Path:
        file = tmp_path / "s.jsonl"
        file.write_text(text)
        return file

    def test_the_last_line_is_the_signed_head(self, file, key):
        assert json.loads(file.read_text().splitlines()[-1])["signed"]["seq"] == 3
        found = run_command("verify", file, "--public-key", PUBLIC)
        assert (found.returncode, found.stdout) == (
            0,
            f"{file}: 3 events, chain holds; signed with {key.fingerprint}\n",
        )

    def test_a_file_without_its_end_and_without_its_signature_does_not_verify_with_the_key(self, file, key):
        lines = file.read_text().splitlines()
        first = json.loads(lines[0])
        first["log"] |= {"head": 2, "hash": json.loads(lines[1])["hash"]}
        for end in ([], [lines[-1]]):
            file.write_text("\n".join([json.dumps(first), lines[1], *end]) + "\n")
            found = run_command("verify", file, "--public-key", PUBLIC)
            assert (found.returncode, "signed head" in found.stdout) == (1, True)

    def test_a_foreign_key_is_named(self, file):
        found = run_command("verify", file, "--public-key", SigningKey(OTHER).public_key)
        assert (found.returncode, "is none of" in found.stdout) == (1, True)

    def test_a_file_that_is_cut_anywhere_does_not_verify(self, file, text):
        for length in range(text.index("\n") + 1, len(text) - 1, 97):
            file.write_text(text[:length])
            assert run_command("verify", file, "--public-key", PUBLIC).returncode in (1, 2)


class TestReceipts:
    def test_an_erasure_a_redaction_and_a_purge_give_receipts_that_verify_offline(self, store, key, tmp_path):
        session = make_session(store)
        redacted = session.redact(2, reason="asked to", actor="dpo").receipt
        erased = session.erase(reason="asked to", actor="dpo").receipt
        make_session(store, "old").retention = {"ttl_days": 1e-9}
        swept = Session.sweep(store).receipts
        assert redacted is not None
        assert erased is not None
        assert [each["receipt"]["what"] for each in (redacted, erased, *swept)] == ["redaction", "erasure", "purge"]
        assert erased["receipt"]["sessions"][0]["id"] == "s"
        file = tmp_path / "receipt.json"
        for receipt in (redacted, erased, *swept):
            file.write_text(json.dumps(receipt, sort_keys=True, separators=(",", ":")))
            assert run_command("verify", file, "--public-key", PUBLIC).returncode == 0
            file.write_text(file.read_text().replace('"events":', '"events":1'))
            assert run_command("verify", file, "--public-key", PUBLIC).returncode == 1

    def test_there_is_none_without_a_key(self, store):
        assert make_session(store).erase(reason="asked to", actor="dpo").receipt is None


def test_the_command_makes_a_pair_that_only_its_owner_can_read(tmp_path, monkeypatch):
    file = tmp_path / "signing.key"
    made = json.loads(run_command("keys", "signing", file, "--json").stdout)
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "signing.key.pub").read_text().strip() == made["public_key"]
    assert run_command("keys", "signing", file).returncode == 2
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", f"file:{file}")
    with SQLiteStore(tmp_path / "log.db") as store:
        make_session(store)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    assert run_command("sign", "--store", url).stdout == f"1 head signed with {made['fingerprint']}\n"
    checked = run_command("verify", "--store", url, "--public-key", f"{file}.pub")
    assert (checked.returncode, checked.stdout) == (0, "1 log checked, 0 altered, 0 without a checked signature\n")
