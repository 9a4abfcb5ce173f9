"""Advice: each candidate replayed, both sides of the trade kept, ranked by what the verdict complains of.

Advice that needs no replay: what a failed start or a memory error asks for by its own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from logscope.diagnosis.candidates import Candidate, rules_of_thumb
from logscope.evidence.context import Context
from logscope.evidence.finding import Finding
from logscope.inference.result import Mapper, serially
from logscope.server.engines import EngineFacts
from logscope.server.scenario import Scenario, flag_text, scenario_of
from logscope.server.settings import SettingError
from logscope.wording import LOST_TO, percent

__all__ = ["NOT_REPLAYED", "Advice", "Predict", "advise", "overloaded", "plain_advice"]
Predict = Callable[["Scenario | None"], Mapping[str, Any]]
"""Replays a scenario (None: the present configuration) and gives whatif's keys of the contract."""

MEASURES = {
    "TTFT p50": "ttft_s.p50",
    "TTFT p99": "ttft_s.p99",
    "E2E p50": "e2e_s.p50",
    "E2E p99": "e2e_s.p99",
    "ITL p99": "itl_s.p99",
    "throughput": "generation_tokens_per_s",
}
FLOW, GAP = "generation_tokens_per_s", "itl_s.p99"
COMPLAINTS = {"seat-limit": "ttft_s.p50"}
"""The figure that a verdict complains of, by which its advice is ranked; of all others E2E p99."""

MIN_WORSE = 0.05
MIN_GAIN = 0.05
MIN_MORE_PREEMPTIONS = 3.0
MAX_LOSS = 0.10
MIN_SECONDS = 0.25
LEAST_GAP_S = 0.005  # between two tokens, less is not felt
OVERLOAD_STRETCH = 1.25


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that helps, with what the replay says of both sides; or a rule of thumb where nothing was replayed.

    `ranked_by` names the figure by which the replayed ones stand in their order (`e2e_s.p99`).
    """

    candidate: Candidate
    flag: str | None
    baseline: Mapping[str, Any]
    scenario: Mapping[str, Any]
    score: float
    notes: tuple[str, ...] = ()
    basis: str = "replayed"
    ranked_by: str | None = None

    def beside(
        self, latency: Mapping[str, Any], preemptions: float | None, recomputed: float | None, flow: float | None
    ) -> Advice:
        """The same change told from the answer's own figures: each of them changes in the proportion in which the replay's does.

        A screen has one TTFT p99 then, not also that of the few workloads which the changes are tried on. What is withheld stays the replay's.
        `flow`: generated tokens a second.
        """
        before, after = ({**side} for side in (self.baseline, self.scenario))
        for name in ("ttft_s", "e2e_s"):
            before[name], after[name] = dict(before[name]), dict(after[name])
            for point, figure in before[name].items():
                own = (latency.get(name) or {}).get(point)
                if figure and own is not None and after[name][point] is not None:
                    before[name][point], after[name][point] = own, after[name][point] * own / figure
            _in_order(after[name])
        for name, own in (("preemptions", preemptions), ("recomputed_tokens", recomputed)):
            if own is not None and before[name]:
                after[name], before[name] = round(after[name] * own / before[name]), round(own)
        if flow is not None and before["generation_tokens_per_s"]:
            after["generation_tokens_per_s"] *= flow / before["generation_tokens_per_s"]
            before["generation_tokens_per_s"] = flow
        return replace(self, baseline=before, scenario=after)

    def document(self) -> dict[str, Any]:
        """The contract's advice object."""
        replayed = self.basis == "replayed"
        trade = [self._worse(), self.candidate.risk] if replayed else [self.candidate.trade]
        return {
            "flag": self.flag,
            "set": dict(self.candidate.changes),
            "cost": self.candidate.cost,
            "why": self.candidate.why,
            "trade": " ".join([*filter(None, trade), *(f"Assumption: {n}." for n in self.notes)]),
            "basis": self.basis,
            "ranked_by": self.ranked_by,
            "baseline": dict(self.baseline),
            "scenario": dict(self.scenario) if replayed else None,
        }

    def _worse(self) -> str:
        """The measures that get worse in the replay, the largest change first."""
        changes = []
        for words, path in MEASURES.items():
            before, after = _figure(self.baseline, path), _figure(self.scenario, path)
            if before is None or after is None:
                continue
            least = LEAST_GAP_S if path == GAP else MIN_SECONDS
            more = (after - before) / max(before, least) if path != FLOW else (before - after) / max(before, 1.0)
            if more > MIN_WORSE and (path == FLOW or after - before >= least):
                changes.append(
                    (
                        more,
                        f"{words} {'falls' if path == FLOW else 'rises'} by {percent(abs(after - before) / before)}"
                        if before
                        else words,
                    )
                )
        a, b = (side.get("preemptions") for side in (self.baseline, self.scenario))
        if a is not None and b is not None and b - a >= max(MIN_MORE_PREEMPTIONS, MIN_WORSE * a):
            changes.append((0.0, f"preemptions rise from {a:,.0f} to {b:,.0f}"))
        said = [text for _, text in sorted(changes, reverse=True)]
        return f"{_headed(', '.join(said))}." if said else "No latency or throughput gets worse in the replay."


def _in_order(points: dict[str, float | None]) -> None:
    """No percentile below a lower one: each was changed in its own proportion."""
    least = 0.0
    for point, value in points.items():
        if value is not None:
            points[point] = least = max(least, value)


def _headed(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def advise(
    facts: EngineFacts,
    tried: Sequence[Candidate],
    predict: Predict,
    screen: Predict | None = None,
    mapper: Mapper = serially,
    verdict: str = "",
) -> tuple[list[Advice], Mapping[str, Any], list[Mapping[str, Any]]]:
    """Replay the candidates and keep those that help, the best value of each setting; also the figures that they were screened against, and those of every free change.

    `screen` (default: `predict`) is a cheaper replay that chooses the value of each setting; what it keeps is replayed with `predict`.
    `mapper` does the replays of several changes; whoever does them, the answer is the same.

    A change helps where the E2E or TTFT p99 falls by 5 % (and a quarter of a second) at no loss of more than a tenth in the other, nor in
    throughput. What the verdict itself asks for (`Candidate.always`) is kept whatever the tail does. Free changes come first, then by
    the gain in the figure that `verdict` complains of.
    """
    screen = screen or predict
    first, ranked_by = screen(None), COMPLAINTS.get(verdict, "e2e_s.p99")
    best: dict[tuple[str, ...], tuple[float, Candidate, Scenario]] = {}
    free: list[Mapping[str, Any]] = []
    possible = list(_possible(facts, tried))
    screened = mapper(screen, [scenario for _, scenario in possible])
    for (candidate, scenario), after in zip(possible, screened, strict=True):
        if candidate.cost == "free":
            free.append(after)
        gain = _gain(first, after, ranked_by, candidate.always)
        key = tuple(candidate.changes)
        if gain is not None and (key not in best or gain > best[key][0]):
            best[key] = (gain, candidate, scenario)
    baseline = predict(None)
    found = []
    kept = [(candidate, scenario) for _, candidate, scenario in best.values()]
    replayed = mapper(predict, [scenario for _, scenario in kept])
    for (candidate, scenario), after in zip(kept, replayed, strict=True):
        gain = _gain(baseline, after, ranked_by, candidate.always)
        if gain is not None:
            flag = flag_text(facts, candidate.changes)
            found.append(Advice(candidate, flag, baseline, after, gain, scenario.notes, ranked_by=ranked_by))
    return sorted(found, key=lambda a: (a.candidate.cost != "free", -a.score)), first, free


def _possible(facts: EngineFacts, tried: Sequence[Candidate]) -> Iterator[tuple[Candidate, Scenario]]:
    for candidate in tried:
        try:
            scenario = scenario_of(facts, candidate.changes)
        except SettingError:
            continue
        yield candidate, scenario


def _figure(side: Mapping[str, Any], path: str) -> float | None:
    name, _, point = path.partition(".")
    value = side[name][point] if point else side[name]
    return float(value) if value is not None else None


def _gain(before: Mapping[str, Any], after: Mapping[str, Any], ranked_by: str, always: bool) -> float | None:
    """Logarithmic gain in the figure that decides; None where the change does not help, or hurts elsewhere too much."""
    complaint = _figure(before, ranked_by), _figure(after, ranked_by)
    changes = {}
    for name in ("e2e_s", "ttft_s"):
        a, b = before[name]["p99"], after[name]["p99"]
        if a is None or b is None or a <= 0:
            return None
        changes[name] = (a, b)
    flow_a, flow_b = (before["generation_tokens_per_s"] or 0.0, after["generation_tokens_per_s"] or 0.0)
    if flow_b < (1 - MAX_LOSS / 2) * flow_a:
        return None
    helps = any(b < (1 - MIN_GAIN) * a and a - b >= MIN_SECONDS for a, b in changes.values())
    hurts = any(b > (1 + MAX_LOSS) * a and b - a >= MIN_SECONDS for a, b in changes.values())
    if (not helps or hurts) and not always:
        return None
    if complaint[0] is None or complaint[1] is None:
        return None
    return math.log((complaint[0] + MIN_SECONDS) / (complaint[1] + MIN_SECONDS))


def overloaded(baseline: Mapping[str, Any], free: Sequence[Mapping[str, Any]], arrivals_s: float) -> bool:
    """Whether work is offered faster than it is done under every free setting: even the best replay has a backlog long after the last arrival.

    What a request takes once it has its first token is its own work, no backlog.
    """
    if arrivals_s <= 0 or not free:
        return False
    sides = [side for side in (baseline, *free) if side["duration_s"] is not None]
    drained = [side["duration_s"] - _decoding_s(side) for side in sides]
    return bool(drained) and min(drained) > OVERLOAD_STRETCH * arrivals_s


def _decoding_s(side: Mapping[str, Any]) -> float:
    """A middling request's time after its first token."""
    whole, first = side["e2e_s"]["p50"], side["ttft_s"]["p50"]
    return max(0.0, float(whole - first)) if whole is not None and first is not None else 0.0


NOT_REPLAYED: dict[str, Any] = {
    "preemptions": None,
    "recomputed_tokens": None,
    "ttft_s": {"p50": None, "p90": None, "p99": None},
    "e2e_s": {"p50": None, "p90": None, "p99": None},
    "itl_s": {"p50": None, "p99": None},
    "generation_tokens_per_s": None,
    "duration_s": None,
}
"""The keys of a prediction where there is none."""

LESS_MEMORY = 0.05
KV_FINDINGS = frozenset(("kv-admission-wait", "kv-filling", "kv-preemption"))


def plain_advice(context: Context, findings: Sequence[Finding], verdict: str, *, replayed: bool) -> list[Advice]:
    """The changes that a finding names by itself, in the flags of the detected version; where nothing was `replayed`, also rules of thumb."""
    facts = context.log.facts
    tried: list[Candidate] = []
    by_id = {f.id: f for f in findings}
    complaint = verdict if verdict in LOST_TO else "kv-capacity" if by_id.keys() & KV_FINDINGS else None
    if complaint is not None and not replayed:
        tried += rules_of_thumb(context, complaint, out_of_memory="runtime-oom" in by_id)
    if "startup-kv-too-small" in by_id:
        tried += _start(facts, by_id["startup-kv-too-small"])
    if "runtime-oom" in by_id:
        tried += _memory(facts)
    if "startup-failed" in by_id:
        tried += _sampler(context)
    found = []
    for candidate in tried:
        flag = flag_text(facts, candidate.changes)
        if flag is not None or "replicas" in candidate.changes:
            found.append(Advice(candidate, flag, NOT_REPLAYED, NOT_REPLAYED, 0.0, basis="rule"))
    return found


def _start(facts: EngineFacts, finding: Finding) -> list[Candidate]:
    fits, wanted = finding.facts.get("largest_max_model_len"), finding.facts.get("max_model_len")
    if not fits or (wanted and fits >= wanted):
        return []
    return [
        Candidate(
            {"max_model_len": int(fits)},
            "free",
            f"The KV cache fits one request of {int(fits):,} tokens, so the server will start with this value.",
            f"Longer requests are rejected, and full-length requests run one at a time.{_instead(facts)}",
        )
    ]


def _instead(facts: EngineFacts) -> str:
    share = facts.config.get("gpu_memory_utilization")
    now = f" (now {share:g})" if share else ""
    return f" To keep the full length, give the KV cache more memory: raise --gpu-memory-utilization{now} or use a smaller model."


def _sampler(context: Context) -> list[Candidate]:
    """What vLLM itself asks for when the warm-up of its sampler finds no memory."""
    runtime = context.log.get("runtime")
    rows = None if runtime is None else runtime.filter(pl.col("variant") == "oom_sampler")
    if rows is None or rows.height == 0:
        return []
    found = [c for c in _memory(context.log.facts) if "gpu_memory_utilization" in c.changes]
    asked = rows["num_reqs"].drop_nulls()
    if asked.len() and asked[-1] >= 2:
        why = f"The sampler is warmed up with as many requests as the server admits ({asked[-1]:,}): fewer need less memory."
        found.insert(0, Candidate({"max_num_seqs": asked[-1] // 2}, "free", why, "Fewer requests run at once."))
    return found


def _memory(facts: EngineFacts) -> list[Candidate]:
    found = []
    share, budget = (facts.config.get("gpu_memory_utilization"), facts.config.get("max_num_batched_tokens"))
    if share and share - LESS_MEMORY > 0:
        found.append(
            Candidate(
                {"gpu_memory_utilization": round(share - LESS_MEMORY, 3)},
                "free",
                "Leaves more GPU memory for activations, which is what ran out.",
                "The KV cache becomes smaller.",
            )
        )
    if budget and budget // 2 >= max(256, facts.config.get("max_num_seqs") or 1):
        found.append(
            Candidate(
                {"max_num_batched_tokens": budget // 2},
                "free",
                "Smaller steps need less memory for activations.",
                "Prompts need more steps, so their first token comes later.",
            )
        )
    return found
