"""Which messages stay in the view: pure decisions about a list of them.

A strategy never splits a tool call from its result, and never lets go of the system messages that open a conversation.
Facts and the system prompt are no messages, so nothing here can reach them; an open turn's messages, and what waits for
approval in it, are not in the view yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.errors import InvalidArgument
from holdfast.log.messages import Message, ToolResult

STRATEGIES = ("keep_last_<n>", "sliding_window", "token_budget", "summarize_old", "keep_important")
WINDOW, THRESHOLD = 100, 50
MAX_EXCHANGE = 1_000  # messages that a call may lie before its result
RECENT = 10  # messages that keep_important leaves alone at the end
_KEEP_LAST = re.compile(r"keep_last_([1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class Item:
    """A visible message, with its place."""

    seq: int
    tokens: int
    message: Message
    range_index: int  # the range of the view that it lies in
    is_summary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What to keep. Exactly one of the limits is set, or none (`keep_important`)."""

    name: str
    messages: int | None = None
    tokens: int | None = None
    summarize: bool = False

    @property
    def keeps_a_tail(self) -> bool:
        return self.messages is not None or self.tokens is not None

    def fits(self, messages: int, tokens: int) -> bool:
        return (self.messages is None or messages <= self.messages) and (self.tokens is None or tokens <= self.tokens)

    @property
    def reason(self) -> str:
        if self.summarize:
            return f"older than the last {self.messages} messages: summarized"
        if self.tokens is not None:
            return f"does not fit {self.tokens} tokens with what came after it"
        return f"older than the last {self.messages} messages"


def strategy_of(
    name: str, *, window_size: int | None = None, threshold: int | None = None, max_tokens: int | None = None
) -> Strategy:
    """The strategy behind a name and its parameters; a parameter that it does not have is refused."""
    if not isinstance(name, str):
        raise InvalidArgument(f"strategy={name!r}: use a name or a function; the names are {', '.join(STRATEGIES)}")
    given = {"window_size": window_size, "threshold": threshold, "max_tokens": max_tokens}
    takes = {"sliding_window": "window_size", "summarize_old": "threshold", "token_budget": "max_tokens"}.get(name)
    for parameter, value in given.items():
        if value is None:
            continue
        if parameter != takes:
            raise InvalidArgument(f"{parameter}= does not belong to strategy={name!r}" + _hint(takes))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"{parameter}={value!r}: use a whole number above 0")
    last = _KEEP_LAST.fullmatch(name)
    if last:
        return Strategy(name=name, messages=int(last[1]))
    if name == "sliding_window":
        return Strategy(name=name, messages=window_size or WINDOW)
    if name == "summarize_old":
        return Strategy(name=name, messages=threshold or THRESHOLD, summarize=True)
    if name == "token_budget":
        if max_tokens is None:
            raise InvalidArgument("strategy='token_budget' needs max_tokens=")
        return Strategy(name=name, tokens=max_tokens)
    if name == "keep_important":
        return Strategy(name=name)
    raise InvalidArgument(f"unknown strategy {name!r}: use one of {', '.join(STRATEGIES)}, or a function")


def _hint(takes: str | None) -> str:
    return f": it takes {takes}=" if takes else ""


# -- keeping the end of a conversation ---------------------------------------------------------------------------------


def find_tail_start(items: Iterator[Item], strategy: Strategy) -> Item | None:
    """The first message that is kept, given the newest first; None if everything is. Reads no more than it must."""
    kept: list[Item] = []
    tokens = 0
    for item in items:
        if kept and not strategy.fits(len(kept) + 1, tokens + item.tokens):
            return _align_to_exchange(kept, item, items)
        kept.append(item)
        tokens += item.tokens
    return None


def _align_to_exchange(kept: list[Item], next_one: Item, older: Iterator[Item]) -> Item | None:
    """Move the border so that no result is parted from its call: later if something is left then, else earlier."""
    newest_orphan = _newest_orphan(kept)
    if newest_orphan is None:
        return kept[-1]
    if newest_orphan > 0:
        return kept[newest_orphan - 1]
    longer = [*kept, next_one]
    for _ in range(MAX_EXCHANGE):
        if longer[-1].message.tool_calls and _newest_orphan(longer) is None:
            return longer[-1]
        item = next(older, None)
        if item is None:
            break
        longer.append(item)
    return kept[-1]  # results whose calls were not seen


def _newest_orphan(newest_first: Sequence[Item]) -> int | None:
    """The place of the newest result whose call is not among what came before it. Ids may come again in later calls."""
    waiting: list[str] = []
    found = None
    for at in range(len(newest_first) - 1, -1, -1):
        message = newest_first[at].message
        for result in _result_ids(message):
            if result in waiting:
                waiting.remove(result)
            else:
                found = at
        waiting += [call.id for call in message.tool_calls]
    return found


def _result_ids(message: Message) -> set[str]:
    return {part.call_id for part in message.parts if isinstance(part, ToolResult)}


# -- keeping what matters ----------------------------------------------------------------------------------------------

_DECISION = re.compile(
    r"\b(decid\w*|decision|agreed?|approv\w*|choose|chosen|prefer\w*|must|never|always|remember|important|require\w*|"
    r"deadline|budget|instead|let'?s|we will|we'll|don'?t|do not|todo)\b",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b(errors?|exceptions?|failed|failure|traceback|denied|refused|timed out|timeout|not found)\b", re.I
)
_THING = re.compile(r"[A-Za-z0-9_./:@#-]{4,}")


def find_important(items: Sequence[Item], also: Iterable[int] = ()) -> dict[int, str]:
    """Why each message that matters does, by seq: the documented heuristic of `keep_important`.

    System messages; the first thing a user asked; a user's decisions and rules; errors; tool results that are referred
    to later; messages marked `metadata={"important": true}`; summaries; the last ten messages; what `also` names.
    """
    found: dict[int, str] = {}
    wanted = set(also)
    first_user = next((item.seq for item in items if item.message.role == "user" and not item.is_summary), None)
    recent = {item.seq for item in items[-RECENT:]}
    mentions = _last_mentions(items)
    for at, item in enumerate(items):
        message, seq = item.message, item.seq
        why = None
        if message.role == "system":
            why = "a system message"
        elif item.is_summary:
            why = "a summary"
        elif seq == first_user:
            why = "the first thing that was asked"
        elif message.metadata.get("important"):
            why = "marked as important"
        elif seq in wanted:
            why = "important to the model that was asked"
        elif message.role == "user" and _DECISION.search(message.text):
            why = "a decision or a rule of the user"
        elif _is_error(message):
            why = "an error"
        elif message.role == "tool" and any(mentions.get(thing, -1) > at for thing in _identifier_words(message)):
            why = "a result that is referred to later"
        elif seq in recent:
            why = f"one of the last {RECENT}"
        if why is not None:
            found[seq] = why
    return _add_partners(items, found)


def _is_error(message: Message) -> bool:
    if any(isinstance(part, ToolResult) and part.is_error for part in message.parts):
        return True
    return message.role == "user" and bool(_ERROR.search(message.text))


def _identifier_words(message: Message) -> set[str]:
    """Words of a result that name something: a number, a path, an identifier."""
    texts = [part.content for part in message.parts if isinstance(part, ToolResult)]
    return {word for text in texts for word in _words(text) if not word.isalpha()}


def _last_mentions(items: Sequence[Item]) -> dict[str, int]:
    """Return the index of the last message, tool results aside, that has a word."""
    found: dict[str, int] = {}
    for at, item in enumerate(items):
        if item.message.role != "tool":
            texts = [item.message.text, *[str(call.arguments) for call in item.message.tool_calls]]
            for text in texts:
                found |= dict.fromkeys(_words(text), at)
    return found


def _words(text: str) -> list[str]:
    """Words, paths and identifiers, without what a sentence puts around them."""
    return [word.strip("./:@#-") for word in _THING.findall(text[:20_000])]


def _add_partners(items: Sequence[Item], kept: dict[int, str]) -> dict[int, str]:
    """Keep the other side of every call and result that is kept."""
    groups = group_exchanges(items)
    for group in groups:
        if any(seq in kept for seq in group):
            kept |= {seq: kept.get(seq, "belongs to a call that is kept") for seq in group}
    return kept


def group_exchanges(items: Sequence[Item]) -> list[list[int]]:
    """The seqs that must stay or go together: a message with calls, and the results of those."""
    open_calls: dict[str, list[int]] = {}
    groups: list[list[int]] = []
    for item in items:
        calls = [call.id for call in item.message.tool_calls]
        for result in _result_ids(item.message):
            if result in open_calls and item.seq not in open_calls[result]:
                open_calls[result].append(item.seq)
        if calls:
            group = [item.seq]
            groups.append(group)
            open_calls |= dict.fromkeys(calls, group)
    return [group for group in groups if len(group) > 1]


def complete_kept_seqs(items: Sequence[Item], keep: Iterable[int]) -> set[int]:
    """Complete the choice of a user's strategy: opening system messages stay, exchanges stay whole."""
    known = {item.seq for item in items}
    kept = set(keep)
    if kept - known:
        raise InvalidArgument(f"a strategy keeps messages of the list it was given; {min(kept - known)} is none")
    kept |= {item.seq for item in first_system_items(items)}
    for group in group_exchanges(items):
        if kept & set(group):
            kept |= set(group)
    return kept


def first_system_items(items: Iterable[Item]) -> list[Item]:
    """The system messages at the very beginning."""
    found = []
    for item in items:
        if item.message.role != "system":
            break
        found.append(item)
    return found
