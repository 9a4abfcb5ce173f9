"""`analyze` as a library: frames in, one result for each engine, and the contract's document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from html import escape
from typing import Any

import polars as pl

from logscope.diagnosis.advice import NOT_REPLAYED, Advice, advise, plain_advice
from logscope.diagnosis.candidates import Offered, candidates, queue_caps
from logscope.diagnosis.findings import Context, context_of, find_all
from logscope.diagnosis.findings.pressure import engine_imbalance
from logscope.diagnosis.findings.replayed import replay_findings
from logscope.diagnosis.findings.visibility import not_replayed
from logscope.diagnosis.long_logs import replay_worst
from logscope.diagnosis.spikes import Spike, find_spikes
from logscope.diagnosis.verdict import PROVEN, RANK, certainty, seen_to_wait, settled, verdict_of
from logscope.errors import tried
from logscope.evidence.finding import Finding, by_severity
from logscope.evidence.preemptions import Preemptions, combine, logged_preemptions, stats_windows
from logscope.evidence.pressure import MIN_PLATEAU, pressure_of_windows, seats_seen
from logscope.inference.result import Effort, InferredReplay
from logscope.log.frames import LogFrames, believed_log
from logscope.sanitize import clean
from logscope.server.engines import EngineLog, engine_logs
from logscope.server.scenario import flag_text
from logscope.wording import VERDICTS, duration, estimate, percent, plural

__all__ = ["Analysis", "EngineResult", "Preemptions", "analyze", "engine_result", "with_imbalance", "worst_of"]

_ALONE = Effort()
MAX_ROWS = 50  # of a notebook's table: a crash loop has thousands of starts


@dataclass(frozen=True, slots=True, repr=False)
class EngineResult:
    """Everything that is said of one engine; `latency` is what a second witness measured, in place of the replay's.

    `declined` are the features for which a replay that was asked for was not made; `confidence` is the share of the plausible workloads
    that agree with the verdict (None: no replay decided it), `second` the next cause and its share, where it is close.
    """

    log: EngineLog
    context: Context
    findings: tuple[Finding, ...]
    verdict: str
    pressure: str
    preemptions: Preemptions
    answer: InferredReplay | None
    advice: tuple[Advice, ...] = ()
    prompt_tps: float | None = None
    generation_tps: float | None = None
    latency: Mapping[str, Any] | None = None
    declined: tuple[str, ...] = ()
    spikes: tuple[Spike, ...] = ()
    confidence: float | None = None
    second: tuple[str, float] | None = None

    @property
    def windows(self) -> pl.DataFrame | None:
        """The statistics windows (see `logscope.evidence.preemptions`)."""
        return self.context.windows

    @property
    def figures(self) -> dict[str, str]:
        """The few figures that an operator looks for first, in words; what is not known is left out."""
        latency = self.latency or (self.answer.latency if self.answer is not None else {})
        count = self.preemptions
        known = {
            "preemptions": "" if count.low is None else estimate(count.low, count.value, count.high),
            **{
                f"{word} p99": duration((latency.get(name) or {}).get("p99"), "")
                for name, word in (("ttft_s", "TTFT"), ("e2e_s", "E2E"))
            },
            "first advice": (self.advice[0].flag or str(self.advice[0].candidate.changes)) if self.advice else "",
        }
        return {name: said for name, said in known.items() if said}

    def __repr__(self) -> str:
        """One line, without the frames that it holds."""
        facts = self.log.facts
        figures = "".join(f", {name} {said}" for name, said in self.figures.items())
        return f"<engine {facts.engine_index} of server {facts.server + 1}, start {facts.run + 1}: {self.verdict}{figures}>"


@dataclass(frozen=True, slots=True, repr=False)
class Analysis:
    """The results of all engines, in the order server, run, engine; `worst` is the index of the one to look at.

    `witness`, `total_preemptions` and `latency` are what a second witness says of all engines together (`logscope.witness`).
    """

    data: LogFrames
    engines: tuple[EngineResult, ...]
    worst: int | None
    seed: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    witness: Mapping[str, Any] | None = None
    total_preemptions: Preemptions | None = None
    latency: Mapping[str, Any] | None = None

    @property
    def worst_result(self) -> EngineResult | None:
        """The worst engine's result."""
        return self.engines[self.worst] if self.worst is not None else None

    def __repr__(self) -> str:
        """One line for a console: the worst engine's verdict and figures, without the frames behind them."""
        worst, many = self.worst_result, plural(len(self.engines), "engine")
        if worst is None:
            return f"<Analysis of {many}: no server in this log>"
        figures = "".join(f", {name} {said}" for name, said in worst.figures.items())
        return f"<Analysis of {many}: {worst.verdict}{figures}>"

    def _repr_html_(self) -> str:
        """A table for a notebook: a row for each engine, the worst marked. What comes from the log is text there."""
        names = [
            n
            for n in ("preemptions", "TTFT p99", "E2E p99", "first advice")
            if any(n in r.figures for r in self.engines)
        ]
        head = "".join(f"<th>{name}</th>" for name in ("server", "start", "engine", "vLLM", "verdict", *names))
        rows = []
        for place, result in enumerate(self.engines[:MAX_ROWS]):
            facts, known = result.log.facts, VERDICTS.get(result.verdict)
            cells = [str(facts.server + 1), str(facts.run + 1), str(facts.engine_index), facts.version or ""]
            cells += [known.title if known else result.verdict, *(result.figures.get(n, "") for n in names)]
            mark = ' style="font-weight:bold"' if place == self.worst else ""
            rows.append(f"<tr{mark}>{''.join(f'<td>{escape(clean(cell, 200))}</td>' for cell in cells)}</tr>")
        if len(self.engines) > MAX_ROWS:
            rows.append(f"<tr><td>and {len(self.engines) - MAX_ROWS:,} more</td></tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def analyze(
    data: LogFrames,
    *,
    given: Mapping[str, Any] | None = None,
    replay: bool = True,
    with_advice: bool = True,
    effort: Effort = _ALONE,
) -> Analysis:
    """Analyse a log that was read.

    `given` are settings that the log does not tell (`--set`); with `replay` the workload is inferred and replayed, which is where latencies,
    the ledger and hidden preemptions come from; `effort` is the seed, who hears of the progress, and who does the replays.
    """
    data = believed_log(data)
    logs = engine_logs(data.frames, given)
    results = [
        engine_result(data, log, effort.part(index, len(logs)), replay=replay, with_advice=with_advice)
        for index, log in enumerate(logs)
    ]
    results = with_imbalance(results)
    return Analysis(data, tuple(results), worst_of(results), effort.seed, dict(given or {}))


def with_imbalance(results: Sequence[EngineResult]) -> list[EngineResult]:
    """The results, with what only the engines of one start together show: it stands at the first of them."""
    starts: dict[tuple[int, int], list[int]] = {}
    for index, result in enumerate(results):
        starts.setdefault((result.log.facts.server, result.log.facts.run), []).append(index)
    found = list(results)
    for members in starts.values():
        finding = engine_imbalance([(results[i].log.facts, results[i].windows) for i in members])
        if finding is not None:
            # At the busiest, if the first of them has nothing to complain of.
            crowds = finding.facts["mean_requests"]
            busiest = max(members, key=lambda i: crowds.get(str(found[i].log.facts.engine_index), 0.0))
            place = busiest if found[members[0]].verdict == "healthy" else members[0]
            first = found[place]
            said = settled(first.verdict, [*first.findings, finding])
            found[place] = replace(first, findings=tuple(by_severity(said)))
    return found


def engine_result(
    data: LogFrames, log: EngineLog, effort: Effort, *, replay: bool = True, with_advice: bool = True
) -> EngineResult:
    """What is said of one engine; see `analyze`."""
    log = with_seats_seen(log)
    facts = log.facts
    warnings = log.get("preemption")
    warned = None if warnings is None else warnings.filter(pl.col("variant") == "v0_preempt_warning")
    logged = logged_preemptions(warned, log.get("stats"), from_start=facts.started_in_log)
    context = context_of(log, logged, data.texts, data.exceptions.get((facts.server, facts.run), []))
    findings = find_all(context)
    answer: InferredReplay | None = None
    portion: list[Finding] = []
    failure = None
    declined = facts.declined if replay and context.served else ()
    if replay and context.served and not declined:
        answer, portion, failure = replay_worst(log, data.stored, context.intervals, effort)
    spikes: tuple[Spike, ...] = ()
    evicted = context.evicted
    if answer is not None:
        spikes = find_spikes(answer.requests_frame, answer.origin, context.windows, context.texts, evicted)
    if failure is not None:
        title = f"The replay failed ({failure}); the answer is from the log alone"
        findings.append(Finding("coverage", "warning", "measured", title))
    if answer is not None and not answer.fair:
        findings.append(_poor_fit(answer))
    preemptions = combine(logged, None)
    if answer is not None:
        count = answer.preemptions
        preemptions = combine(logged, count.bounds, count.timeline, round(count.recomputed_tokens))
    slow = answer.ledger.get("slow_s") if answer is not None and answer.fair else None
    each = answer.slow_each if answer is not None else ()
    if slow is not None and answer is not None and answer.level == "bare":
        slow = seen_to_wait(slow, context.windows)
        each = tuple(seen_to_wait(one, context.windows) for one in each)
    verdict = verdict_of(findings, slow, context.windows, facts.seats, evicted)
    pressure = answer.pressure if answer is not None and answer.fair else pressure_of_windows(findings, context.windows)
    fair = answer is not None and answer.fair
    advice = plain_advice(context, findings, verdict, replayed=fair)
    prompt, generation = _throughput(context.windows)
    if answer is not None and fair and with_advice:
        work = partial(_advise, context, answer, spikes, verdict, findings, preemptions, effort)
        replayed, fault = tried(work)
        if replayed is not None:
            advice += replayed[0]
            findings = _merged(findings, replayed[1])
        findings = [*findings, *portion]
        if fault is not None:
            title = f"The replay of changes failed ({fault}): there is no advice from it"
            findings.append(Finding("coverage", "warning", "measured", title))
    elif answer is None and failure is None and not declined:
        findings += not_replayed(context, asked=replay)
    findings = settled(verdict, findings)
    sure = None
    if answer is not None and fair and verdict not in PROVEN:
        sure = certainty(verdict, each, evicted)
    return EngineResult(
        log,
        context,
        tuple(by_severity(findings)),
        verdict,
        pressure,
        preemptions,
        answer,
        tuple(advice),
        prompt,
        generation,
        declined=declined,
        spikes=spikes,
        confidence=sure[0] if sure else None,
        second=sure[1] if sure else None,
    )


def with_seats_seen(log: EngineLog) -> EngineLog:
    """The log with max_num_seqs as its queue gives it away, where no line and no user tells it."""
    facts = log.facts
    if facts.basis.get("max_num_seqs") in ("measured", "given"):
        return log
    stats = log.get("stats")
    if stats is None or stats.height < MIN_PLATEAU:  # a crash loop has thousands of starts with a line or two each
        return log
    seats = seats_seen(stats_windows(stats))
    if seats is None or seats == facts.config.get("max_num_seqs"):
        return log
    config, basis = {**facts.config, "max_num_seqs": seats}, {**facts.basis, "max_num_seqs": "inferred"}
    return replace(log, facts=replace(facts, config=config, basis=basis))


def _poor_fit(answer: InferredReplay) -> Finding:
    title = f"The replay fits this log poorly ({percent(answer.mean_fit)} on average): do not rely on the inferred and replayed figures; the verdict does not use them"
    return Finding("coverage", "info", "inferred", title, facts={"mean_fit": round(answer.mean_fit, 3)})


def _advise(
    context: Context,
    answer: InferredReplay,
    spikes: Sequence[Spike],
    verdict: str,
    findings: Sequence[Finding],
    preemptions: Preemptions,
    effort: Effort,
) -> tuple[list[Advice], list[Finding]]:
    """Replay the candidates that the verdict suggests; a healthy server needs none."""
    if verdict == "healthy":
        return [], replay_findings(context, answer, spikes, None, [])
    out_of_memory = any(f.id == "runtime-oom" for f in findings)
    tried = candidates(context, verdict, out_of_memory=out_of_memory)
    advice, now, free = advise(
        context.log.facts, tried, answer.samples.predict, answer.screening.predict, effort.map, verdict
    )
    told = answer.latency, preemptions.value, preemptions.recomputed_tokens, _throughput(context.windows)[1]
    advice = [a.beside(*told) for a in advice]
    found = replay_findings(context, answer, spikes, now, free)
    if any(f.id == "overload" for f in found):
        dear = [a for a in advice if a.candidate.cost != "free"]
        advice = [*(a for a in advice if a.candidate.cost == "free"), *_caps(context, answer), *dear]
    return advice, found


def _caps(context: Context, answer: InferredReplay) -> list[Advice]:
    """Bounds for the queue of a server to which more comes than it can serve."""
    facts, windows, requests = context.log.facts, context.windows, answer.requests_frame.sort("arrival_s")
    ends = requests["end_s"].max()
    first, prompts = requests["arrival_s"].min(), requests["prompt_tokens"]
    if windows is None or not isinstance(ends, float) or not isinstance(first, float) or ends <= first:
        return []
    queued = windows.filter(pl.col("waiting") > 0)
    running = queued["running"].mean()
    offered = Offered(
        [at - first for at in requests["arrival_s"].to_list()],
        prompts.to_list(),
        float(running) if isinstance(running, float) else 0.0,
        requests.height / (ends - first),
        float(prompts.sum()) / (ends - first),
        context.log.engines_in_run,
    )
    caps = queue_caps(facts, offered)
    return [Advice(c, flag_text(facts, c.changes), NOT_REPLAYED, NOT_REPLAYED, 0.0, basis="rule") for c in caps]


def _merged(findings: Sequence[Finding], replayed: Sequence[Finding]) -> list[Finding]:
    """Put the replay's findings in place of what the queues alone suggested; what the log proves stays."""
    ids = {f.id for f in replayed}
    kept = [f for f in findings if f.id not in ids or f.proves or f.id == "kv-preemption"]
    said = {f.id for f in kept}
    return kept + [f for f in replayed if f.id not in said]


def _throughput(windows: pl.DataFrame | None) -> tuple[float | None, float | None]:
    """Mean tokens per second over the span of the statistics (the idle gaps in it count)."""
    if windows is None:
        return None, None
    end, start = windows["end"].max(), windows["start"].min()
    if not isinstance(end, datetime) or not isinstance(start, datetime) or end <= start:
        return None, None
    span = (end - start).total_seconds()
    lengths = windows["interval_s"]
    if lengths.min() < 0 or lengths.max() > 60:  # type: ignore[operator]
        lengths = lengths.clip(0, 60)
    prompts, generated = windows["prompt_tps"], windows["generation_tps"]
    return _mean_rate(prompts, lengths, span), _mean_rate(generated, lengths, span)


def _mean_rate(rates: pl.Series, lengths: pl.Series, span: float) -> float | None:
    return None if rates.null_count() == rates.len() else float((rates * lengths).sum()) / span


def worst_of(results: Sequence[EngineResult]) -> int | None:
    """The index of the engine to look at first, None without engines."""
    if not results:
        return None
    latest = max((r.log.facts.server, r.log.facts.run) for r in results)

    def key(index: int) -> tuple[int, float, float]:
        result = results[index]
        rank = RANK.index(result.verdict) if result.verdict in RANK else len(RANK)
        if result.verdict.startswith("startup") and (result.log.facts.server, result.log.facts.run) == latest:
            rank = -1  # the server is down now
        tail = result.answer.p99_e2e if result.answer is not None and result.answer.p99_e2e is not None else 0.0
        return rank, -tail, -(result.preemptions.value or 0.0)

    return min(range(len(results)), key=key)
