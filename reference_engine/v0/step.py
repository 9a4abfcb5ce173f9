"""What one call of V0's `schedule()` gathers, its budget, and the step record that comes out of it.

One live request of the V0 scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request, RequestState
from reference_engine.model.step import Step

__all__ = ["Decisions", "V0State", "V0Step"]


class V0State(RequestState):
    """A request with V0's own counters. Lengths in tokens.

    V0 keeps the stage of a request apart from its counters (vLLM 0.8.5, `sequence.py`): `in_prefill` holds until the
    computed tokens reach the known ones, and again after a recompute preemption. `seen` is what the block table
    holds. `cached` is the prefix-cache hit, looked up once and then frozen until the blocks are freed (None: not
    looked up yet). `last_access` is when the request was last scheduled. `admitted`: it has run before.
    `status` is "waiting", "running", "swapped" or "finished".
    """

    __slots__ = ("admitted", "cached", "in_prefill", "last_access", "seen")

    def __init__(self, request: Request, max_model_len: int) -> None:
        super().__init__(request, max_model_len)
        # V0 stops when a sequence is longer than the model's length, V1 when it has reached it
        self.max_output_tokens = min(request.output_tokens, max(1, max_model_len + 1 - request.prompt_tokens))
        self.in_prefill = True
        self.seen = 0
        self.cached: int | None = None
        self.last_access: float | None = None
        self.admitted = False

    @property
    def uncomputed(self) -> int:
        """Tokens it wants to compute next: the rest in prefill, one in decode."""
        return self.num_prompt_tokens + self.num_output_tokens - self.num_computed_tokens if self.in_prefill else 1

    @property
    def rank(self) -> tuple[int, float]:
        """What the priority policy compares; the greater, the worse."""
        return (self.priority, self.arrival)

    def advance(self, tokens: int) -> None:
        """Count `tokens` as computed; prefill ends when nothing is left."""
        self.num_computed_tokens += tokens
        if self.num_computed_tokens == self.num_prompt_tokens + self.num_output_tokens:
            self.in_prefill = False

    def restart(self) -> None:
        """Go back to the start for a recompute; generated tokens are kept."""
        self.num_computed_tokens = 0
        self.in_prefill = True
        self.status = "waiting"
        self.cached = None


MAX_PADDINGS = 256

Chunk = tuple[V0State, int]
"""A request and the tokens of its chunk, cached ones included."""


@dataclass(slots=True)
class V0Step(Step):
    """A step of V0. The first `prefill_groups` requests of `scheduled` are prefills, the others decode one token.

    `prompt_tokens` is what V0's statistics count as prompt throughput: the chunks of all prefills, with cached and
    with recomputed tokens (vLLM 0.8.5, `engine/llm_engine.py`).
    """

    prefill_groups: int = 0
    prompt_tokens: int = 0


@dataclass(slots=True)
class Decisions:
    """The decisions of one `schedule()` call so far.

    `tokens` and `seats` are what is used of the budget (cached tokens cost nothing). `share` is the longest chunk
    where several partial prefills divide the budget (None: no limit), `long_prefills` the long ones among them;
    `whole_blocks`: chunks are rounded down to whole blocks.
    `forced` and `forced_out` are victims of the priority policy (recomputed, swapped out), `preempted` and
    `swapped_out` those of a block shortage. `ignored` are prompts and `given_up` swapped requests that can never run.
    `blocked` is why admission stopped.
    """

    config: EngineConfig
    now: float
    whole_blocks: bool = False
    num_batched_tokens: int = 0
    num_curr_seqs: int = 0
    share: int | None = None
    long_prefills: int = 0
    prefills: list[Chunk] = field(default_factory=list)
    running_prefills: list[Chunk] = field(default_factory=list)
    swapped_in: list[V0State] = field(default_factory=list)
    swapped_prefills: list[Chunk] = field(default_factory=list)
    decodes: list[V0State] = field(default_factory=list)
    swapped_decodes: list[V0State] = field(default_factory=list)
    forced: list[V0State] = field(default_factory=list)
    forced_out: list[V0State] = field(default_factory=list)
    preempted: list[V0State] = field(default_factory=list)
    swapped_out: list[V0State] = field(default_factory=list)
    ignored: list[V0State] = field(default_factory=list)
    given_up: list[V0State] = field(default_factory=list)
    blocked: str | None = None

    @property
    def evicted(self) -> bool:
        """A block shortage has taken a running request's place."""
        return bool(self.preempted or self.swapped_out)

    def dropped(self) -> list[V0State]:
        """All that will never run."""
        return self.ignored + self.given_up

    def chunk(self, wanted: int) -> int:
        """What of `wanted` fits into the budget, also for decodes."""
        left = self.config.max_num_batched_tokens - self.num_batched_tokens
        share = left if self.share is None else self.share
        if self.whole_blocks:
            left = min(left, share) // self.config.block_size * self.config.block_size
        return min(wanted, left, share)

    def share_budget(self, running: Iterable[V0State], waiting: Iterable[V0State], most: int, long: int) -> None:
        """Split the budget evenly over the partial prefills of this step, running or waiting ones.

        Args:
            running: the running queue.
            waiting: the waiting queue.
            most: `max_num_partial_prefills`.
            long: tokens beyond which a prompt is long; only so many long ones count.
        """
        prefills = long_waiting = 0
        for state in running:
            if state.in_prefill:
                prefills += 1
                self.long_prefills += state.uncomputed > long
        for state in waiting:
            if prefills >= most:
                break
            if state.uncomputed > long:
                if self.long_prefills + long_waiting >= self.config.max_long_partial_prefills:
                    continue
                long_waiting += 1
            prefills += 1
        self.share = self.config.max_num_batched_tokens // max(1, min(prefills, most))

    def affords(self, tokens: int) -> bool:
        """A seat and the budget for `tokens` (at least one) are left."""
        left = self.config.max_num_batched_tokens - self.num_batched_tokens
        return 0 < tokens <= left and self.num_curr_seqs < self.config.max_num_seqs

    def is_padded_by(self, tokens: int) -> bool:
        """Whether one prompt more makes the batch too long or too uneven.

        Up to 0.3 a batch costs its longest prompt for each prompt, and only so much of it may be padding.
        """
        lengths = [chunk for _state, chunk in self.prefills] + [tokens]
        cost = len(lengths) * max(lengths)
        return cost > self.config.max_num_batched_tokens or cost - sum(lengths) > MAX_PADDINGS

    def step(self) -> V0Step:
        """The record of what is scheduled; each scheduled request counts its tokens as computed."""
        step = V0Step(
            preempted=[state.id for state in self.forced + self.preempted],
            swapped_out=[state.id for state in self.forced_out + self.swapped_out],
            swapped_in=[state.id for state in self.swapped_in],
            ignored=[state.id for state in self.dropped()],
        )
        for state, _tokens in self.prefills:
            (step.resumed if state.admitted else step.new).append(state.id)
            state.admitted = True
            if state.cached:
                step.hits[state.id] = state.cached
        chunks = self.prefills + self.running_prefills + self.swapped_prefills
        step.prefill_groups = len(chunks)
        for state, tokens in chunks:
            end = state.num_computed_tokens + tokens
            start = max(state.num_computed_tokens, min(state.cached or 0, end - 1))
            step.prompt_tokens += tokens
            self._schedule(step, state, start, tokens)
        for state in self.decodes:
            self._schedule(step, state, state.num_computed_tokens, 1)
        for state in self.swapped_decodes:
            state.cached = state.cached or 0
            self._schedule(step, state, state.num_computed_tokens, 1)
        return step

    def _schedule(self, step: V0Step, state: V0State, start: int, tokens: int) -> None:
        step.scheduled[state.id] = tokens
        state.advance(tokens)
        step.spans[state.id] = (start, state.num_computed_tokens)
        state.last_access = self.now
        if not state.in_prefill:
            step.sampled.append(state.id)
