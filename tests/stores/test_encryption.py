"""A vault opens what it sealed, where it was sealed, and nothing else; and no key gets into a text."""

from __future__ import annotations

import base64
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidArgument, MissingExtra, WrongKey
from holdfast.stores.encryption import DataKey, MasterKey, Vault, event_context

MASTER = sha256(b"mine").digest()
OTHER = sha256(b"other").digest()
HERE = event_context(7, 42)
MEGABYTE = bytes(range(256)) * 4096


@pytest.fixture
def vault() -> Vault:
    return Vault(MASTER)


@pytest.fixture
def key(vault: Vault) -> DataKey:
    return vault.new_key(HERE)[1]


def list_alterations(data: bytes) -> list[bytes]:
    """The data with each of its bytes changed, cut at both ends, and with one byte more."""
    changed = [data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for at in range(len(data)) for bit in (1, 0x80)]
    return [*changed, data[1:], data[:-1], data + b"\0", b"\0" + data, b""]


def describe_error_chain(error: BaseException | None) -> str:
    """What a traceback or a logger would print of an error and of what led to it."""
    text = ""
    while error is not None:
        text += f"{error!s} {error!r} {error.args} {vars(error)}" + "".join(traceback.format_exception_only(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text


class TestSealing:
    @pytest.mark.parametrize("data", [b"", b"a", b"\0" * 300, MEGABYTE], ids=["empty", "one", "zeros", "megabyte"])
    def test_what_was_sealed_opens(self, key: DataKey, data: bytes) -> None:
        assert key.open(key.seal(data, HERE), HERE) == data

    @given(data=st.binary(max_size=5000), place=st.binary(max_size=40))
    def test_any_data_opens_in_any_place(self, data: bytes, place: bytes) -> None:
        key = DataKey(MASTER)
        sealed = key.seal(data, place)
        assert key.open(sealed, place) == data
        assert len(sealed) == len(data) + 28
        assert len(data) < 8 or data not in sealed

    def test_what_was_altered_does_not_open(self, key: DataKey) -> None:
        for broken in list_alterations(key.seal(b"take two a day", HERE)):
            with pytest.raises(WrongKey, match="restore it from a backup"):
                key.open(broken, HERE)

    @pytest.mark.parametrize("length", range(30))
    def test_what_is_too_short_does_not_open(self, key: DataKey, length: int) -> None:
        with pytest.raises(WrongKey):
            key.open(bytes(length), HERE)

    @pytest.mark.parametrize(
        "place",
        [event_context(8, 42), event_context(7, 43), event_context(42, 7), b""],
        ids=["log", "seq", "swapped", "none"],
    )
    def test_what_was_moved_to_another_place_does_not_open(self, key: DataKey, place: bytes) -> None:
        with pytest.raises(WrongKey):
            key.open(key.seal(b"take two a day", HERE), place)

    def test_what_another_data_key_sealed_does_not_open(self, vault: Vault, key: DataKey) -> None:
        _, second = vault.new_key(HERE)
        with pytest.raises(WrongKey):
            second.open(key.seal(b"take two a day", HERE), HERE)

    def test_nonces_never_repeat(self, key: DataKey) -> None:
        assert len({key.seal(b"same", HERE)[:12] for _ in range(10_000)}) == 10_000

    def test_threads_may_share_a_key(self, key: DataKey) -> None:
        def round_trip(number: int) -> bool:
            data, place = b"%d" % number * 500, event_context(number, number)
            named = key.decrypt_name(key.encrypt_name(data)) == data
            return named and key.open(key.seal(data, place), place) == data

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(round_trip, range(2000)))


def test_a_context_is_a_log_and_a_seq() -> None:
    assert event_context(1, 2) == b"\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2"
    assert event_context(2**63 - 1, 0) == b"\x7f" + b"\xff" * 7 + b"\0" * 8


class TestNames:
    @given(text=st.binary(max_size=300))
    def test_a_name_can_be_read_back(self, text: bytes) -> None:
        key = DataKey(MASTER)
        assert key.decrypt_name(key.encrypt_name(text)) == text
        assert len(text) < 8 or text not in key.encrypt_name(text)

    @given(one=st.binary(max_size=4), two=st.binary(max_size=4))
    def test_names_and_marks_are_equal_where_texts_are(self, one: bytes, two: bytes) -> None:
        key = DataKey(MASTER)
        assert (key.encrypt_name(one) == key.encrypt_name(two)) == (one == two)
        assert (key.digest_with_key(one) == key.digest_with_key(two)) == (one == two)

    def test_names_and_marks_differ_between_keys(self, vault: Vault, key: DataKey) -> None:
        _, second = vault.new_key(HERE)
        assert key.encrypt_name(b"diagnosis") != second.encrypt_name(b"diagnosis")
        assert key.digest_with_key(b"diagnosis") != second.digest_with_key(b"diagnosis")
        with pytest.raises(WrongKey):
            second.decrypt_name(key.encrypt_name(b"diagnosis"))

    def test_an_altered_name_is_refused(self, key: DataKey) -> None:
        for broken in list_alterations(key.encrypt_name(b"diagnosis")):
            with pytest.raises(WrongKey, match="a name does not open"):
                key.decrypt_name(broken)

    def test_a_mark_has_thirty_two_bytes(self, key: DataKey) -> None:
        assert [len(key.digest_with_key(text)) for text in (b"", b"a", MEGABYTE)] == [32, 32, 32]

    def test_names_and_marks_are_the_same_in_every_release(self) -> None:
        # Stored data is looked up by these bytes: a change of them loses it.
        key = DataKey(MASTER)
        assert key.encrypt_name(b"diagnosis").hex() == "26fe275406dad4083218d57a1e456d12f672cec505d804bb195c"
        assert (
            key.digest_with_key(b"diagnosis").hex()
            == "efb0d2e8d71b4c60ef864671094a90fa948e8fc621e7db43082376640d97cc20"
        )


class TestWrapping:
    def test_a_wrapped_key_unwraps_to_the_same_key(self, vault: Vault) -> None:
        wrapped, key = vault.new_key(HERE)
        again = Vault(MASTER).unwrap(wrapped, HERE)
        assert again.open(key.seal(b"take two a day", HERE), HERE) == b"take two a day"
        assert (again.encrypt_name(b"a"), again.digest_with_key(b"a")) == (
            key.encrypt_name(b"a"),
            key.digest_with_key(b"a"),
        )

    def test_a_wrapped_key_is_a_version_a_fingerprint_a_nonce_and_a_secret(self, vault: Vault) -> None:
        wrapped, _ = vault.new_key(HERE)
        assert wrapped[:1] == b"\1"
        assert wrapped[1:9].hex() == vault.fingerprint
        assert len(wrapped) == 1 + 8 + 12 + 32 + 16

    def test_what_an_earlier_release_wrote_opens(self, vault: Vault) -> None:
        key = vault.unwrap(
            bytes.fromhex(
                "014689470da1bef71e020ab492987d3a825135b6ed2d7cdcfc1868715a7a4c6596c5fad529eeaeaea09a75"
                "736eb232d259203c450610817330e6610226238939e42f346f55"
            ),
            HERE,
        )
        sealed = bytes.fromhex("d87c36c3ee2e26d695155f723ad3a28fd36a0eade4a824d627b84ca515b6e8f100aace330e64d724dcea")
        assert key.open(sealed, HERE) == b"take two a day"

    def test_keys_and_their_wrappings_are_always_new(self, vault: Vault) -> None:
        made = [vault.new_key(HERE) for _ in range(100)]
        assert len({wrapped[9:] for wrapped, _ in made}) == 100
        assert len({key.digest_with_key(b"a") for _, key in made}) == 100

    def test_the_error_for_another_master_key_names_the_wanted_one(self, vault: Vault) -> None:
        other = Vault(OTHER)
        wrapped, _ = vault.new_key(HERE)
        with pytest.raises(WrongKey, match="open the store with the key it was encrypted with, or rotate") as caught:
            other.unwrap(wrapped, HERE)
        assert f"with master key {vault.fingerprint}, and {other.fingerprint} was given" in str(caught.value)

    def test_another_master_key_does_not_unwrap_what_claims_to_be_its_own(self, vault: Vault) -> None:
        other = Vault(OTHER)
        wrapped, _ = vault.new_key(HERE)
        with pytest.raises(WrongKey, match="does not unwrap"):
            other.unwrap(wrapped[:1] + bytes.fromhex(other.fingerprint) + wrapped[9:], HERE)

    def test_an_altered_wrapped_key_is_refused(self, vault: Vault) -> None:
        wrapped, _ = vault.new_key(HERE)
        for broken in list_alterations(wrapped):
            with pytest.raises(WrongKey):
                vault.unwrap(broken, HERE)

    def test_a_wrapped_key_of_another_place_is_refused(self, vault: Vault) -> None:
        wrapped, _ = vault.new_key(HERE)
        for place in (event_context(8, 42), event_context(7, 43), b""):
            with pytest.raises(WrongKey):
                vault.unwrap(wrapped, place)

    def test_a_wrapped_key_of_an_unknown_version_asks_for_an_upgrade(self, vault: Vault) -> None:
        wrapped, _ = vault.new_key(HERE)
        with pytest.raises(WrongKey, match="upgrade"):
            vault.unwrap(b"\2" + wrapped[1:], HERE)

    def test_rewrapping_keeps_the_data_key(self, vault: Vault) -> None:
        wrapped, key = vault.new_key(HERE)
        sealed, named = key.seal(b"take two a day", HERE), key.encrypt_name(b"diagnosis")
        moved = vault.rewrap(wrapped, HERE, Vault(OTHER))
        again = Vault(OTHER).unwrap(moved, HERE)
        assert again.open(sealed, HERE) == b"take two a day"
        assert again.encrypt_name(b"diagnosis") == named
        with pytest.raises(WrongKey):
            vault.unwrap(moved, HERE)

    def test_rewrapping_refuses_what_it_cannot_unwrap(self, vault: Vault) -> None:
        wrapped, _ = vault.new_key(HERE)
        for stranger, place in ((Vault(OTHER), HERE), (vault, event_context(8, 42))):
            with pytest.raises(WrongKey):
                stranger.rewrap(wrapped, place, Vault(OTHER))


STANDARD = base64.b64encode(MASTER).decode()
URLSAFE = base64.urlsafe_b64encode(MASTER).decode()
TEXTS = {
    "hex": MASTER.hex(),
    "upper hex": MASTER.hex().upper(),
    "base64": STANDARD,
    "base64 without padding": STANDARD.rstrip("="),
    "urlsafe": URLSAFE,
    "urlsafe without padding": URLSAFE.rstrip("="),
}


class TestMasterKeys:
    def test_the_fingerprint_names_the_key(self, vault: Vault) -> None:
        assert vault.fingerprint == sha256(b"holdfast master\n" + MASTER).hexdigest()[:16]
        assert Vault(OTHER).fingerprint != vault.fingerprint

    def test_both_base64_alphabets_are_in_these_tests(self) -> None:
        assert set("+/") <= set(STANDARD)

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
    @pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=["bare", "newline", "crlf"])
    def test_every_text_is_accepted_from_everywhere(
        self, vault: Vault, text: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text += end
        path = tmp_path / "master.key"
        path.write_text(text, newline="")
        monkeypatch.setenv("HOLDFAST_TEST_KEY", text)
        forms: list[MasterKey] = [text, "env:HOLDFAST_TEST_KEY", f"file:{path}", lambda: text, lambda: f"file:{path}"]
        assert [Vault(form).fingerprint for form in forms] == [vault.fingerprint] * len(forms)

    @given(master=st.binary(min_size=32, max_size=32))
    def test_every_form_is_the_same_key(self, master: bytes) -> None:
        forms = (
            master,
            lambda: master,
            master.hex(),
            base64.b64encode(master).decode(),
            base64.urlsafe_b64encode(master).decode(),
        )
        assert len({Vault(form).fingerprint for form in forms}) == 1

    @pytest.mark.parametrize("master", [MASTER, b"\n" * 32, b"\xff" * 31 + b"\n"], ids=["plain", "newlines", "ending"])
    def test_a_file_may_hold_the_raw_bytes(self, master: bytes, tmp_path: Path) -> None:
        path = tmp_path / "master.key"
        path.write_bytes(master)
        assert Vault(f"file:{path}").fingerprint == Vault(master).fingerprint

    def test_a_function_is_asked_once(self, vault: Vault) -> None:
        asked = []

        def fetch() -> bytes:
            asked.append(1)
            return MASTER

        fetched = Vault(fetch)
        wrapped, _ = fetched.new_key(HERE)
        fetched.unwrap(wrapped, HERE)
        assert (len(asked), fetched.fingerprint) == (1, vault.fingerprint)

    def test_what_a_function_raises_is_its_own(self) -> None:
        def fetch() -> bytes:
            raise ConnectionError("the key service is away")

        with pytest.raises(ConnectionError, match="is away"):
            Vault(fetch)


PASSPHRASE = "correct horse battery staple"
REFUSED: dict[str, object] = {
    "empty bytes": b"",
    "short bytes": MASTER[:31],
    "long bytes": MASTER + b"\0",
    "hex as bytes": MASTER.hex().encode(),
    "bytearray": bytearray(MASTER),
    "empty": "",
    "passphrase": PASSPHRASE,
    "32 characters": MASTER.hex()[:32],
    "63 digits": MASTER.hex()[:63],
    "65 digits": MASTER.hex() + "0",
    "no digit": "g" + MASTER.hex()[1:],
    "other digits": "\u0661" + MASTER.hex()[1:],
    "leading space": " " + MASTER.hex(),
    "short base64": STANDARD[:42],
    "long base64": STANDARD[:43] + "A",
    "two paddings": STANDARD + "=",
    "inner newline": STANDARD[:20] + "\n" + STANDARD[20:],
    "None": None,
    "number": int.from_bytes(MASTER, "big"),
    "list": [MASTER],
    "function of None": lambda: None,
    "function of a passphrase": lambda: PASSPHRASE,
    "function of a function": lambda: lambda: MASTER,
    "unset variable": "env:HOLDFAST_NO_SUCH",
    "no variable": "env:",
    "no file": "file:",
    "missing file": "file:/no/such/master.key",
    "directory": "file:/tmp",
    "endless file": "file:/dev/zero",
    "impossible path": "file:/no\0such",
    "key as a variable": f"env:{MASTER.hex()}",
    "key as a file": f"file:{MASTER.hex()}",
    "base64 as a variable": f"env:{STANDARD}",
    "base64 as a file": f"file:{STANDARD}",
}
SECRETS = (PASSPHRASE, MASTER.hex()[:31], STANDARD[:20], repr(MASTER)[2:20], str(int.from_bytes(MASTER, "big"))[:20])


def assert_no_secret(error: BaseException) -> None:
    text = describe_error_chain(error)
    assert [secret for secret in SECRETS if secret in text] == []


class TestRefusals:
    @pytest.mark.parametrize("form", REFUSED.values(), ids=REFUSED.keys())
    def test_anything_else_is_refused_with_advice_and_without_the_secret(self, form: MasterKey) -> None:
        with pytest.raises(InvalidArgument, match="64 hex digits") as caught:
            Vault(form)
        assert 'python -c "from secrets import token_hex; print(token_hex(32))"' in str(caught.value)
        assert_no_secret(caught.value)

    @pytest.mark.parametrize("text", ["", PASSPHRASE, MASTER.hex()[:32], f"env:{MASTER.hex()}", "file:/dev/zero"])
    def test_a_variable_and_a_file_hold_keys_only(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "master.key"
        path.write_text(text + "\n")
        monkeypatch.setenv("HOLDFAST_TEST_KEY", text)
        for form, shown in (("env:HOLDFAST_TEST_KEY", "'HOLDFAST_TEST_KEY'"), (f"file:{path}", repr(str(path)))):
            with pytest.raises(InvalidArgument) as caught:
                Vault(form)
            assert shown in str(caught.value)
            assert_no_secret(caught.value)

    def test_a_file_of_other_bytes_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "master.key"
        for data in (MASTER[:31], MASTER * 2, b"\xff" * 43, MASTER.hex().encode("utf-16")):
            path.write_bytes(data)
            with pytest.raises(InvalidArgument) as caught:
                Vault(f"file:{path}")
            assert_no_secret(caught.value)

    def test_the_advice_makes_a_key(self) -> None:
        with pytest.raises(InvalidArgument) as caught:
            Vault("")
        script = str(caught.value).split('python -c "')[1].rstrip('"')
        made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert Vault(made.stdout).fingerprint

    def test_representations_show_only_the_fingerprint(self, vault: Vault) -> None:
        key = DataKey(MASTER)
        key.encrypt_name(b"a"), key.digest_with_key(b"a")
        assert repr(vault) == f"Vault({vault.fingerprint})"
        assert [secret for secret in SECRETS if secret in f"{vault} {key!r} {key}"] == []

    def test_the_error_for_an_alteration_shows_no_secret(self, vault: Vault) -> None:
        wrapped, key = vault.new_key(HERE)
        acts: list[Callable[[], object]] = [
            lambda: vault.unwrap(wrapped, b""),
            lambda: Vault(OTHER).unwrap(wrapped, HERE),
            lambda: key.open(key.seal(PASSPHRASE.encode(), HERE), b""),
            lambda: key.decrypt_name(bytes(40)),
        ]
        for act in acts:
            with pytest.raises(WrongKey) as caught:
                act()
            assert_no_secret(caught.value)


class TestTheExtra:
    def test_a_missing_extra_names_its_install_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtra, match=r"encryption at rest needs.*holdfast\[secure\]"):
            Vault(MASTER)

    def test_importing_the_vault_does_not_load_it(self) -> None:
        script = "import sys, holdfast.stores.encryption; print('cryptography' in sys.modules)"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "False"
