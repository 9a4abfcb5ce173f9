"""Which file is which: a source is known again by its inode and its head, by its head alone once it was rotated and compressed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from logscope.log.state.read_state import Entry, Memory, StateError
from parsers.sources.resuming import HEAD, head_hash

__all__ = ["Known", "check_resumable", "known_sources"]

Known = tuple[Any, Entry]
"""A source and what is remembered of it."""


def check_resumable(sources: Sequence[Any]) -> None:
    """Raise StateError for what cannot be read on: pipes, standard input, live journals."""
    for source in sources:
        if source.problem is None and source.size is None:
            raise StateError(
                f"{source.name}: --state remembers files; a pipe or a journal begins anew each time"
            )


def known_sources(sources: Sequence[Any], memory: Memory) -> list[Known]:
    """Each readable source with its entry, in the order of `sources`; a file that is new gets one."""
    free = list(memory.entries)
    heads = {id(s): _head(s) for s in sources if s.problem is None}
    readable = [s for s in sources if s.problem is None and id(s) in heads]
    found: dict[int, Entry] = {}
    for rule in _RULES:
        for source in readable:
            if id(source) in found:
                continue
            facts = _Facts(source, heads[id(source)])
            fitting = [entry for entry in free if rule(facts, entry)]
            if fitting:
                entry = max(fitting, key=lambda e: (e.head_size, e.stand.end))
                free.remove(entry)
                found[id(source)] = entry
    known: list[Known] = []
    for source in readable:
        facts = _Facts(source, heads[id(source)])
        entry = found.get(id(source)) or _new(memory, facts)
        entry.name, entry.inode, entry.bytes = source.name, facts.inode, source.size
        entry.group = facts.group
        if len(facts.head) > entry.head_size:
            entry.head_size, entry.head = len(facts.head), head_hash(facts.head, len(facts.head))
        known.append((source, entry))
    return known


class _Facts:
    """What is looked at of a source."""

    def __init__(self, source: Any, head: bytes) -> None:
        self.source, self.head = source, head
        self.group = _absolute(source.group)
        self.inode = _inode(source)

    def same_head(self, entry: Entry) -> bool:
        enough = len(self.head) >= entry.head_size
        return enough and head_hash(self.head, entry.head_size) == entry.head


def _by_inode(facts: _Facts, entry: Entry) -> bool:
    return facts.inode is not None and facts.inode == entry.inode and facts.same_head(entry)


def _by_set(facts: _Facts, entry: Entry) -> bool:
    return entry.group == facts.group and entry.head_size > 0 and facts.same_head(entry)


def _by_head(facts: _Facts, entry: Entry) -> bool:
    return entry.head_size == HEAD and facts.same_head(entry)


_RULES: tuple[Callable[[_Facts, Entry], bool], ...] = (_by_inode, _by_set, _by_head)


def _new(memory: Memory, facts: _Facts) -> Entry:
    entry = Entry(len(memory.entries), facts.source.name, facts.group, facts.group)
    entry.head = head_hash(b"", 0)
    memory.entries.append(entry)
    return entry


def _head(source: Any) -> bytes:
    """The first bytes of a source's text; what is wrong with it the reading itself will say."""
    head = b""
    with closing(source.blocks()) as blocks:
        for block in blocks:
            head += block[: HEAD - len(head)]
            if len(head) >= HEAD:
                break
    return head


def _inode(source: Any) -> list[int] | None:
    try:
        facts = os.stat(source.path)  # noqa: PTH116 - a source may have no path
    except (OSError, TypeError, ValueError):
        return None
    return [facts.st_dev, facts.st_ino] if facts.st_ino else None


def _absolute(group: str) -> str:
    return group if ":/" in group else os.path.abspath(group)  # noqa: PTH100 - links stay
