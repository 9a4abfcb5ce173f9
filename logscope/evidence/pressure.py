"""Pressure: what keeps a queue waiting, and from when on a cache counts as full and preemption as repeated.

The one home of these thresholds: the verdict, the findings, the replay, the inference and `watch` ask here.

`EnginePressure` judges a running server with a few comparisons for each statistics line, in constant memory. Its basis: in a full cache
every generated token takes room that some request must give back. Those that finish give theirs back too, but with a queue that room
goes to waiting requests at once; so about as many tokens as are generated must come from evicted requests, each of which gives back what
it held. The mean holding is cache in use ÷ running. Measured against the counters of real servers the ratio
(evictions × mean holding ÷ tokens generated) is 1.5 over seven runs together, and between 1.1 and 2.7 in each: hence the bounds.
It does not replace the replay of `logscope analyze`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

from logscope.evidence.finding import Finding
from logscope.server.engines import EngineFacts
from parsers.reading.frames import repeated
from reference_engine.model.kv_group import KvGroup, groups_from_records, next_blocks

__all__ = [
    "FULL_PCT",
    "HISTORY",
    "MOST_AT_ONCE",
    "NEARLY_FULL_PCT",
    "REPEATS",
    "EnginePressure",
    "KvPool",
    "Reading",
    "bound_of",
    "evicted_share",
    "full_pct",
    "interval_hits",
    "is_round",
    "limits_over_time",
    "pressure_of_count",
    "pressure_of_windows",
    "seats_seen",
]
FULL_PCT = 95.0
"""KV usage (percent, as printed) from which the cache counts as full: the line is taken after finished requests were freed."""

NEARLY_FULL_PCT = 90.0
"""KV usage (percent) under which the cache has room, so that a queue waits for something else."""

MUCH_ROOM_PCT = 60.0
"""KV usage (percent) under which the next prompt fits whatever its length: between two lines a cache fills and empties by a third."""

MOSTLY_EXTERNAL_PCT = 50.0
"""Hit rate of an external prefix cache (percent) from which on prompts are mostly fetched, not computed."""

MOST_AT_ONCE = 12_000
"""Requests of one statistics window from which on nothing is inferred: a window cannot be cut."""

REPEATS = 3
"""Preemptions from which on they count as repeated (`thrash`)."""

MIN_FULL_WINDOWS = 2
MIN_PLATEAU = 3
SURE_PLATEAU = 6
PLATEAU_SHARE = 0.6
PREFILL_RATIO = 4.0
"""With this many prompt tokens to a generated one, an interval was spent on prompts."""


def pressure_of_count(preemptions: float, *, queued_while_full: bool) -> str:
    """`thrash` where preemptions repeat, `saturated` where requests waited for a full cache, else `none`."""
    if preemptions >= REPEATS:
        return "thrash"
    return "saturated" if queued_while_full else "none"


def pressure_of_windows(findings: Iterable[Finding], windows: pl.DataFrame | None) -> str:
    """The same from what the log itself shows: its preemptions, and a full cache with a queue."""
    ids = {f.id: f for f in findings}
    if "kv-preemption" in ids:
        return "thrash" if ids["kv-preemption"].severity == "critical" else "saturated"
    full = 0 if windows is None else (bound_of(windows, None) == "kv").sum()
    return pressure_of_count(0, queued_while_full=full >= MIN_FULL_WINDOWS)


def full_pct(facts: EngineFacts) -> float:
    """KV usage (percent) from which a server's cache is full: what is free is less than a running request's next block.

    In a small cache that many groups share this comes far below 95 %: of 47 blocks three are free at 93.6 %, and a request
    with one group of attention and three of states asks for four.
    """
    blocks, groups = facts.config.get("num_blocks"), facts.config.get("kv_groups")
    return KvPool(int(blocks), groups_from_records(groups)).full_pct if blocks and groups else FULL_PCT


@dataclass(frozen=True, slots=True)
class KvPool:
    """The blocks (V1's null block included) that a model's KV-cache groups share."""

    num_blocks: int
    groups: tuple[KvGroup, ...]

    @property
    def full_pct(self) -> float:
        """KV usage (percent) from which less is free than a running request's next block asks for."""
        if self.num_blocks < 2:
            return FULL_PCT
        lacking = next_blocks(self.groups) - 1
        # one decimal is printed
        return min(FULL_PCT, 100 * (1 - lacking / (self.num_blocks - 1)) - 0.051)

    def tokens_held(self, blocks: float) -> float:
        """Generated tokens that take as much room as a request gives back that holds so many blocks.

        A window that is full, and a state, take nothing more as a request grows: only the other groups' blocks are taken.
        """
        states = sum(1 + g.spec_blocks for g in self.groups if g.is_state and g.mode != "all")
        tables = [g for g in self.groups if not g.is_state or g.mode == "all"]
        growing = sum(1 / g.block_size for g in tables)
        length = max(blocks - states, 0.0) / growing if growing else 0.0
        windows = [g for g in tables if g.kind == "sliding"]
        full = sum(g.window / g.block_size for g in windows if length > g.window)
        growing -= sum(1 / g.block_size for g in windows if length > g.window)
        return max(blocks, full, 1e-9) / growing if growing > 0 else float("inf")


def bound_of(windows: pl.DataFrame, seats: int | None) -> pl.Series:
    """What kept each window's queue from being admitted: "kv", "seats", "both", "prefill", or null (no queue, or not visible).

    All `seats` taken bind by themselves, whatever the cache; the line is taken after finished requests gave up their seats, so
    with room in the cache a few free ones count as taken. With much room, an interval that was spent on prompts leaves the
    token budget (V0: one prefill step after the other). With free seats and few prompts under way, what waits before a nearly full cache
    waits for blocks: a prompt needs many of them at once. Deferred requests wait for none of these; V0's swapped ones are a queue too.
    """
    if not windows["waiting"].sum() and not windows["swapped"].sum():
        return repeated(None, windows.height, pl.String())
    queue = _queue()
    full = pl.col("full")
    room = ~full & (pl.col("kv_pct").fill_null(100) < NEARLY_FULL_PCT)
    much_room = ~full & (pl.col("kv_pct").fill_null(100) < MUCH_ROOM_PCT)
    taken, nearly = pl.lit(value=False), pl.lit(value=False)
    if seats:
        taken = ~pl.col("aggregated") & (pl.col("running") >= seats)
        nearly = ~pl.col("aggregated") & (pl.col("running") >= seats - max(1, seats // 10))
    prompts = pl.col("prompt_tps").fill_null(0)
    prefill = (prompts > 0) & (prompts >= PREFILL_RATIO * pl.col("generation_tps").fill_null(0))
    if "external_pct" in windows.columns:  # prompts that come with their KV blocks are not computed here
        prefill &= pl.col("external_pct").fill_null(0) < MOSTLY_EXTERNAL_PCT
    nearly_full = pl.lit(value=bool(seats)) & ~pl.col("aggregated") & (pl.col("kv_pct").fill_null(0) >= NEARLY_FULL_PCT)
    bound = (
        pl.when(~queue)
        .then(None)
        .when(full & taken)
        .then(pl.lit("both"))
        .when(full)
        .then(pl.lit("kv"))
        .when(taken | (nearly & room))
        .then(pl.lit("seats"))
        .when(nearly_full & ~prefill)
        .then(pl.lit("kv"))
        .when(much_room & prefill & ~pl.col("aggregated"))
        .then(pl.lit("prefill"))
    )
    return windows.select(bound=bound.otherwise(None))["bound"]


def bound_by(kind: str, windows: pl.DataFrame, seats: int | None) -> pl.DataFrame:
    """The windows whose queue this kept from being admitted; see `bound_of`."""
    bound = bound_of(windows, seats)
    return windows[:0] if bound.null_count() == bound.len() else windows.filter(bound == kind)


HELD_BY = {"both": "kv", "kv": "kv", "seats": "seats", "prefill": "budget"}
"""What `bound_of` says, in the words of a binding limit: with all seats taken and the cache full, more seats would not help."""

Stretch = tuple[datetime, datetime, str | None]


def limits_over_time(windows: pl.DataFrame | None, seats: int | None) -> list[Stretch]:
    """Start, end and limit of each stretch of the log: kv, seats, budget; `arrivals` without a queue, None where a queue's cause is not visible.

    Windows that follow each other with the same limit are one stretch.
    """
    found: list[Stretch] = []
    if windows is None:
        return found
    bounds = bound_of(windows, seats).to_list()
    swapped = windows["swapped"].to_list()
    queued = [waits + (out or 0) > 0 for waits, out in zip(windows["waiting"].to_list(), swapped, strict=True)]
    for start, end, bound, waits in zip(
        windows["start"].to_list(), windows["end"].to_list(), bounds, queued, strict=True
    ):
        limit = HELD_BY.get(bound or "") if waits else "arrivals"
        if found and found[-1][2] == limit and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]), limit)
        else:
            found.append((start, end, limit))
    return found


def evicted_share(windows: pl.DataFrame | None, *, counts_hits: bool) -> float:
    """Share of the prompt tokens computed that were in the prefix cache once and were evicted from it for lack of KV space, 0..1.

    That shows where the hit rate falls while requests wait and the cache has little room: what is given back less often than at its best, before,
    is computed again. `counts_hits`: the prompt throughput holds what came from the cache too (older releases). Printed rates are means
    over many requests, from which those of each interval follow.
    """
    if windows is None or windows["aggregated"].any() or not windows["hit_pct"].max():
        return 0.0
    told = windows.filter(pl.col("hit_pct").is_not_null() & (pl.col("prompt_tps") > 0))
    tokens = (told["prompt_tps"] * told["interval_s"].clip(0, 60)).to_list()
    rates = (told["hit_pct"] / 100).to_list()
    short = ((told["waiting"] > 0) | told["full"]) & (told["kv_pct"].fill_null(0) >= MUCH_ROOM_PCT)
    best = lost = done = 0.0
    for (asked, given), rate, pressed in zip(interval_hits(tokens, rates, counts_hits), rates, short, strict=True):
        done += asked - given
        lost += max(best * asked - given, 0.0) if pressed else 0.0
        best = max(best, rate)
    return min(lost / done, 1.0) if done > 0 else 0.0


def interval_hits(tokens: Sequence[float], rates: Sequence[float], counts_hits: bool) -> list[tuple[float, float]]:
    """Prompt tokens asked for in each interval, and those of them that came from the prefix cache.

    Args:
        tokens: prompt tokens shown for each interval.
        rates: the hit rate (0..1) at its end, a mean since the start.
        counts_hits: whether `tokens` hold what came from the cache.
    """
    found = []
    computed = asked = given = 0.0
    for shown, rate in zip(tokens, rates, strict=True):
        computed += shown
        least = asked + shown
        total = least if counts_hits else max(computed / (1 - min(rate, 0.99)), least)
        new = total - asked
        hits = min(max(rate * total - given, 0.0), new if counts_hits else new - shown)
        found.append((new, hits))
        asked, given = total, rate * total
    return found


def _queue() -> pl.Expr:
    """Whether requests wait for room, a seat or the budget: most of the queue is not deferred."""
    waiting = pl.col("waiting") + pl.col("swapped").fill_null(0)
    return (waiting > 0) & (2 * pl.col("deferred").fill_null(0) < waiting)


def seats_seen(windows: pl.DataFrame | None) -> int | None:
    """max_num_seqs where the queue gives it away: Running stands still at its highest number while requests wait and KV has room.

    A round number needs three such lines, any other six; None where nothing stands still.
    """
    if windows is None or windows["aggregated"].any():
        return None
    # room: what is free holds one more request of the size of those that run
    room = pl.col("kv_pct") * (pl.col("running") + 1) <= 100 * pl.col("running")
    held = windows.filter(_queue() & (pl.col("kv_pct") < NEARLY_FULL_PCT) & (pl.col("running") >= 1) & room)
    if held.height < MIN_PLATEAU:
        return None
    top = int(windows["running"].max() or 0)  # type: ignore[arg-type]
    at_top = int((held["running"] == top).sum())
    needed = MIN_PLATEAU if is_round(top) else SURE_PLATEAU
    if at_top < needed or at_top < PLATEAU_SHARE * held.height:
        return None
    # Requests that neither finish nor generate stand still too, whatever the number.
    moved = held.filter(pl.col("running") == top)["generation_tps"].fill_null(0).sum()
    return top if moved > top else None


def is_round(number: int) -> bool:
    """Whether people set such numbers: powers of two, multiples of 8 or 10, and small ones."""
    return number <= 8 or number % 8 == 0 or number % 10 == 0


HISTORY = 120
"""Statistics lines that are kept for the view."""

LIKELY_PCT = 70.0  # the line is taken after finished requests gave back their blocks: two in a row
RELIEVED = 2  # lines without, after which pressure is over
RATIO, LOW, HIGH = 1.4, 0.5, 2.0
STATES_RATIO = 2.0  # the same besides where states are kept: who is evicted starts again from one, soon and often (two real runs, 22 each)
DEFAULT_INTERVAL_S = 10.0
LONGEST_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One statistics line: requests, KV usage 0..1, tokens a second; None where the line does not say."""

    time: datetime | None
    running: float
    waiting: float
    kv_usage: float | None
    prompt_tps: float | None = None
    generation_tps: float | None = None
    preemptions: int | None = None


@dataclass(slots=True)
class EnginePressure:
    """One engine's pressure as its lines come. `kv_tokens` is the size of its cache and `seats` its max_num_seqs, None where not known.

    `pool` stands in for `kv_tokens` where several KV-cache groups share the blocks: there a token has no fixed size.

    `uncounted` names a feature of the server by which the rule does not hold: then nothing is inferred.
    """

    kv_tokens: int | None = None
    seats: int | None = None
    uncounted: str | None = None
    pool: KvPool | None = None
    history: deque[Reading] = field(default_factory=lambda: deque(maxlen=HISTORY))
    pressure: str = "none"
    since: datetime | None = None
    worst: str = "none"
    inferred: float = 0.0
    countable: bool = False
    fields: int | None = None
    low: int = 0
    high: int = 0
    warned: bool = False
    _counter: int | None = None
    _episode: float = 0.0
    _likely: int = 0
    _relieved: int = 0
    _pressed: bool = False

    def take(self, reading: Reading) -> str:
        """Judge one line and return the pressure after it."""
        before = self.history[-1] if self.history else None
        pressed = self._is_pressed(reading)
        self._count(before, reading, pressed)
        if reading.preemptions is not None:
            self.fields = (self.fields or 0) + reading.preemptions
            self._episode += reading.preemptions
        self._judge(reading, pressed)
        self.history.append(reading)
        self._pressed = pressed
        return self.pressure

    def warn(self, counter: int | None, *, from_start: bool) -> None:
        """Take one of V0's warnings; its counter is cumulative, one that goes back is another process's."""
        self.warned = True
        if counter is None:
            self.low += 1
        elif self._counter is None or counter < self._counter:
            self.low += counter if from_start or self._counter is not None else 1
            self.high += counter + 49
        else:
            self.low += counter - self._counter
            self.high += counter - self._counter
        self._counter = counter if counter is not None else self._counter
        self._episode += 1

    @property
    def preemptions(self) -> tuple[float, float, float, str] | None:
        """Low, value, high, basis so far; None where this log tells nothing and nothing can be inferred."""
        if self.fields is not None:
            return (self.fields, self.fields, self.fields, "measured")
        low, value, high = self.inferred * LOW, self.inferred, self.inferred * HIGH
        if self.warned:
            high = max(self.low, self.high)
            known = self.low if self.uncounted else value
            basis = "inferred" if known > self.low else "measured"
            return (self.low, min(max(known, self.low), high), high, basis)
        if self.uncounted or not self.countable:
            return None
        return (low, value, high, "inferred")

    def _is_pressed(self, reading: Reading) -> bool:
        """Whether requests wait for space: the cache looks full, there is a queue, and seats are free."""
        usage = 100 * (reading.kv_usage or 0.0)
        if reading.waiting <= 0 or self._seats_taken(reading):
            self._likely = 0
            return False
        self._likely = self._likely + 1 if usage >= LIKELY_PCT else 0
        full = self.pool.full_pct if self.pool is not None else FULL_PCT
        return usage >= full or self._likely >= 2 or (self._pressed and usage >= LIKELY_PCT)

    def _seats_taken(self, reading: Reading) -> bool:
        return self.seats is not None and reading.running >= self.seats - max(1, self.seats // 10)

    def _count(self, before: Reading | None, reading: Reading, pressed: bool) -> None:
        """Add the evictions of the interval that ends with this line."""
        if (self.kv_tokens is None and self.pool is None) or reading.kv_usage is None or self.uncounted:
            return
        self.countable = True
        share = (pressed + self._pressed) / 2
        if not share or not reading.running or not reading.kv_usage:
            return
        tokens = (reading.generation_tps or 0.0) * _interval(before, reading)
        evicted = RATIO * share * tokens / self._holding(reading)
        self.inferred += evicted
        self._episode += evicted

    def _holding(self, reading: Reading) -> float:
        """What a running request holds on the mean, in tokens that are generated into as much room."""
        share = (reading.kv_usage or 0.0) / reading.running
        if self.pool is not None:
            kept = any(group.is_state and group.mode == "align" for group in self.pool.groups)
            return self.pool.tokens_held(share * (self.pool.num_blocks - 1)) / (STATES_RATIO if kept else 1.0)
        return (self.kv_tokens or 0) * share

    def _judge(self, reading: Reading, pressed: bool) -> None:
        if pressed or (reading.preemptions or 0) > 0:
            self._relieved = 0
            if self.pressure == "none":
                self.pressure, self.since = "saturated", reading.time
            if self._episode >= REPEATS:
                self.pressure = "thrash"
        elif self.pressure != "none":
            self._relieved += 1
            if self._relieved >= RELIEVED:
                self.pressure, self.since = "none", None
        if self.pressure == "none":
            self._episode = 0.0
        elif self.worst != "thrash":
            self.worst = self.pressure


def _interval(before: Reading | None, reading: Reading) -> float:
    if before is None or before.time is None or reading.time is None:
        return DEFAULT_INTERVAL_S
    seconds = (reading.time - before.time).total_seconds()
    return min(seconds, LONGEST_INTERVAL_S) if seconds > 0 else 0.0
