"""The waiting queue under both policies, in the order in which requests are popped from it, and when prompts are held."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from reference_engine.model import SchedulerFailedError
from reference_engine.model.request import RequestState
from reference_engine.model.step import RequestId

__all__ = ["FcfsQueue", "PrefillCadence", "PriorityQueue", "WaitingQueue"]


class WaitingQueue(Protocol):
    """A queue of waiting requests (vLLM: `v1/core/sched/request_queue.py`)."""

    def __len__(self) -> int:
        """How many wait."""

    def add_request(self, state: RequestState) -> None:
        """A new request."""

    def prepend_request(self, state: RequestState) -> None:
        """A preempted or skipped request: to the front, or to its place in the order of priority."""

    def peek_request(self) -> RequestState:
        """The request that would be popped."""

    def pop_request(self) -> RequestState:
        """Take the head."""

    def remove_request(self, state: RequestState) -> None:
        """Take a request from anywhere."""

    def in_order(self) -> list[RequestState]:
        """All in pop order."""


class FcfsQueue:
    """First come, first served."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[RequestState] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add_request(self, state: RequestState) -> None:
        """At the end."""
        self._queue.append(state)

    def prepend_request(self, state: RequestState) -> None:
        """To the front."""
        self._queue.appendleft(state)

    def peek_request(self) -> RequestState:
        """The first one."""
        return self._queue[0]

    def pop_request(self) -> RequestState:
        """Take the first one."""
        return self._queue.popleft()

    def remove_request(self, state: RequestState) -> None:
        """Take a request from anywhere."""
        self._queue.remove(state)

    def in_order(self) -> list[RequestState]:
        """All in order."""
        return list(self._queue)


class _Tie:
    """The third part of a heap entry that cannot be compared (releases up to 0.11.2)."""

    __slots__ = ("id",)

    def __init__(self, request_id: int | str) -> None:
        self.id = request_id

    def __lt__(self, other: _Tie) -> bool:
        raise SchedulerFailedError(
            f"requests {other.id!r} and {self.id!r} have equal priority and arrival time, and the waiting queue of "
            "this version cannot order them (TypeError in request_queue.py)"
        )


class PriorityQueue:
    """Lowest (priority, arrival) first; ties by the string order of ids, or an error where `ties` is "error"."""

    __slots__ = ("_heap", "_ties")

    def __init__(self, ties: str) -> None:
        self._ties = ties
        self._heap: list[tuple[int, float, _Tie | str, RequestState]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add_request(self, state: RequestState) -> None:
        """To its place in the order."""
        tie = _Tie(state.id) if self._ties == "error" else str(state.id)
        heapq.heappush(self._heap, (state.priority, state.arrival, tie, state))

    def prepend_request(self, state: RequestState) -> None:
        """To its place in the order."""
        self.add_request(state)

    def peek_request(self) -> RequestState:
        """The lowest one."""
        return self._heap[0][3]

    def pop_request(self) -> RequestState:
        """Take the lowest one."""
        return heapq.heappop(self._heap)[3]

    def remove_request(self, state: RequestState) -> None:
        """Take a request from anywhere."""
        self._heap = [entry for entry in self._heap if entry[3] is not state]
        heapq.heapify(self._heap)

    def in_order(self) -> list[RequestState]:
        """All in pop order."""
        return [e[3] for e in sorted(self._heap, key=lambda e: (e[0], e[1], str(e[3].id)))]


class PrefillCadence:
    """`prefill_schedule_interval`: prompts only in every so many steps, while others decode (0.33.0 on).

    `interval` counts steps that compute something. A step that could not take all of the queue along lifts the hold
    until the queue has been empty once.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._since_prompt = interval
        self._lifted = False

    def holds(self, running: Sequence[RequestState]) -> bool:
        """Whether prompts have to wait in the step that begins."""
        if self.interval <= 1 or self._lifted or self._since_prompt >= self.interval:
            return False
        return any(state.num_computed_tokens >= state.num_prompt_tokens for state in running)

    def count(
        self, states: Mapping[RequestId, RequestState], scheduled: Iterable[RequestId], held: bool, waiting: int
    ) -> None:
        """A step is decided and not yet counted as computed."""
        if self.interval <= 1:
            return
        chosen = [states[request_id] for request_id in scheduled]
        if any(state.num_computed_tokens < state.num_prompt_tokens for state in chosen):
            self._since_prompt = 0
        if chosen:
            self._since_prompt += 1
        if not waiting:
            self._lifted = False
        elif not held:
            self._lifted = True
