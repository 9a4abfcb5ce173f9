"""A block pool with prefix caching for workloads in which no two requests share content.

Then only an evicted request can ever hit cached blocks, namely its own, and these are given up from its tail on. So
the free list is a row of segments, and no block needs a name: `BlockPool` decides the same (a property test says so).
"""

from __future__ import annotations

from collections import deque

from reference_engine.model.request import RequestState

__all__ = ["OwnedPool"]

Segment = list[int]  # [blocks left, 1 if they belong to an evicted request]


class OwnedPool:
    """Free blocks in the order in which they will be reused, grouped by who left them there."""

    __slots__ = ("_segments", "free", "unhashed_first", "usable")

    def __init__(self, usable: int, unhashed_first: bool) -> None:
        self.usable = usable
        self.free = usable
        self.unhashed_first = unhashed_first
        self._segments: deque[Segment] = deque([[usable, 0]])

    def lookup(self, state: RequestState, most: int) -> tuple[int, int]:
        """The blocks that are left of an evicted request; all of them lie in the free list."""
        segment = state.segment
        if segment is None:
            return 0, 0
        hit = min(segment[0], most)
        return hit, hit

    def admit(self, state: RequestState, hit: int, new: int) -> None:
        """Take the request's own blocks out of their segment, then new ones from the front."""
        if state.segment is not None:
            state.segment[0] -= hit
            state.segment[1] = 0
            state.segment = None
        self.free -= hit
        state.held = state.registered = hit
        self.grow(state, new)

    def grow(self, state: RequestState, new: int) -> None:
        """Take blocks from the front of the free list."""
        self.take(new)
        state.held += new

    def take(self, blocks: int) -> None:
        """Take blocks for requests whose own count is kept elsewhere (the fast path)."""
        self.free -= blocks
        segments = self._segments
        while blocks:
            first = segments[0]
            if first[0] > blocks:
                first[0] -= blocks
                return
            blocks -= first[0]
            first[0] = 0
            segments.popleft()

    def register(self, state: RequestState, full: int) -> None:
        """Count the blocks that carry a hash."""
        if full > state.registered:
            state.registered = full

    def release(self, state: RequestState) -> None:
        """Give the blocks back; those of an evicted request can be found again until they are taken."""
        hashed, plain = state.registered, state.held - state.registered
        self.free += state.held
        state.held = state.registered = 0
        segments = self._segments
        if plain:
            if not self.unhashed_first:
                self._append(plain)
            elif segments and not segments[0][1]:
                segments[0][0] += plain
            else:
                segments.appendleft([plain, 0])
        if state.status == "finished":
            self._append(hashed)
        elif hashed:
            state.segment = [hashed, 1]
            segments.append(state.segment)

    def _append(self, blocks: int) -> None:
        if self._segments and not self._segments[-1][1]:
            self._segments[-1][0] += blocks
        else:
            self._segments.append([blocks, 0])
