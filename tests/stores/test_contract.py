"""Every store under the one contract."""

from __future__ import annotations

import pytest

from holdfast.errors import SearchUnavailable
from holdfast.stores.base import Log, Store
from holdfast.testing import StoreContract


class TestEveryStore(StoreContract):
    """Runs on the four stores that `conftest.store` opens in turn."""


class TestEncryptedStores(StoreContract):
    """The same promises with a master key; only search is off."""

    @pytest.fixture
    def store(self, encrypted_store: Store) -> Store:
        return encrypted_store

    def test_finds_words_without_case_and_accents(self, store: Store, log: Log) -> None:
        with pytest.raises(SearchUnavailable):
            store.search(log, ["diamond"], [[1, 0]], 1)

    def test_tells_which_events_hold_a_word(self, store: Store, log: Log) -> None:
        with pytest.raises(SearchUnavailable):
            store.word_matches(log, ["diamond"])


def test_the_contract_catches_a_store_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit is worth something only if it fails where it should."""
    from dataclasses import replace

    from holdfast.errors import StaleEpoch
    from holdfast.log.events import Draft
    from holdfast.stores import MemoryStore, memory

    real = memory.plan_append  # type: ignore[attr-defined]
    monkeypatch.setattr(
        memory, "plan_append", lambda id, before, asked, **rest: real(id, before, drop_epoch(asked), **rest)
    )

    def drop_epoch(asked):
        return replace(asked, epoch=None)

    store = MemoryStore()
    log = store.create("session", "s", [Draft(type="session.created")])
    with pytest.raises(BaseException) as caught:
        StoreContract().test_claiming_raises_the_epoch_and_shuts_out_the_writer_before(store, log)
    assert not isinstance(caught.value, StaleEpoch)
