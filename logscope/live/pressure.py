"""The rule by which a running server's pressure is judged: a few comparisons for each statistics line, in constant memory.

Basis. In a full cache every generated token takes room that some request must give back. Those that finish give theirs back too, but
with a queue that room goes to waiting requests at once; so about as many tokens as are generated must come from evicted requests, each
of which gives back what it held. The mean holding is cache in use ÷ running. Measured against the counters of real servers the ratio
(evictions × mean holding ÷ tokens generated) is 1.5 over seven runs together, and between 1.1 and 2.7 in each: hence the bounds.
It does not replace the replay of `logscope analyze`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime

from logscope.evidence.pressure import FULL_PCT, REPEATS

__all__ = ["HISTORY", "EnginePressure", "Reading"]

HISTORY = 120
"""Statistics lines that are kept for the view."""

LIKELY_PCT = 70.0  # the line is taken after finished requests gave back their blocks: two in a row
RELIEVED = 2  # lines without, after which pressure is over
RATIO, LOW, HIGH = 1.4, 0.5, 2.0
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

    `uncounted` names a feature of the server by which the rule does not hold: then nothing is inferred.
    """

    kv_tokens: int | None = None
    seats: int | None = None
    uncounted: str | None = None
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
        return usage >= FULL_PCT or self._likely >= 2 or (self._pressed and usage >= LIKELY_PCT)

    def _seats_taken(self, reading: Reading) -> bool:
        return self.seats is not None and reading.running >= self.seats - max(1, self.seats // 10)

    def _count(self, before: Reading | None, reading: Reading, pressed: bool) -> None:
        """Add the evictions of the interval that ends with this line."""
        if self.kv_tokens is None or reading.kv_usage is None or self.uncounted:
            return
        self.countable = True
        share = (pressed + self._pressed) / 2
        if not share or not reading.running or not reading.kv_usage:
            return
        tokens = (reading.generation_tps or 0.0) * _interval(before, reading)
        holding = self.kv_tokens * reading.kv_usage / reading.running
        evicted = RATIO * share * tokens / holding
        self.inferred += evicted
        self._episode += evicted

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
