"""From events to what is told: one state a statistics line, an alert where something changes, a summary at the end."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logscope.evidence.context import CLEAN_STOP_S
from logscope.evidence.pressure import EnginePressure, KvPool, Reading
from logscope.sanitize import clean, redacted
from logscope.server.defaults import fill_defaults
from logscope.server.kv_groups import layout_of
from logscope.server.settings import Configuration, gather
from logscope.server.unsupported import uncounted_feature
from logscope.wording import bounds, duration, number, percent, plural
from parsers.families.stats import is_believed
from parsers.reading.events import Event

__all__ = ["Monitor", "Notice", "Watched"]

# Companions of the statistics line that tell of a feature.
_TELLING = frozenset(("v0_specdecode", "v1_specdecode", "v1_diffusion"))
_RANK = {"none": 0, "saturated": 1, "thrash": 2}
_BROKEN = re.compile(r"dead|died|fatal|output_handler|worker_exc|rpc|oom")
MAX_ENGINES = 256
SILENT_S = 60.0

Key = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Notice:
    """One object of `watch --json`. Times are the record's clock, usage 0..1; `preemptions` so far: low, value, high, basis."""

    kind: str
    time: datetime | None
    pressure: str
    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: tuple[float, float, float, str] | None
    engine: Key | None = None
    text: str | None = None
    event: str | None = None

    def document(self) -> dict[str, Any]:
        """The contract's keys, and more: bounds and basis of the count, whose state it is, what an alert says."""
        low, value, high, basis = self.preemptions or (None, None, None, None)
        return {
            "time": self.time.isoformat() if self.time is not None else None,
            "kind": self.kind,
            "pressure": self.pressure,
            "running": self.running,
            "waiting": self.waiting,
            "kv_usage": self.kv_usage,
            "preemptions": None if value is None else round(value, 1),
            "preemptions_low": None if low is None else round(low, 1),
            "preemptions_high": None if high is None else round(high, 1),
            "preemptions_basis": basis,
            "server": self.engine[0] if self.engine else None,
            "engine_index": self.engine[1] if self.engine else None,
            "event": self.event,
            "text": self.text,
        }


@dataclass(slots=True)
class Watched:
    """One engine as it is now: its pressure and the name by which it is told from others."""

    key: Key
    run: int
    state: EnginePressure
    silent_for_s: float = 0.0
    told_silence: bool = False

    @property
    def last(self) -> Reading | None:
        """The last statistics line."""
        return self.state.history[-1] if self.state.history else None


@dataclass(slots=True)
class _Setup:
    """What a server said of itself."""

    kv_tokens: int | None = None
    block_size: int | None = None
    seats: int | None = None
    version: str | None = None
    concurrency: float | None = None
    pool: KvPool | None = None
    told: Configuration = field(default_factory=Configuration)
    variants: set[str] = field(default_factory=set)
    started: bool = False
    said: set[str] = field(default_factory=set)
    stopped: bool = False

    @property
    def uncounted(self) -> str | None:
        """The feature by which this server's preemptions cannot be counted."""
        return uncounted_feature(self.told.more, self.variants, groups_known=self.pool is not None)

    def learn(self, fields: Mapping[str, Any]) -> None:
        """Take a line of the start: settings, version, and what the groups of the KV cache follow from."""
        new = gather([fields])
        self.told.more.update(new.more)
        for name, value in new.values.items():
            if value is not None:
                self.told.set(name, value, new.basis[name])
        if isinstance(fields.get("version"), str):
            self.version = fields["version"]
        if isinstance(fields.get("max_concurrency"), (int, float)):
            self.concurrency = float(fields["max_concurrency"])
        known = Configuration(dict(self.told.values), dict(self.told.basis), self.told.more)
        fill_defaults(known, "V1", self.version, None)
        values = {**known.values, "num_blocks": self.told.values["num_blocks"]}
        layout = layout_of(values, known.more, self.version, self.kv_tokens, self.concurrency)
        self.pool = KvPool(layout.num_blocks, layout.groups) if layout is not None and layout.num_blocks else None


class Monitor:
    """Takes events in order and tells what is worth telling; memory does not grow with the log."""

    def __init__(self) -> None:
        self.engines: dict[Key, Watched] = {}
        self.lines = 0
        self._setups: dict[int, _Setup] = {}
        self._runs: dict[int, int] = {}
        self._ended: list[tuple[float, float, float, str]] = []
        self._worst = "none"
        self._top: dict[str, float] = {"running": 0, "waiting": 0, "kv_usage": 0.0}
        self._time: datetime | None = None
        self._episodes = 0
        self._held: list[Notice] = []
        self._held_quiet_s = 0.0

    def take(self, event: Event) -> list[Notice]:
        """The notices of one event."""
        self._time = event.time or self._time
        notices = self._run(event) + self._let_go()
        family = event.family
        if family in ("startup", "kv_sizing"):
            self._learn(event)
        elif event.variant in _TELLING:
            self._learn_kind(event)
        elif family == "stats" and event.fields.get("running") is not None and is_believed(event.fields):
            notices += self._stats(event)
        elif family == "preemption" and event.variant == "v0_preempt_warning":
            notices += self._warning(event)
        elif family == "shutdown":
            self._stopping(event)
        elif family in ("runtime", "kv_error"):
            self._broken(event)
        return notices

    def quiet(self, seconds: float) -> list[Notice]:
        """`seconds` have passed without a line: a server with a queue that says nothing may be stuck."""
        self._held_quiet_s += seconds
        notices = self._let_go()
        for watched in self.engines.values():
            watched.silent_for_s += seconds
            last = watched.last
            if last is not None and last.waiting > 0 and watched.silent_for_s >= SILENT_S and not watched.told_silence:
                watched.told_silence = True
                text = f"no statistics for {duration(watched.silent_for_s)} with {number(last.waiting)} requests waiting: the engine may be stuck"
                notices.append(self._notice("alert", watched, text, "silent"))
        return notices

    def finish(self) -> list[Notice]:
        """What is left to tell at the end: the summary last."""
        held, self._held = self._held, []
        return [*held, self.summary()]

    def summary(self) -> Notice:
        """What was seen: the gravest pressure, the highest running, waiting and usage, all preemptions."""
        count = self._total()
        seen = any(w.last for w in self.engines.values()) or self._episodes or self._ended
        text = f"{plural(self.lines, 'statistics line')}, "
        text += plural(self._episodes, "pressure episode") if self._episodes else "no pressure"
        if count is not None:
            text += f", {_preempted(count)}"
        used = {name for w in self.engines.values() if (name := w.state.uncounted) is not None}
        if used:
            text += f", those of servers with {' and '.join(sorted(used))} not inferred"
        running, waiting, usage = self._top.values() if seen else (None, None, None)
        return Notice("summary", self._time, self._worst, running, waiting, usage, count, None, text)

    def verdict(self, watched: Watched) -> str:
        """What the log shows of an engine now, in the words of `analyze`; no replay has a part in it."""
        setup, last = self._setups.get(watched.key[0]), watched.last
        if setup is not None and setup.said and not setup.stopped:
            return "engine-crash"
        if watched.told_silence:
            return "engine-stall"
        if watched.state.pressure != "none":
            return "kv-capacity"
        if last is not None and last.waiting > 0 and watched.state.seats and last.running >= watched.state.seats:
            return "seat-limit"
        return "healthy" if last is not None else "not-enough-evidence"

    def _run(self, event: Event) -> list[Notice]:
        """Where a server restarts its engines are forgotten; their counts stay."""
        before = self._runs.get(event.server)
        self._runs[event.server] = event.run
        if before is None or before == event.run:
            return []
        for key in [k for k in self.engines if k[0] == event.server]:
            self._retire(key)
        self._setups[event.server] = _Setup(started=True)
        return [
            Notice(
                "alert",
                self._time,
                "none",
                None,
                None,
                None,
                self._total(),
                (event.server, None),
                "the server restarted",
                "restarted",
            )
        ]

    def _retire(self, key: Key) -> None:
        gone = self.engines.pop(key)
        if (count := gone.state.preemptions) is not None:
            self._ended = [_added([*self._ended, count])]

    def _learn(self, event: Event) -> None:
        setup = self._setups.setdefault(event.server, _Setup())
        fields = event.fields
        if event.variant.startswith(("init", "api_version", "version_model")):
            setup.started = True
        for source in (fields, fields.get("args"), fields.get("config")):
            if isinstance(source, dict):
                setup.seats = _whole(source.get("max_num_seqs")) or setup.seats
                setup.block_size = _whole(source.get("block_size")) or setup.block_size
        tokens = _whole(fields.get("kv_cache_tokens"))
        blocks = _whole(fields.get("num_gpu_blocks"))
        if tokens is None and blocks is not None:
            tokens = blocks * (setup.block_size or 16)
        if tokens is not None:
            setup.kv_tokens = tokens
        setup.learn(fields)
        self._learn_kind(event)
        for watched in self.engines.values():
            if watched.key[0] == event.server:
                state = watched.state
                state.kv_tokens, state.seats, state.pool = setup.kv_tokens, setup.seats, setup.pool

    def _learn_kind(self, event: Event) -> None:
        """What the server uses by which preemptions cannot be counted."""
        setup = self._setups.setdefault(event.server, _Setup())
        setup.variants.add(event.variant)
        for watched in self.engines.values():
            if watched.key[0] == event.server:
                watched.state.uncounted = setup.uncounted

    def _engine(self, event: Event) -> Watched:
        key = (event.server, event.engine_index)
        watched = self.engines.get(key)
        if watched is None:
            if len(self.engines) >= MAX_ENGINES:
                self._retire(next(iter(self.engines)))
            setup = self._setups.setdefault(event.server, _Setup())
            state = EnginePressure(setup.kv_tokens, setup.seats, setup.uncounted, setup.pool)
            watched = self.engines[key] = Watched(key, event.run, state)
        return watched

    def _stats(self, event: Event) -> list[Notice]:
        watched = self._engine(event)
        spoke = watched.told_silence
        watched.silent_for_s, watched.told_silence = 0.0, False
        reading = _reading(event)
        self.lines += 1
        for name, value in (
            ("running", reading.running),
            ("waiting", reading.waiting),
            ("kv_usage", reading.kv_usage or 0.0),
        ):
            self._top[name] = max(self._top[name], value)
        before, since = watched.state.pressure, watched.state.since
        after = watched.state.take(reading)
        self._worst = max(self._worst, watched.state.worst, key=_RANK.__getitem__)
        notices = [self._notice("state", watched)]
        if spoke:
            notices.append(self._notice("alert", watched, "statistics are printed again", "silence-ended"))
        if before == "none" and after != "none":
            self._episodes += 1
            notices.append(self._notice("alert", watched, _started(reading), "pressure-started"))
        elif before == "saturated" and after == "thrash":
            text = f"thrashing: {_counted(watched)}"
            notices.append(self._notice("alert", watched, text, "thrash"))
        elif before != "none" and after == "none":
            lasted = (
                f" after {duration((reading.time - since).total_seconds())}"
                if since is not None and reading.time is not None
                else ""
            )
            text = f"KV pressure ended{lasted}; {_counted(watched)}"
            notices.append(self._notice("alert", watched, text, "pressure-ended"))
        return notices

    def _warning(self, event: Event) -> list[Notice]:
        watched = self._engine(event)
        counter = event.fields.get("total_num_cumulative_preemption")
        setup = self._setups.setdefault(event.server, _Setup())
        watched.state.warn(counter if isinstance(counter, int) else None, from_start=setup.started)
        text = f"vLLM logged a preemption (#{counter})"
        return [self._notice("alert", watched, text, "preemption-logged")]

    def _broken(self, event: Event) -> None:
        """Once for each kind and start: a failing server repeats itself. A server that was told to stop does not break."""
        setup = self._setups.setdefault(event.server, _Setup())
        if event.variant in setup.said or setup.stopped:
            return
        if event.family == "runtime" and not _BROKEN.search(event.variant):
            return
        setup.said.add(event.variant)
        states = (w.state.pressure for w in self.engines.values())
        pressure = max(states, key=_RANK.__getitem__, default="none")
        text = clean(redacted(event.text), 200) or event.variant
        place = (event.server, event.engine_index)
        self._held.append(Notice("alert", self._time, pressure, None, None, None, self._total(), place, text, "error"))
        self._held_quiet_s = 0.0

    def _stopping(self, event: Event) -> None:
        """The processes of a group get the signal together: one may be gone before the other says that it stops."""
        setup = self._setups.setdefault(event.server, _Setup())
        setup.stopped = True
        if event.fields.get("signal") is not None:
            self._held = [n for n in self._held if n.engine is None or n.engine[0] != event.server]

    def _let_go(self) -> list[Notice]:
        """Errors wait for a moment: what follows may say that the server was told to stop."""
        if not self._held:
            return []
        first = self._held[0].time
        late = first is not None and self._time is not None and (self._time - first).total_seconds() > CLEAN_STOP_S
        if not late and self._held_quiet_s < CLEAN_STOP_S:
            return []
        held, self._held = self._held, []
        return held

    def _notice(self, kind: str, watched: Watched, text: str | None = None, event: str | None = None) -> Notice:
        last = watched.last
        return Notice(
            kind,
            self._time,
            watched.state.pressure,
            last.running if last else None,
            last.waiting if last else None,
            last.kv_usage if last else None,
            watched.state.preemptions,
            watched.key,
            text,
            event,
        )

    def _total(self) -> tuple[float, float, float, str] | None:
        counts = [c for w in self.engines.values() if (c := w.state.preemptions) is not None]
        counts += self._ended
        return _added(counts) if counts else None


def _added(counts: list[tuple[float, float, float, str]]) -> tuple[float, float, float, str]:
    basis = "inferred" if any(c[3] == "inferred" for c in counts) else "measured"
    low, value, high = (sum(c[i] for c in counts) for i in range(3))  # type: ignore[misc]
    return low, value, high, basis


def _reading(event: Event) -> Reading:
    fields = event.fields
    gpu, cpu = (_known(fields.get(f"{d}_kv_cache_usage_pct")) for d in ("gpu", "cpu"))
    used = cpu if cpu and not gpu else gpu  # a CPU build of V0 shows its cache beside an idle GPU's
    return Reading(
        event.time,
        _known(fields.get("running")) or 0,
        _known(fields.get("waiting")) or 0,
        None if used is None else round(float(used) / 100, 6),
        _known(fields.get("prompt_throughput")),
        _known(fields.get("generation_throughput")),
        _known(fields.get("preemptions")),
    )


def _known(value: Any) -> Any:
    """A number; what a damaged line has in its place is not known."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _started(reading: Reading) -> str:
    return (
        f"KV pressure started: cache {percent(reading.kv_usage or 0.0)} full,"
        f" {number(reading.running)} running, {number(reading.waiting)} waiting"
    )


def _counted(watched: Watched) -> str:
    count = watched.state.preemptions
    if count is None and watched.state.uncounted is not None:
        return f"preemptions cannot be counted, the server uses {watched.state.uncounted}"
    if count is None:
        return "preemptions cannot be counted, the log does not show the size of the KV cache"
    return _preempted(count, " so far")


def _preempted(count: tuple[float, float, float, str], when: str = "") -> str:
    """A count with its bounds and its basis: "47 preemptions so far (23 to 94, inferred)"."""
    low, value, high, basis = count
    between = "" if number(low) == number(high) else f"{bounds(low, high)}, "
    return f"{plural(value, 'preemption')}{when} ({between}{basis})"


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
