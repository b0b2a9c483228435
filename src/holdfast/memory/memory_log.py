"""The log that memories live in, and what is done to it.

A user's memories are one log for all apps, so that erasing the user is erasing a log; those of no user are one log
for each app. Every change is decided on what was read at one head and refused if the log has moved since: two writers
of one key leave one living version. What is forgotten is buried with all its versions, its names and its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from holdfast.crashpoints import crashpoint
from holdfast.errors import Conflict, LifecycleError, SessionExists, SessionNotFound
from holdfast.log.events import Draft, Event
from holdfast.log.named_values import memory_name, names_of
from holdfast.log.tombstones import make_tombstone
from holdfast.memory.keyword import find_duplicate
from holdfast.memory.service import NewMemory, Remembered, memory_from_data
from holdfast.stores.base import ErasurePlan

if TYPE_CHECKING:
    from holdfast.stores.base import Log, Store
    from holdfast.stores.repetition import Repetition

R = TypeVar("R")
T = TypeVar("T")
USER_KIND, APP_KIND = "memory", "memory.app"  # kinds of logs
OWNERLESS_ID = "="  # the id of the log of no user and no app: no quoted name looks like this
STORED_TYPES = ["memory.stored"]
TRIES_WITHOUT_PAUSE = 3  # attempts before a writer steps back for a moment
MAX_READ_FACTOR = 4  # events that are read for each one wanted, rather than asking for them one by one


def memory_log_key(user_id: str | None, app_name: str | None) -> tuple[str, str]:
    """Kind and id of the log that holds the memories of this user; of no user, those of this app."""
    if user_id is not None:
        return USER_KIND, quote(user_id, safe="")  # any text may be an owner; a log's id is plain
    return APP_KIND, OWNERLESS_ID if app_name is None else quote(app_name, safe="")


def owners_of_memories(user_id: str | None, app_name: str | None) -> list[tuple[str | None, str | None]]:
    """Whose memories may come from a session of this user and app: their own, and those that were shared."""
    return [*dict.fromkeys([(user_id, app_name), (None, app_name), (None, None)])]


class IngestMark(NamedTuple):
    """How far a session was looked at for memories: before, and with what is kept now."""

    uid: str
    before: int
    upto: int


class MemoryLog:
    """The memories of one user, or of no user, in one app."""

    def __init__(self, store: Store, user_id: str | None, app_name: str | None) -> None:
        self.store, self.user_id, self.app_name = store, user_id, app_name
        self._kind, self._id = memory_log_key(user_id, app_name)

    @property
    def cache_key(self) -> tuple[str, ...]:
        """Return the key that no other memory log of the store has, in any tenant."""
        return self.store.tenant, self._kind, self._id, memory_name(self.app_name, "")

    def find(self) -> Log | None:
        return self.store.find(self._kind, self._id)

    def _find_or_create(self) -> Log:
        log = self.find()
        if log is not None:
            return log
        try:
            return self.store.create(self._kind, self._id, [Draft(type="entity.created")])
        except SessionExists:
            return self.store.require(self._kind, self._id)

    # -- reading ---------------------------------------------------------------------------------------------------

    def live_seqs(self, log: Log) -> dict[str, int]:
        """The keys of this app and the events that hold them, in order of key; expired ones included."""
        mine = memory_name(self.app_name, "")
        # The prefix ends where an encrypted store can still tell what a name belongs to.
        names = self.store.refs(log, "memory/")
        return {name[len(mine) :]: ref for name, ref in names.items() if ref is not None and name.startswith(mine)}

    def get(self, log: Log, key: str) -> Event | None:
        event = self.store.lookup(log, memory_name(self.app_name, key))
        return None if event is None or event.erased else event

    def read(self, log: Log, seqs: Sequence[int]) -> Iterator[Event]:
        """Return these events in this order, without those that were erased since."""
        wanted = set(seqs)
        known: dict[int, Event] = {}
        if len(wanted) > 1 and max(wanted) - min(wanted) < MAX_READ_FACTOR * len(wanted):
            rows = self.store.read(log, min(wanted), max(wanted), types=STORED_TYPES)
            known = {row.seq: Event(row) for row in rows if row.seq in wanted}
        for seq in seqs:
            event = known.get(seq) or next((Event(row) for row in self.store.read(log, seq, seq)), None)
            if event is not None and not event.erased:
                yield event

    def is_current(self, event: Event) -> bool:
        """Whether what an event says still counts."""
        expires = event.data.get("expires_at")
        return expires is None or self.store.clock.now() < expires

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(
        self, notes: Sequence[NewMemory], *, alike: bool = False, mark: IngestMark | None = None
    ) -> list[Remembered]:
        """Keep memories in one append: a key that is known is updated, the same again changes nothing. With `alike`,
        what is known in nearly the same words under another key updates that one."""

        def decide(log: Log) -> tuple[list[Draft], list[Event | int]]:
            if mark is not None and self.last_ingested_seq(log, mark.uid) != mark.before:
                return [], []  # another writer was first, and has kept these already
            drafts: list[Draft] = []
            found: list[Event | int] = []  # known already, or the place among the drafts
            live = self.live_seqs(log) if alike else {}
            for note in notes:
                if alike and note.key not in live:
                    note = replace(note, key=find_duplicate(self, log, live, note.text) or note.key)
                known = self.get(log, note.key)
                data = note.data(self.app_name)
                if known is not None and self.is_current(known):
                    if _is_same_memory(known.data, data):
                        found.append(known)
                        continue
                    data["created"] = known.data.get("created", known.at)
                found.append(len(drafts))
                drafts.append(Draft(type="memory.stored", data=data))
            if mark is not None:
                drafts.append(Draft(type="memory.ingested", data={"uid": mark.uid, "upto": mark.upto}))
            return drafts, found

        self.erase_expired()
        return self.append_decided(decide, self._build_results)

    def _build_results(self, drafts: Sequence[Draft], found: list[Event | int], at: int) -> list[Remembered]:
        return [
            memory_from_data(drafts[each].data, at) if isinstance(each, int) else memory_from_data(each.data, each.at)
            for each in found
        ]

    def last_ingested_seq(self, log: Log, uid: str) -> int:
        """The last event of a session's log that was looked at for memories."""
        found = self.store.value(log, "ingested/" + uid)
        return 0 if found is None else int(found["upto"])

    def append_decided(
        self,
        decide: Callable[[Log], tuple[list[Draft], T]],
        make_result: Callable[[Sequence[Draft], T, int], R],
    ) -> R:
        """Append what `decide` returns after reading the log, and repeat both if another writer was first;
        `make_result` turns the result into the caller's value."""
        tries = 0
        while True:
            try:
                log = self._find_or_create()
                head = self.store.head(log).head
                drafts, found = decide(log)
                at = self.store.append(log, drafts, expected=head).at if drafts else 0
                return make_result(drafts, found, at)
            except SessionNotFound:
                continue  # erased in this very moment: start a new one
            except LifecycleError:  # erased, and about to be removed
                if tries > 100:
                    raise
            except Conflict:
                pass
            tries += 1
            if tries > TRIES_WITHOUT_PAUSE:  # a crowd: step back for a moment, each for another one
                spread = int.from_bytes(self.store.clock.random_bytes(1), "big") / 255
                self.store.clock.sleep(spread * min(tries, 20) * 0.0005)

    # -- burying ---------------------------------------------------------------------------------------------------

    def forget(self, key: str) -> bool:
        """Remove a memory with all its versions; False if there was none."""
        self.erase_expired()
        log = self.find()
        if log is None:
            return False
        app = self.app_name
        return bool(erase_memories(self.store, log, lambda event: (event.data["app"], event.data["key"]) == (app, key)))

    def erase_expired(self) -> None:
        """Remove what has expired. Done before each change, so that no separate job is needed."""
        log = self.find()
        names = () if log is None else self.store.refs(log, "expires/")
        now = self.store.clock.now()
        due = {int(name.rpartition("/")[2]) for name in names if int(name.split("/")[1]) <= now}
        if log is not None and due:
            erase_memories(self.store, log, lambda event: event.seq in due, reason="expired")


def erase_memories(store: Store, log: Log, matches: Callable[[Event], bool], *, reason: str = "forgotten") -> list[str]:
    """Remove the memories whose living version matches, all versions of them, and older versions that match; returns
    their keys. Nothing is left of them but hashes, and a record that vouches for those."""
    while True:
        try:
            head = store.head(log).head
            held = [event for event in map(Event, store.read(log, types=STORED_TYPES)) if not event.erased]
            doomed = {event.seq for event in held if matches(event)}
            if not doomed:
                return []
            live = store.refs(log, "memory/")
            gone = {
                name for event in held if event.seq in doomed and live.get(name := memory_name_of(event)) == event.seq
            }
            going = [event for event in held if event.seq in doomed or memory_name_of(event) in gone]
            # The key is a text like any other: it goes from the tombstones, and from the names.
            stones = [(event.seq, make_tombstone(event, names=False)) for event in going]
            names = {(name, seq) for event in going for name, seq, _ in names_of(event.seq, event.type, event.data)}
            burial = ErasurePlan(tombstones={log.number: stones}, heads={log.number: head}, names={log.number: names})
            record = {"reason": reason, **burial.record_data(log)}
            crashpoint("before forgetting")
            store.apply_erasure(log, [Draft(type="memory.forgotten", data=record)], burial)
            return sorted({event.data["key"] for event in going if event.seq in doomed})
        except Conflict:
            continue  # another writer was first: there may be another version
        except SessionNotFound:
            return []  # erased since


def memory_name_of(event: Event) -> str:
    return memory_name(event.data["app"], event.data["key"])


def erase_memories_from(
    store: Store,
    owner: tuple[str | None, str | None],
    gone: Mapping[str, Iterable[int] | None],
    repetition: Repetition | None = None,
) -> None:
    """Remove the memories that came from these events, or from these whole logs (None), of a session's owner: its
    `user_id` and `app_name`. Memories that were shared go as well. A tool names the question of its turn as the source,
    so memories from the turn of a redacted event go too if they repeat its text."""
    wanted = {uid: None if seqs is None else set(seqs) for uid, seqs in gone.items()}

    def matches(event: Event) -> bool:
        source = event.data.get("source")
        if source is None:
            return False
        if wanted.get(source["uid"], ()) is None:
            return True
        texts = (event.data["text"], event.data["key"])
        turn = repetition.turn if repetition is not None and repetition.is_in(texts) else frozenset()
        for uid, seqs in source["events"].items():
            named = wanted.get(uid, ())
            if named is None or not set(named).isdisjoint(seqs):
                return True
            if uid in wanted and not turn.isdisjoint(seqs):
                return True
        return False

    for each in owners_of_memories(*owner):
        log = store.find(*memory_log_key(*each))
        if log is not None:
            erase_memories(store, log, matches, reason="erased where it came from")


_COMPARED_FIELDS = ("text", "kind", "confidence", "expires_at")


def _is_same_memory(known: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a memory says nothing that is not known. Where it came from this time does not count."""
    same = all(known.get(field) == given.get(field) for field in _COMPARED_FIELDS)
    return same and given.get("embedder") in (None, known.get("embedder"))
