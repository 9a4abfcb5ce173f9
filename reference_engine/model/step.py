"""What a scheduler decides in one step, what the step delivers, and the protocol that V0 and V1 share.

`Scheduler` (the protocol), `Step` (decisions), `Outcome` (deliveries), `Iteration` (both, as the golden traces
write them: with asynchronous scheduling the outcome beside a step is that of the step before it).

The log of a replay's steps: one list a column, turned into a frame at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request

__all__ = ["STEP_COLUMNS", "Iteration", "Outcome", "RequestId", "Scheduler", "Step", "StepLog"]
RequestId = int | str


@dataclass(slots=True)
class Step:
    """The decisions of one `schedule()` call. Lengths in tokens; orders are the scheduler's own.

    `scheduled` is {id: tokens} in scheduling order (V0 counts cached tokens too). `spans` is {id: (start, end)}: the
    positions which the step really computes, `end - start` being the work. `num_computed_tokens` is parallel to
    `running`. `waiting` is in pop order. `sampled` are the scheduled requests that catch up with this step:
    `update_from_output` hands them a token. `free_blocks` is taken right after `schedule()`. `blocked` says why the
    head of the waiting queue stayed there: "seat" (`max_num_seqs` reached), "kv" (blocks, admission gate, watermark, or
    a step that preempted), "budget" (token budget used up), None when nothing was left waiting. `drafts` is {id: drafts
    that the step verifies}, a part of `scheduled`; `padded` are the requests whose drafts only fill up the batch and are
    all rejected. `group_blocks`: with several KV-cache groups, what each of `running` holds in each. The fields from
    `swapped_out` on are V0's.
    """

    scheduled: dict[RequestId, int] = field(default_factory=dict)
    spans: dict[RequestId, tuple[int, int]] = field(default_factory=dict)
    preempted: list[RequestId] = field(default_factory=list)
    new: list[RequestId] = field(default_factory=list)
    resumed: list[RequestId] = field(default_factory=list)
    hits: dict[RequestId, int] = field(default_factory=dict)
    running: list[RequestId] = field(default_factory=list)
    waiting: list[RequestId] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    sampled: list[RequestId] = field(default_factory=list)
    free_blocks: int = 0
    blocked: str | None = None
    drafts: dict[RequestId, int] = field(default_factory=dict)
    padded: set[RequestId] = field(default_factory=set)
    group_blocks: list[list[int]] = field(default_factory=list)
    swapped_out: list[RequestId] = field(default_factory=list)
    swapped_in: list[RequestId] = field(default_factory=list)
    swapped: list[RequestId] = field(default_factory=list)
    ignored: list[RequestId] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What one finished step delivered: ids that got a token, ids that finished, and the free blocks afterwards.

    `accepted` is {id: accepted drafts} of all that were verified, `delivered` {id: tokens} of those that got several.
    """

    tokens: list[RequestId]
    finished: list[RequestId]
    free_blocks: int
    accepted: dict[RequestId, int] = field(default_factory=dict)
    delivered: dict[RequestId, int] = field(default_factory=dict)


@dataclass(slots=True)
class Iteration:
    """One turn of the engine's loop. `step` is None in a turn that only updates, `outcome` in one that only schedules."""

    number: int
    added: list[RequestId]
    step: Step | None
    outcome: Outcome | None


class Scheduler(Protocol):
    """A scheduler that is called once a step: `schedule`, then (after the model ran) `update_from_output`.

    Both may raise `SchedulerFailedError` where the real scheduler of that version raises.
    """

    config: EngineConfig

    @property
    def unfinished(self) -> int:
        """Requests that were added and have not finished, been ignored or aborted."""

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the waiting queue (by priority order under `priority`)."""

    def abort(self, request_id: RequestId) -> None:
        """Drop a request wherever it is and free its blocks at once; unknown ids are passed over."""

    def schedule(self, now: float) -> Step:
        """Decide one step. `now`: seconds on the replay's clock (only V0's delay factor and block ages look at it)."""

    def update_from_output(self, step: Step) -> Outcome:
        """Hand over one token to each request of `step` that has caught up; free what finished."""


STEP_COLUMNS = (
    "start",
    "end",
    "prefill_tokens",
    "decode_requests",
    "kv_tokens",
    "free_blocks",
    "free_end",
    "running",
    "waiting",
    "preempted",
    "tokens",
    "finished",
)


class StepLog:
    """Rows of `STEP_COLUMNS`; times in nanoseconds, the rest are counts."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def append(self, *row: int) -> None:
        """One completed step."""
        self.rows.append(row)
