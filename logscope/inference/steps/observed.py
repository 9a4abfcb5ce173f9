"""What a log says of each engine step, as arrays in the order of the log.

What is known of each request after the steps were followed: its spans of steps, evictions, end.

With drafts a step gives a request an unknown number of tokens, so nobody can be followed: `recomputations` finds the marks that hold
there too, and `cost_of_steps` what a step costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from logscope.inference.steps.clock import Floats, Ints, calibrate, end_times, step_seconds
from reference_engine.cost.step_time import CostFit

__all__ = [
    "History",
    "Recomputations",
    "Rules",
    "Span",
    "Steps",
    "Track",
    "cost_of_steps",
    "prompts_begun",
    "read_steps",
    "recomputations",
    "seconds_of",
]
_MOST_REQUESTS = 1 << 16  # in one step
_MOST_TOKENS = 1 << 26


@dataclass(frozen=True)
class Steps:
    """One row a step. Lengths in tokens, times in seconds since 1970 on the log's own clock.

    `context`/`generation`: requests that got prefill and other tokens, `context_tokens`/`generation_tokens` how many;
    `used`: KV blocks in use after the step (NaN where the line does not say), known to `used_error` blocks;
    `lost`: steps between the one before and this one whose lines are missing; `by_stamps`: `elapsed` comes from the lines' times, as what
    they print cannot be true.
    """

    number: Ints
    order: Ints
    line: Ints
    context: Ints
    context_tokens: Ints
    generation: Ints
    generation_tokens: Ints
    elapsed: Floats
    end: Floats
    used: Floats
    used_error: float
    lost: Ints
    by_stamps: bool = False

    def __len__(self) -> int:
        return len(self.number)

    def part(self, stop: int) -> Steps:
        """The first `stop` steps."""
        return replace(
            self,
            **{
                name: getattr(self, name)[:stop]
                for name in self.__dataclass_fields__
                if name not in ("used_error", "by_stamps")
            },
        )

    @property
    def requests(self) -> Ints:
        """Scheduled requests of each step."""
        return self.context + self.generation

    @property
    def tokens(self) -> Ints:
        """Scheduled tokens of each step."""
        return self.context_tokens + self.generation_tokens

    @property
    def excess(self) -> Ints:
        """Generation tokens beyond one a request: the first model runner's recomputation."""
        beyond: Ints = np.maximum(self.generation_tokens - self.generation, 0)
        return beyond

    @property
    def start(self) -> Floats:
        """When each step began, at the earliest when the one before it ended."""
        begin = self.end - self.elapsed
        begin[1:] = np.maximum(begin[1:], self.end[:-1])
        return begin


def seconds_of(frame: pl.DataFrame) -> Floats:
    """The envelope's clock where it is finer than a second and complete, else the record's own."""
    own = frame["at"].dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6
    outer = frame["outer_time"].dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6
    known = ~np.isnan(outer)
    if not len(outer) or not known.all() or not np.mean(outer != np.floor(outer)) > 0.5:
        return np.asarray(own, dtype=np.float64)
    both = ~np.isnan(own)
    zone = np.round(np.median((own - outer)[both]) / 900.0) * 900.0 if both.any() else 0.0
    return np.asarray(outer + zone, dtype=np.float64)


def read_steps(frame: pl.DataFrame, usable_blocks: int | None) -> Steps:
    """The steps of one engine's iteration frame; `usable_blocks` is the pool without the null block.

    A line with counts that no server reaches is damaged: it counts as missing.
    """
    frame = (
        frame.filter(
            pl.col("context_requests").is_between(0, _MOST_REQUESTS)
            & pl.col("generation_requests").is_between(0, _MOST_REQUESTS)
            & pl.col("context_tokens").is_between(0, _MOST_TOKENS)
            & pl.col("generation_tokens").is_between(0, _MOST_TOKENS)
        )
        .filter(~pl.col("dummy").fill_null(False) & (pl.col("context_requests") + pl.col("generation_requests") > 0))
        .sort("order")
    )
    column = {
        name: frame[name].cast(pl.Int64).to_numpy().astype(np.int64)
        for name in ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
    }
    elapsed = frame["elapsed_ms"].to_numpy().astype(np.float64) / 1e3
    number = frame["iteration"].to_numpy().astype(np.int64)
    stamps = _forward_filled(seconds_of(frame))
    may_idle = column["generation_requests"] == 0
    told = step_seconds(stamps, elapsed, may_idle, column["context_tokens"])
    if told is not None:
        elapsed = told
    end = end_times(stamps, elapsed, may_idle)
    share = frame["gpu_kv_cache_usage_pct"].cast(pl.Float64).to_numpy() / 100.0
    blocks = float(usable_blocks or 0) or np.nan
    lost = np.maximum(np.diff(number, prepend=number[:1] - 1) - 1, 0)
    lost[lost > 100_000] = 0
    return Steps(
        number=number,
        order=frame["order"].to_numpy().astype(np.int64),
        line=frame["line"].to_numpy().astype(np.int64),
        context=column["context_requests"],
        context_tokens=column["context_tokens"],
        generation=column["generation_requests"],
        generation_tokens=column["generation_tokens"],
        elapsed=elapsed,
        end=end,
        used=np.asarray(share * blocks, dtype=np.float64),
        used_error=0.0005 * blocks + 0.01 if blocks == blocks else np.inf,
        lost=lost,
        by_stamps=told is not None,
    )


def _forward_filled(seconds: Floats) -> Floats:
    known = ~np.isnan(seconds)
    if known.all() or not known.any():
        return np.nan_to_num(seconds)
    index = np.maximum.accumulate(np.where(known, np.arange(len(seconds)), -1))
    return seconds[np.where(index < 0, int(np.argmax(known)), index)]


@dataclass(frozen=True, slots=True)
class Recomputations:
    """Marks of recomputation in a drafting server's steps.

    `ends`: when each step ended that recomputed (seconds since 1970, the log's clock), `least`: requests that resumed in them at the
    least, `tokens`: what they computed again; `started`: prompts that were begun, those of requests that were sent again included;
    `steps`: how many there are.
    """

    ends: tuple[float, ...]
    least: int
    tokens: int
    started: int
    steps: int


_AROUND = 30  # steps on each side that tell how many tokens a decoding request usually has
_SPREADS = 4.0  # by which the tokens of a step must exceed that


def recomputations(steps: Steps, drafts: int, budget: int) -> Recomputations:
    """Find the steps in which requests computed lost tokens again.

    Decoding requests have 1 to 1 + `drafts` tokens each, a resumed one its whole sequence: what exceeds the usual of the steps around
    is recomputation. One that `budget` cuts goes on in the next step.
    """
    requests, tokens = steps.generation, steps.generation_tokens
    ratio = np.where((requests > 0) & (tokens <= (1 + drafts) * requests), tokens / np.maximum(requests, 1), np.nan)
    usual = _usual(ratio, 1.0 + drafts)
    spread = np.sqrt(np.maximum(usual - 1.0, 0.0) * np.maximum(1.0 + drafts - usual, 0.0)) + 0.05
    beyond = tokens - usual * requests
    # not all of `requests` decode: the resumed one's usual tokens are recomputation too
    marked = beyond > _SPREADS * spread * np.sqrt(np.maximum(requests, 1)) + drafts + 2
    cut = steps.tokens >= budget - drafts
    goes_on = np.zeros(len(steps), dtype=np.bool_)
    goes_on[1:] = marked[:-1] & cut[:-1] & marked[1:]
    opened = np.zeros(len(steps), dtype=np.int64)
    opened[1:] = (cut & (steps.context > 0))[:-1]
    # more decode than before, and the prompts that ended do not explain it
    rise = np.zeros(len(steps), dtype=np.int64)
    rise[1:] = requests[1:] - requests[:-1] - steps.context[:-1] + opened[1:]
    here = marked & ~goes_on
    least = int(np.maximum(rise[here], 1).sum())
    started = int(np.maximum(steps.context - opened, 0).sum())
    again = int((beyond + usual)[marked].sum()) if marked.any() else 0
    return Recomputations(tuple(steps.end[here].tolist()), least, again, started, len(steps))


_TOGETHER = 6  # prompts of which only the sum is known: more of them are no longer taken as equally long


def prompts_begun(steps: Steps, budget: int, drafts: int) -> list[int]:
    """Tokens of the prompts in the order in which they began, 0 where too many shared a step.

    The tokens of a step are those of its prompts in equal parts; the last one goes on in the next where `budget` cut it.
    """
    found: list[float] = []
    goes_on = False
    figures = zip(steps.context.tolist(), steps.context_tokens.tolist(), steps.tokens.tolist(), strict=True)
    for requests, tokens, everything in figures:
        if requests:
            each = tokens / requests if requests <= _TOGETHER else -math.inf
            if goes_on:
                found[-1] += each
            found += [each] * (requests - goes_on)
        goes_on = bool(requests) and everything >= budget - drafts
    return [max(0, round(max(tokens, 0.0))) for tokens in found]


def _usual(ratio: Floats, otherwise: float) -> Floats:
    """The median of the steps around each; `otherwise` where none tells."""
    padded = np.pad(ratio, _AROUND, constant_values=np.nan)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    known = ~np.isnan(around).all(axis=1)
    found = np.full(len(ratio), otherwise)
    if known.any():
        found[known] = np.nanmedian(around[known], axis=1)
    return found


_ENOUGH_TO_CALIBRATE = 100
_SURE = 0.03  # spread (log) of costs that single steps tell


def cost_of_steps(steps: Steps, kv_tokens: Floats) -> CostFit | None:
    """What a step costs, by the steps themselves; None where they are too few. `kv_tokens`: context of all requests in each."""
    busy = (steps.generation > 0) & np.isfinite(kv_tokens) & (steps.lost == 0)
    if int(busy.sum()) < _ENOUGH_TO_CALIBRATE:
        return None
    gaps = np.diff(steps.end, prepend=steps.end[:1]) - steps.elapsed
    between = float(np.clip(np.median(gaps[busy]), 0.0, np.median(steps.elapsed[busy])))
    decodes = np.where(steps.generation_tokens > 0, steps.generation, 0)
    prefill = steps.tokens - decodes
    whole = busy | (steps.context > 0)
    whole &= np.isfinite(kv_tokens)
    found = calibrate(
        steps.elapsed[whole], prefill[whole].astype(float), decodes[whole].astype(float), kv_tokens[whole], between
    )
    logs = np.log(np.maximum(found.model.coefficients, 1e-12))
    return CostFit(logs, np.eye(5) * _SURE**2, found.error, float(whole.sum()))


@dataclass(frozen=True, slots=True)
class Rules:
    """What the scheduler was allowed to do. `usable` blocks without the null block, `watermark` of them kept free when a request is admitted; 0 for what is not known.

    `resumed_as_context`: the second model runner sends a resumed request as a new one. `exact_limits`: requests run to
    their limit although their lines would let them end before. `shared`: prompts share cached blocks, so that a
    request's blocks do not follow from its length.
    """

    budget: int
    seats: int
    usable: int
    block_size: int
    threshold: int
    caching: bool
    asynchronous: bool
    watermark: int = 0
    resumed_as_context: bool = False
    exact_limits: bool = False
    shared: bool = False
    priority: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps of one kind in a request's life: "prefill", "decode" or "recompute", both ends included."""

    kind: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class History:
    """One request through the steps. `request` is its place among the arrivals, -1 where the log has no line of it.

    `evicted`: the steps whose scheduling evicted it; `finished`: the step that delivered its last token; `outputs`:
    tokens delivered; `prompt`: its length in tokens, `sure` where single steps tell it, else a share of what several
    requests prefilled together; `redone`: tokens lost to evictions before the first token; `aborted`: the client went away.
    """

    request: int
    spans: tuple[Span, ...]
    evicted: tuple[int, ...]
    finished: int | None
    outputs: int
    prompt: float
    sure: bool
    redone: float
    aborted: bool
    before_log: bool

    @property
    def first_token(self) -> int | None:
        """The step that delivered the first token."""
        if self.before_log or not self.outputs:
            return None
        return next((s.last for s in reversed(self.spans) if s.kind == "prefill"), None)


@dataclass(frozen=True)
class Track:
    """All histories in order of admission, and how well the steps were explained.

    `cost`: how far from the rules the account had to go, summed over steps; `low`, `high`: evictions of the other accounts that are
    nearly as good; `blind_steps`: steps whose lines are missing.
    """

    histories: tuple[History, ...]
    cost: float = 0.0
    low: int = 0
    high: int = 0
    blind_steps: int = 0

    @property
    def evictions(self) -> list[tuple[int, int]]:
        """(step, place of the history) of each eviction, in order."""
        return sorted((k, i) for i, h in enumerate(self.histories) for k in h.evicted)
