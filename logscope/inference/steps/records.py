"""From histories to what a replay gives: request records with their ledgers, gaps between tokens, a log of the steps.

The ledger follows the replay's rules (`reference_engine.replay.plain`): the time of each step bears one label for each
request that lives, and the parts of a request add up to its E2E to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logscope.inference.steps.arrivals import Arrivals
from logscope.inference.steps.clock import Calibration, Floats, Ints, calibrate
from logscope.inference.steps.load import Load, idle_before, load_of, queues_of
from logscope.inference.steps.observed import History, Rules, Steps, Track
from reference_engine.model.request import (
    BUDGET,
    DECODE,
    INTERFERENCE,
    KV,
    PREEMPTED_WAIT,
    PREFILL,
    RECOMPUTE,
    SEAT,
    Request,
    RequestRecord,
)
from reference_engine.model.step import StepLog

__all__ = ["ReconstructedRun", "reconstruct_run", "stalled_steps"]

_MOST_ROWS = 200_000  # of the log of steps
_GAP_NS = 100_000  # gaps between tokens are counted to a tenth of a millisecond


@dataclass(frozen=True)
class ReconstructedRun:
    """Everything that the steps tell. Times in nanoseconds from `ReconstructedRun.epoch` (seconds since 1970, the log's clock).

    `records`: requests whose arrival is known, in order of admission, then those that were never admitted; `begin`, `end`: the
    interval of each step, that between two busy steps included; `running`, `waiting`: after each step; `delivered`: tokens
    that it gave; `predicted`: the seconds that it should have taken.
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
    delivered: Ints
    predicted: Floats
    recomputed: int


def reconstruct_run(
    track: Track,
    steps: Steps,
    arrivals: Arrivals,
    rules: Rules,
    prompts: Sequence[int],
    cached: int = 0,
    epoch: float | None = None,
) -> ReconstructedRun:
    """Write the records.

    `prompts`: each history's computed prompt tokens, `cached`: those that came from the cache besides; `epoch`: where the
    records' clock starts.
    """
    if epoch is None:
        epoch = float(np.floor(min(steps.start[0], np.nanmin(arrivals.time, initial=np.inf))))
    whole = [p + cached for p in prompts]
    load = load_of(track.histories, steps, rules, whole)
    idle = idle_before(track.histories, len(steps))
    end = np.round((steps.end - epoch) * 1e9).astype(np.int64)
    end = np.maximum.accumulate(end)
    begin = np.round((steps.start - epoch) * 1e9).astype(np.int64)
    begin[1:] = np.where(idle[1:], np.maximum(begin[1:], end[:-1]), end[:-1])
    begin = np.minimum(begin, end)
    between = float(np.mean((end - begin)[~idle] / 1e9 - steps.elapsed[~idle])) if (~idle).any() else 0.0
    calibration = calibrate(
        steps.elapsed, load.prefill.astype(float), load.decodes.astype(float), load.kv_tokens, max(between, 0.0)
    )
    writer = _Writer(track, steps, arrivals, rules, prompts, cached, load, calibration, begin, end, epoch)
    records = writer.records()
    running, waiting, finished = queues_of(track, arrivals, len(steps))
    log = _step_log(writer, running, waiting, finished, rules)
    return ReconstructedRun(
        epoch=epoch,
        records=records,
        gaps=writer.gaps(),
        log=log,
        calibration=calibration,
        begin=begin,
        end=end,
        running=running,
        waiting=waiting,
        finished=finished,
        delivered=load.delivered,
        predicted=load.seconds(calibration.model),
        recomputed=sum(r.recomputed for r in records),
    )


class _Writer:
    def __init__(
        self,
        track: Track,
        steps: Steps,
        arrivals: Arrivals,
        rules: Rules,
        prompts: Sequence[int],
        cached: int,
        load: Load,
        calibration: Calibration,
        begin: Ints,
        end: Ints,
        epoch: float,
    ) -> None:
        self.track, self.steps, self.arrivals, self.rules = track, steps, arrivals, rules
        self.prompts, self.cached, self.load = prompts, cached, load
        self.begin, self.end, self.epoch = begin, end, epoch
        predicted = load.seconds(calibration.model)
        usual = np.round(predicted * 1e9).astype(np.int64)
        self.stall = np.where(stalled_steps(begin, end, predicted), end - begin - usual, 0)
        length = end - begin - self.stall
        per_token = calibration.model.per_prefill + calibration.model.per_prefill_squared * load.prefill
        self.per_token = per_token * length / np.maximum(predicted, 1e-9)
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
        length = np.diff(self.end, prepend=self.begin[:1]) - self.stall
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
        first = self.arrivals.before
        left_out = (i for i in range(first, len(self.arrivals)) if i not in admitted)
        return made + [self._never_admitted(i) for i in left_out]

    def _request(self, i: int, prompt: int, output: int, arrival: int) -> Request:
        prompt = max(prompt, 1) + self.cached
        return Request(self.arrivals.ids[i], prompt, max(output, 1), arrival_s=arrival / 1e9)

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
        """Label the time before the first step: the rest of the step under way, then what kept the head of the queue.

        By how much a step stalled (a cold start) is nobody's queue: it counts as the way to the request's own prefill.
        """
        under_way = int(np.searchsorted(self.end, arrival))
        here, stall = until, 0
        if under_way < len(self.end):
            here, stall = int(self.end[under_way]), int(self.stall[under_way])
            if arrival <= self.begin[under_way]:
                here, stall = int(self.begin[under_way]), 0
                under_way -= 1
        for label, sums in self.blocked.items():
            if first > under_way + 1:
                record.ledger[label] += int(sums[first] - sums[under_way + 1])
        rest = max(0, min(here, until) - arrival)
        stall = min(stall, rest)
        if first > under_way + 1:
            stall += int(self.stall[under_way + 1 : first].sum())
        record.ledger[BUDGET] += max(0, rest - min(stall, rest))
        record.ledger[PREFILL] += stall
        off = until - arrival - sum(record.ledger)
        if off < 0:  # an idle stretch inside, or an uncertain arrival
            for label in (BUDGET, KV, SEAT, PREFILL):
                taken = min(record.ledger[label], -off)
                record.ledger[label] -= taken
                off += taken
        record.ledger[BUDGET] += off

    def _record(self, history: History, prompt: int) -> RequestRecord:
        first = history.spans[0].first
        arrival = min(round((self.arrivals.time[history.request] - self.epoch) * 1e9), int(self.begin[first]))
        outputs = max(history.outputs, 1)
        if history.finished is None:
            outputs = max(outputs, int(self.arrivals.limit[history.request]))
        record = RequestRecord(self._request(history.request, prompt, outputs, arrival), arrival)
        record.started = True
        record.cached = self.cached
        record.preemptions = len(history.evicted)
        record.output = history.outputs
        self._queue(record, arrival, first, int(self.begin[first]))
        self._spans(record, history, prompt)
        if history.first_token is not None:
            record.first_token = int(self.end[history.first_token])
        if history.finished is not None:
            record.status = "aborted" if history.aborted else "finished"
            record.end = int(self.end[history.finished])
            _balance(record)
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


def _balance(record: RequestRecord) -> None:
    """Lines out of order may leave a gap or an overlap between spans: the largest part of the ledger takes it."""
    if record.end is not None:
        off = record.end - record.arrival - sum(record.ledger)
        largest = record.ledger.index(max(record.ledger))
        record.ledger[largest] += off


def stalled_steps(begin: Ints, end: Ints, predicted: Floats) -> npt.NDArray[np.bool_]:
    """Single steps that took far longer than what they carried explains, and at least a second more."""
    off = (end - begin) / 1e9 - predicted
    return np.asarray(off > np.maximum(1.0, 4.0 * predicted))


def _step_log(writer: _Writer, running: Ints, waiting: Ints, finished: Ints, rules: Rules) -> StepLog:
    steps, load = writer.steps, writer.load
    evicted = np.zeros(len(steps), dtype=np.int64)
    for k, _ in writer.track.evictions:
        evicted[k] += 1
    used = np.nan_to_num(steps.used, nan=0.0)
    free = np.maximum(rules.usable - np.round(used), 0).astype(np.int64)
    many = -(-len(steps) // _MOST_ROWS)  # of a very long log so many steps make a row
    first = np.arange(0, len(steps), many)
    last = np.minimum(first + many, len(steps)) - 1
    columns = [
        writer.begin[first],
        writer.end[last],
        *(np.add.reduceat(c, first) for c in (load.prefill, load.decodes)),
        np.round(np.add.reduceat(load.kv_tokens, first)).astype(np.int64),
        free[last],
        free[last],
        (running + finished)[last],
        waiting[last],
        *(np.add.reduceat(c, first) for c in (evicted, load.delivered, finished)),
    ]
    log = StepLog()
    log.rows = list(zip(*(c.tolist() for c in columns), strict=True))
    return log
