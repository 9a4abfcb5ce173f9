"""From histories to what a replay gives: request records with their ledgers, gaps between tokens, a log of the steps.

The ledger follows the replay's rules (`reference_engine.replay`): the time of each step bears one label for each
request that lives, and the parts of a request add up to its E2E to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logscope.inference.iteration_calibration import Calibration, calibrate
from logscope.inference.iteration_clock import Floats, Ints
from logscope.inference.iteration_steps import Arrivals, Steps
from logscope.inference.iteration_track import History, Rules, Track
from reference_engine.ledger import (
    BUDGET,
    DECODE,
    INTERFERENCE,
    KV,
    PREEMPTED_WAIT,
    PREFILL,
    RECOMPUTE,
    SEAT,
    RequestRecord,
)
from reference_engine.step_log import StepLog
from reference_engine.workload import Request

__all__ = ["Story", "tell"]

_GAP_NS = 100_000  # gaps between tokens are counted to a tenth of a millisecond


@dataclass(frozen=True)
class Story:
    """Everything that the steps tell. Times in nanoseconds from `Story.epoch` (seconds since 1970, the log's clock).

    `records`: requests whose arrival is known, in order of admission, then those that were never admitted; `begin`, `end`: the
    interval of each step, that between two busy steps included; `running`, `waiting`: after each step.
    """

    epoch: float
    records: list[RequestRecord]
    gaps: dict[int, int]
    log: StepLog
    calibration: Calibration
    begin: Ints
    end: Ints
    running: Ints
    waiting: Ints
    finished: Ints
    recomputed: int


@dataclass(frozen=True)
class _Load:
    """Per step: prefill and recompute tokens, decoding requests, KV tokens, requests that recompute, gaps that end there."""

    prefill: Ints
    decodes: Ints
    kv_tokens: Floats
    gaps: Ints


class _Counter:
    """Adds up constants and ramps over ranges of steps."""

    def __init__(self, count: int) -> None:
        self._level = np.zeros(count + 1)
        self._slope = np.zeros(count + 1)

    def add(self, first: int, last: int, value: float, slope: float = 0.0) -> None:
        """`value` at `first`, growing by `slope` a step until `last`."""
        self._level[first] += value - slope * first
        self._level[last + 1] -= value - slope * first
        self._slope[first] += slope
        self._slope[last + 1] -= slope

    def sums(self) -> Floats:
        steps = np.arange(len(self._level) - 1)
        return np.asarray(np.cumsum(self._level)[:-1] + np.cumsum(self._slope)[:-1] * steps)


def tell(
    track: Track, steps: Steps, arrivals: Arrivals, rules: Rules, prompts: Sequence[int]
) -> Story:
    """Write the records. `prompts`: each history's prompt length in tokens."""
    epoch = float(np.floor(min(steps.start[0], np.nanmin(arrivals.time, initial=np.inf))))
    load = _load(track.histories, steps, rules, prompts)
    idle = _idle_before(track.histories, len(steps))
    end = np.round((steps.end - epoch) * 1e9).astype(np.int64)
    end = np.maximum.accumulate(end)
    begin = np.round((steps.start - epoch) * 1e9).astype(np.int64)
    begin[1:] = np.where(idle[1:], np.maximum(begin[1:], end[:-1]), end[:-1])
    begin = np.minimum(begin, end)
    between = (
        float(np.mean((end - begin)[~idle] / 1e9 - steps.elapsed[~idle])) if (~idle).any() else 0.0
    )
    calibration = calibrate(
        steps.elapsed,
        load.prefill.astype(float),
        load.decodes.astype(float),
        load.kv_tokens,
        max(between, 0.0),
    )
    writer = _Writer(track, steps, arrivals, rules, prompts, load, calibration, begin, end, epoch)
    records = writer.records()
    running, waiting, finished = _queues(track, arrivals, len(steps))
    log = _step_log(writer, running, waiting, finished, rules)
    return Story(
        epoch,
        records,
        writer.gaps(),
        log,
        calibration,
        begin,
        end,
        running,
        waiting,
        finished,
        sum(r.recomputed for r in records),
    )


def _load(
    histories: Sequence[History], steps: Steps, rules: Rules, prompts: Sequence[int]
) -> _Load:
    count = len(steps)
    recomputing, kv, gaps = _Counter(count), _Counter(count), _Counter(count)
    for history, prompt in zip(histories, prompts, strict=True):
        out = 0
        for span in history.spans:
            length = span.last - span.first + 1
            if span.kind == "decode":
                kv.add(span.first, span.last, prompt + out, 1.0)
                gaps.add(span.first, span.last, 1)
                out += length
            else:
                kv.add(span.first, span.last, (prompt + out) / length, (prompt + out) / length)
                if span.kind == "recompute":
                    recomputing.add(span.first, span.last, 1)
                out += 1
    redo = np.round(recomputing.sums()).astype(np.int64)
    if rules.resumed_as_context:
        redo = np.zeros_like(redo)
    redone = np.minimum(redo, steps.generation)
    return _Load(
        prefill=steps.context_tokens + steps.excess + redone,
        decodes=steps.generation - redone,
        kv_tokens=np.maximum(kv.sums(), 0.0),
        gaps=np.round(gaps.sums()).astype(np.int64),
    )


def _last_step(history: History, count: int) -> int:
    return history.finished if history.finished is not None else count - 1


def _idle_before(histories: Sequence[History], count: int) -> npt.NDArray[np.bool_]:
    """Nobody lived from the step before into this one."""
    carried = np.zeros(count + 2, dtype=np.int64)
    for history in histories:
        if history.spans:
            carried[history.spans[0].first + 1] += 1
            carried[_last_step(history, count) + 1] -= 1
    return np.asarray(np.cumsum(carried)[:count] == 0)


def _queues(track: Track, arrivals: Arrivals, count: int) -> tuple[Ints, Ints, Ints]:
    """Running and waiting requests after each step, and how many finished with it."""
    running = np.zeros(count + 2, dtype=np.int64)
    waiting = np.zeros(count + 2, dtype=np.int64)
    finished = np.zeros(count + 2, dtype=np.int64)
    admitted = set()
    for history in track.histories:
        spans = history.spans
        if not spans:
            continue
        last = _last_step(history, count)
        if history.finished is not None:
            finished[last] += 1
        stops = [*history.evicted, last + (history.finished is None)]
        first = spans[0].first
        for stop in stops:
            running[first] += 1
            running[max(first, stop)] -= 1
            again = next((s.first for s in spans if s.first >= stop), None)
            if stop != stops[-1]:
                back = again if again is not None else last + 1
                waiting[stop] += 1
                waiting[back] -= 1
                first = back
        if history.request >= 0:
            admitted.add(history.request)
            # what comes during a step is queued when the next one is scheduled
            came = int(min(arrivals.position[history.request] + 1, spans[0].first))
            waiting[came] += 1
            waiting[spans[0].first] -= 1
    for i in range(len(arrivals)):
        if i not in admitted:
            came = int(min(arrivals.position[i] + 1, count))
            waiting[came] += 1
            waiting[max(came, int(min(arrivals.gone[i], count + 1)))] -= 1
    return (
        np.maximum(np.cumsum(running)[:count], 0),
        np.maximum(np.cumsum(waiting)[:count], 0),
        finished[:count],
    )


class _Writer:
    def __init__(
        self,
        track: Track,
        steps: Steps,
        arrivals: Arrivals,
        rules: Rules,
        prompts: Sequence[int],
        load: _Load,
        calibration: Calibration,
        begin: Ints,
        end: Ints,
        epoch: float,
    ) -> None:
        self.track, self.steps, self.arrivals, self.rules = track, steps, arrivals, rules
        self.prompts, self.load, self.begin, self.end, self.epoch = prompts, load, begin, end, epoch
        model = calibration.model
        length = end - begin
        predicted = (
            model.base_s
            + model.per_prefill_token_s * load.prefill
            + model.per_decode_s * load.decodes
            + model.per_kv_token_s * load.kv_tokens
        )
        self.per_token = model.per_prefill_token_s * length / np.maximum(predicted, 1e-9)
        disturbed = np.minimum(self.per_token * load.prefill, length)
        self.disturbed = np.concatenate([[0], np.cumsum(np.round(disturbed).astype(np.int64))])
        self.blocked = self._blocked()

    def _blocked(self) -> dict[int, Ints]:
        """Running sums of the steps' time by what kept the head of the queue."""
        steps, rules = self.steps, self.rules
        evicted = np.zeros(len(steps), dtype=np.bool_)
        for k, _ in self.track.evictions:
            evicted[k] = True
        seat = (steps.requests >= (rules.seats or np.inf)) & ~evicted
        budget = (steps.tokens >= (rules.budget or np.inf)) & ~evicted & ~seat
        kv = ~(seat | budget)
        length = np.diff(self.end, prepend=self.begin[:1])
        return {
            label: np.concatenate([[0], np.cumsum(np.where(mask, length, 0))])
            for label, mask in ((KV, kv), (SEAT, seat), (BUDGET, budget))
        }

    def records(self) -> list[RequestRecord]:
        made = []
        admitted = set()
        for history, prompt in zip(self.track.histories, self.prompts, strict=True):
            if history.request >= 0 and history.spans:
                admitted.add(history.request)
                made.append(self._record(history, prompt))
        left_out = (i for i in range(len(self.arrivals)) if i not in admitted)
        return made + [self._never_admitted(i) for i in left_out]

    def _request(self, i: int, prompt: int, output: int, arrival: int) -> Request:
        return Request(
            self.arrivals.ids[i], max(prompt, 1), max(output, 1), arrival_s=arrival / 1e9
        )

    def _never_admitted(self, i: int) -> RequestRecord:
        arrival = round((self.arrivals.time[i] - self.epoch) * 1e9)
        limit = int(self.arrivals.limit[i])
        record = RequestRecord(self._request(i, 1, limit, arrival), arrival)
        stop = int(self.end[-1])
        gone = int(self.arrivals.gone[i])
        if gone < len(self.end):
            record.status, stop = "aborted", int(self.end[gone])
            record.end = max(stop, arrival)
        if stop > arrival:
            self._queue(record, arrival, len(self.end), stop)
        return record

    def _queue(self, record: RequestRecord, arrival: int, first: int, until: int) -> None:
        """Label the time before the first step: the rest of the step under way, then what kept the head of the queue."""
        under_way = int(np.searchsorted(self.end, arrival))
        here = int(self.end[under_way]) if under_way < len(self.end) else until
        if under_way < len(self.end) and arrival <= self.begin[under_way]:
            here = int(self.begin[under_way])
            under_way -= 1
        for label, sums in self.blocked.items():
            if first > under_way + 1:
                record.ledger[label] += int(sums[first] - sums[under_way + 1])
        record.ledger[BUDGET] += max(0, min(here, until) - arrival)
        off = until - arrival - sum(record.ledger)
        if off < 0:  # an idle stretch inside, or an uncertain arrival
            for label in (BUDGET, KV, SEAT):
                taken = min(record.ledger[label], -off)
                record.ledger[label] -= taken
                off += taken
        record.ledger[BUDGET] += off

    def _record(self, history: History, prompt: int) -> RequestRecord:
        first = history.spans[0].first
        arrival = min(
            round((self.arrivals.time[history.request] - self.epoch) * 1e9), int(self.begin[first])
        )
        outputs = max(history.outputs, 1)
        if history.finished is None:
            outputs = max(outputs, int(self.arrivals.limit[history.request]))
        record = RequestRecord(self._request(history.request, prompt, outputs, arrival), arrival)
        record.started = True
        record.preemptions = len(history.evicted)
        record.output = history.outputs
        self._queue(record, arrival, first, int(self.begin[first]))
        self._spans(record, history, prompt)
        if history.first_token is not None:
            record.first_token = int(self.end[history.first_token])
        if history.finished is not None:
            record.status = "aborted" if history.aborted else "finished"
            record.end = int(self.end[history.finished])
        return record

    def _spans(self, record: RequestRecord, history: History, prompt: int) -> None:
        done = int(self.begin[history.spans[0].first])
        out = 0
        for span in history.spans:
            start, stop = int(self.begin[span.first]), int(self.end[span.last])
            record.ledger[PREEMPTED_WAIT] += start - done
            label = {"prefill": PREFILL, "decode": DECODE, "recompute": RECOMPUTE}[span.kind]
            own = 0.0
            if span.kind == "decode":
                out += span.last - span.first + 1
            elif span.last < len(self.end):
                own = float(prompt + out)
                if span.kind == "recompute":
                    record.recomputed += max(prompt + out - 1, 0)
                out += 1
            disturbed = int(self.disturbed[span.last + 1] - self.disturbed[span.first])
            if own:
                share = own / (span.last - span.first + 1)
                mine = np.minimum(share, self.load.prefill[span.first : span.last + 1])
                disturbed -= round(float((self.per_token[span.first : span.last + 1] * mine).sum()))
            disturbed = max(0, min(disturbed, stop - start))
            record.ledger[INTERFERENCE] += disturbed
            record.ledger[label] += stop - start - disturbed
            record.last_token = stop
            done = stop
        record.recomputed += round(history.redone)

    def gaps(self) -> dict[int, int]:
        """How often each gap between two tokens of a request occurs."""
        found: dict[int, int] = {}
        length = np.diff(self.end, prepend=self.begin[:1])
        rounded = np.round(length / _GAP_NS).astype(np.int64) * _GAP_NS
        for gap, many in zip(rounded.tolist(), self.load.gaps.tolist(), strict=True):
            if many > 0:
                found[gap] = found.get(gap, 0) + many
        for history in self.track.histories:
            before: int | None = None
            for span in history.spans:
                if span.kind == "recompute" and before is not None:
                    gap = round((int(self.end[span.last]) - before) / _GAP_NS) * _GAP_NS
                    found[gap] = found.get(gap, 0) + 1
                before = int(self.end[span.last])
        return found


def _step_log(
    writer: _Writer, running: Ints, waiting: Ints, finished: Ints, rules: Rules
) -> StepLog:
    steps, load = writer.steps, writer.load
    evicted = np.zeros(len(steps), dtype=np.int64)
    for k, _ in writer.track.evictions:
        evicted[k] += 1
    used = np.nan_to_num(steps.used, nan=0.0)
    free = np.maximum(rules.usable - np.round(used), 0).astype(np.int64)
    log = StepLog()
    log.rows = list(
        zip(
            writer.begin.tolist(),
            writer.end.tolist(),
            load.prefill.tolist(),
            load.decodes.tolist(),
            np.round(load.kv_tokens).astype(np.int64).tolist(),
            free.tolist(),
            free.tolist(),
            (running + finished).tolist(),
            waiting.tolist(),
            evicted.tolist(),
            steps.requests.tolist(),
            finished.tolist(),
            strict=True,
        )
    )
    return log
