"""The virtual clock of a replay: requests arrive and are aborted in seconds, batches take the time a model says.

`ReplayClock` is what the plain replay and the fast one have in common: arrivals, aborts, batches in flight, and
`advance`. A subclass decides what a batch holds (`_schedule`) and what its end brings (`_complete`).
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reference_engine.cost.step_time import StepTime
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config, check_request, check_workload
from reference_engine.model.request import Request, RequestRecord, nanoseconds
from reference_engine.model.step import RequestId
from reference_engine.v1.profile import profile_of

__all__ = ["Batch", "Observation", "ReplayClock", "batch_duration", "kv_usage", "usage_blocks"]


class Batch(Protocol):
    """A scheduled batch: when it starts and ends on the device, in nanoseconds."""

    start: int
    end: int


BatchT = TypeVar("BatchT", bound=Batch)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a server's periodic statistics would show: the state after the last step that ended by `time_s`.

    `running`, `waiting`: requests; `free_blocks` and `kv_usage` (0..1) after finished requests were freed. The rest
    are totals since the start: `generated_tokens`; `prompt_tokens` and how many of them came from the prefix cache,
    both credited with a request's first token; `preemptions`; `finished` requests; `steps`.
    """

    time_s: float
    running: int
    waiting: int
    free_blocks: int
    kv_usage: float
    generated_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    finished: int
    steps: int


LONGEST_STEP_S = 86_400.0
"""No step takes a day; times of a replay stay far below what 64 bits of nanoseconds hold."""


def batch_duration(model: StepTime, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> int:
    """A model's seconds as nanoseconds.

    Raises:
        ConfigError: the model gives a time that is negative, not a number, or longer than `LONGEST_STEP_S`.
    """
    seconds = model.seconds(prefill_tokens, decode_requests, kv_tokens, requests)
    if not 0.0 <= seconds <= LONGEST_STEP_S:
        raise ConfigError(f"the step-time model gives {seconds:g} s for a step: no step takes so long")
    return round(seconds * 1e9)


def usage_blocks(config: EngineConfig) -> int:
    """The blocks that the usage figure of the configured version is a share of; V1's null block counts until 0.10.2."""
    counts_null = profile_of(config.version).usage_counts_null_block
    if config.engine == "vllm-v1" and not counts_null:
        return config.num_blocks - 1
    return config.num_blocks


def kv_usage(config: EngineConfig, free_blocks: int) -> float:
    """The usage figure that the configured version would print (0..1)."""
    return 1.0 - free_blocks / usage_blocks(config)


class ReplayClock(ABC, Generic[BatchT]):
    """Turns of an engine's loop on a clock that counts whole nanoseconds.

    A turn adds what has arrived, drops what was aborted, schedules a batch, and waits for the oldest batch in flight:
    the same batch, or with asynchronous scheduling the one before it.
    """

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        check_config(config)
        self.config = config
        self.step_time = step_time
        self.depth = 2 if config.async_scheduling else 1
        self.now = 0
        self.turns = 0
        self.steps = 0
        self.in_flight: deque[BatchT] = deque()
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.finished: list[RequestRecord] = []
        self.gaps: dict[int, int] = {}
        self.running_now = 0
        self.waiting_now = 0
        self.free_now = config.num_blocks - (config.engine == "vllm-v1")
        self._due: int | None = None
        self._arrivals: list[tuple[int, int, Request]] = []
        self._by_step: deque[Request] = deque()
        self._aborts: list[tuple[int, int, RequestId]] = []
        self._order = 0

    @property
    @abstractmethod
    def unfinished(self) -> int:
        """Requests inside the scheduler."""

    @abstractmethod
    def _enter(self, request: Request, arrival: int) -> None:
        """Hand a request that arrived at `arrival` to the scheduler, at the start of a turn."""

    @abstractmethod
    def _leave(self, request_id: RequestId) -> None:
        """Abort a request at the start of a turn."""

    @abstractmethod
    def _schedule(self) -> BatchT:
        """Decide a batch at `now` and say how long it takes."""

    @abstractmethod
    def _complete(self, batch: BatchT) -> None:
        """A batch has ended: deliver its tokens. `now` is still the start of the turn."""

    def add(self, request: Request) -> None:
        """Announce a request; it joins the queue in the first turn that starts at or after its arrival.

        Raises:
            WorkloadError: the request breaks a rule.
        """
        check_request(self.config, request)
        self._push(request)

    def _push(self, request: Request) -> None:
        self._order += 1
        if request.arrival_step is not None:
            self._by_step.append(request)
        else:
            arrival = nanoseconds(request.arrival_s)
            heapq.heappush(self._arrivals, (arrival, self._order, request))
        if request.abort_s is not None:
            heapq.heappush(self._aborts, (nanoseconds(request.abort_s), self._order, request.id))

    def run(self, requests: Iterable[Request]) -> None:
        """Replay a whole workload to its end.

        Raises:
            WorkloadError, ConfigError: a breach of the rules of `validation`.
            NoProgressError, SchedulerFailedError: the run ended early.
        """
        requests = list(requests)
        check_workload(self.config, requests)
        for request in sorted(requests, key=lambda r: r.arrival_step or 0):
            self._push(request)
        self.advance(math.inf)

    def advance(self, until_s: float) -> None:
        """Let time pass: all steps that end by `until_s` (seconds) are done, the one under way is decided.

        Requests that arrive at `until_s` or later may be added afterwards.
        """
        until: float = until_s if until_s == math.inf else nanoseconds(until_s)
        while True:
            if self._due is None:
                if self.unfinished == 0 and not self.in_flight and not self._jump(until):
                    return
                self._run_decode_stretch(until)
                if self.now >= until:
                    return
                self._start_turn()
                if self._due is None:
                    continue
            if self._due > until:
                return
            self._complete(self.in_flight.popleft())
            self.now = max(self.now, self._due)
            self._due = None

    def _run_decode_stretch(self, until: float) -> None:
        """Between two turns: a subclass may run through turns in which nothing happens."""

    def _next_event(self, until: float) -> float:
        """The next arrival or abort, or `until` if that comes first (ns)."""
        if self._by_step:
            return 0
        if self._arrivals and self._arrivals[0][0] < until:
            until = self._arrivals[0][0]
        if self._aborts and self._aborts[0][0] < until:
            until = self._aborts[0][0]
        return until

    def _jump(self, until: float) -> bool:
        """Idle: on to the next arrival. False when there is none before `until`."""
        if self._by_step:
            self.turns = max(self.turns, self._by_step[0].arrival_step or 0)
            return True
        if not self._arrivals or self._arrivals[0][0] >= until:
            return False
        self.now = max(self.now, self._arrivals[0][0])
        return True

    def _start_turn(self) -> None:
        """Arrivals, aborts, and a batch; `_due` is when the turn's batch ends, None where a second one may follow."""
        while self._arrivals and self._arrivals[0][0] <= self.now:
            arrival, _order, request = heapq.heappop(self._arrivals)
            self._enter(request, arrival)
        while self._by_step and (self._by_step[0].arrival_step or 0) <= self.turns:
            self._enter(self._by_step.popleft(), self.now)
        while self._aborts and self._aborts[0][0] <= self.now:
            self._leave(heapq.heappop(self._aborts)[2])
        self.turns += 1
        full = True
        if self.unfinished:
            self.in_flight.append(self._schedule())
            full = len(self.in_flight) == self.depth
        if full and self.in_flight:
            self._due = self.in_flight[0].end

    def _takes_time(self) -> bool:
        """Whether a turn with an empty batch takes a step's base time: not beside another batch in flight."""
        return not self.in_flight or self.in_flight[-1].end <= self.now

    def observe(self) -> Observation:
        """The statistics of the last completed step."""
        return Observation(
            time_s=self.now / 1e9,
            running=self.running_now,
            waiting=self.waiting_now,
            free_blocks=self.free_now,
            kv_usage=kv_usage(self.config, self.free_now),
            generated_tokens=self.generated_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            finished=len(self.finished),
            steps=self.steps,
        )
