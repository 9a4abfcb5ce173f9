"""What an answer says beside its figures: which engine they are for, why some are missing, and which part of a line is the evidence.

All read the document of `analyze --json`, so that the terminal and the report say the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from logscope.wording import BINDING, COSTS, VERDICTS, duration, moment, number, per_second, percent, plural, setting
from parsers.reading.by_line import MAX_TEXT

__all__ = [
    "all_engines",
    "binding_shares",
    "capacity_sentences",
    "capacity_tables",
    "certainty",
    "engine_name",
    "evidence_excerpt",
    "evidence_text",
    "gaps",
    "headline",
    "is_overloaded",
    "is_poor_fit",
    "is_withheld",
    "lines_read",
    "mid_sentence",
    "no_advice",
    "of_engine",
    "own_findings",
    "ranked_by",
    "reason",
    "scope",
    "undecided",
    "worst_engine",
]

_CAUSES = {
    "kv-capacity": "KV-cache space",
    "seat-limit": "max_num_seqs",
    "prefill-interference": "other requests' prefill",
    "healthy": "their own length",
}
_UNANSWERED = ("startup-failed", "startup-kv-too-small", "runtime-oom", "engine-crash", "engine-stall")

# What a line is shown for, where it is too long to be shown whole: the queues and the cache of a statistics line, else the word that matters.
_TELLING = (
    re.compile(r"\btotal_num_cumulative_preemption=\d+"),
    re.compile(r"\bRunning: \d.{0,120}?KV cache usage: [\d.]+ ?%"),
    re.compile(r"\bRunning: \d.{0,60}?Waiting: \d+"),
    re.compile(r"(?:KV cache|memory) usage:? [\d.]+ ?%?", re.I),
    re.compile(r"\([\d.]+ GiB.{0,40}which is larger than.{0,60}?GiB\)?|larger than the maximum[^.]{0,80}", re.I),
    re.compile(r"preempt\w*|out of memory|maximum model length[^.]{0,40}|\bdied\b", re.I),
    re.compile(r"\b\w+Error\b.{0,60}"),
)
# What a finding is about, where that is another part of a statistics line than the queues.
_TELLING_OF = {
    "cache-reuse": re.compile(r"\b(?:External )?[Pp]refix cache hit rate: [\d.]+ ?%"),
    "prefill-interference": re.compile(r"\bprompt throughput: [\d.]+ tokens/s.{0,80}?Running: \d+"),
    "prefill-bound": re.compile(r"\bprompt throughput: [\d.]+ tokens/s.{0,80}?Waiting: \d+"),
    "slow-steps": re.compile(r"\bgeneration throughput: [\d.]+ tokens/s.{0,20}?Running: \d+"),
    "endless-request": re.compile(r"\bgeneration throughput: [\d.]+ tokens/s.{0,20}?Running: \d+"),
    "speculation": re.compile(r"\bAccepted: \d+ tokens, Drafted: \d+ tokens"),
    "kv-transfer": re.compile(r"\bNum (?:successful|failed) transfers=\d+.{0,60}"),
}
_REASON_ENDS = re.compile(r"[:;(]")


def worst_engine(document: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of `engines` that the top level speaks of; empty when there is none."""
    engines = document.get("engines") or []
    worst = document.get("worst_engine") or 0
    return engines[worst] if 0 <= worst < len(engines) else {}


def of_engine(finding: Mapping[str, Any], engine: Mapping[str, Any]) -> bool:
    """Whether a finding is of this engine."""
    return all(finding.get(name) == engine.get(name) for name in ("server", "run", "engine_index"))


def engine_name(entry: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """An engine by what tells it from the others of the answer: "engine 1", "server 2, start 1"; empty where it is the only one.

    Servers and starts are counted from 1; an engine has vLLM's own number ("Engine 000" is engine 0).
    """
    engines = document.get("engines") or []
    named = (("server", "server", 1), ("run", "start", 1), ("engine_index", "engine", 0))
    differs = [(key, word, first) for key, word, first in named if len({e.get(key) or 0 for e in engines}) > 1]
    return ", ".join(f"{word} {(entry.get(key) or 0) + first}" for key, word, first in differs)


def scope(document: Mapping[str, Any]) -> str:
    """Which engine the answer is for where there are several, and which figures are totals."""
    engines = document.get("engines") or []
    if len(engines) < 2:
        return ""
    name = engine_name(worst_engine(document), document)
    which, all_of = ("worse", "both") if len(engines) == 2 else ("worst", f"all {len(engines)}")
    return f"Showing {name}, the {which} of {len(engines)}; figures marked as totals are for {all_of}.{_up_again(document)}"


def _up_again(document: Mapping[str, Any]) -> str:
    """That a server of which a failed start is shown did start later."""
    worst = worst_engine(document)
    if not str(worst.get("verdict")).startswith("startup"):
        return ""
    later = [
        e
        for e in document.get("engines") or []
        if e.get("server") == worst.get("server")
        and (e.get("run") or 0) > (worst.get("run") or 0)
        and not str(e.get("verdict")).startswith("startup")
    ]
    if not later:
        return ""
    verdict = VERDICTS.get(str(later[-1].get("verdict")))
    since = moment(later[-1].get("start"))
    when = f" at {since:%H:%M:%S}" if since else ""
    return f" The server did start later: {engine_name(later[-1], document)}{when}{f' ({mid_sentence(verdict.title)})' if verdict else ''}."


def is_poor_fit(finding: Mapping[str, Any]) -> bool:
    """Whether this finding warns that the replay fits the log poorly."""
    return finding.get("id") == "coverage" and "mean_fit" in (finding.get("facts") or {})


def own_findings(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was found out about the worst engine, without what the log could not show."""
    worst = worst_engine(document)
    return [f for f in document.get("findings") or [] if f.get("id") != "coverage" and of_engine(f, worst)]


def gaps(document: Mapping[str, Any], *, everything: bool = False) -> list[str]:
    """What the log could not show of the worst engine (or of all), each once, without what a cross-check has shown since or the headline says."""
    worst, found = worst_engine(document), []
    said = reason(document) if document.get("verdict") == "not-enough-evidence" else ""
    counted = bool((document.get("witness") or {}).get("metrics"))
    for finding in document.get("findings") or []:
        title = str(finding.get("title"))
        if finding.get("id") != "coverage" or is_poor_fit(finding) or title in found:
            continue
        if said and title.lower().endswith(said.rstrip(".").lower()):
            continue
        if (everything or of_engine(finding, worst)) and not (counted and "--metrics" in title):
            found.append(title)
    return found


_LEADS = {
    "engine-stall": "its processes waited for each other",
    "slow-steps": "the steps crawl",
    "kv-filling": "the KV cache is about to be full",
    "deferred": "the waiting requests are deferred",
    "endless-request": "one request runs on and on",
    "compile-stall": "kernels were compiled while requests ran",
    "failed-requests": "requests failed",
    "kv-leak": "KV-cache blocks are not given back",
    "kv-transfer": "KV transfers are slow or fail",
    "engine-imbalance": "requests queue at one engine while another has room",
}


def undecided(document: Mapping[str, Any]) -> str:
    """What stands for a verdict where there is none: what the log shows all the same, else why it shows no cause."""
    shown = [_LEADS[f["id"]] for f in own_findings(document) if f.get("id") in _LEADS and f.get("severity") != "info"]
    if shown:
        return f"The log proves no cause of slow requests, but {' and '.join(dict.fromkeys(shown))}."
    return reason(document)


def headline(document: Mapping[str, Any]) -> str:
    """The verdict in one sentence; where there is none, the reason in a few words."""
    verdict = str(document.get("verdict"))
    if verdict != "not-enough-evidence":
        said = VERDICTS[verdict].title if verdict in VERDICTS else verdict
        return f"Overloaded. {said}" if is_overloaded(document) else said
    short = _REASON_ENDS.split(undecided(document))[0].strip().rstrip(".")
    return f"{VERDICTS[verdict].title}: {mid_sentence(short)}"


def is_overloaded(document: Mapping[str, Any]) -> bool:
    """Whether requests come faster than the worst engine can serve them under any setting."""
    return any(f.get("id") == "overload" for f in own_findings(document))


def certainty(document: Mapping[str, Any]) -> str:
    """How sure the verdict is, where another cause is close: "mainly KV-cache space (64 % of the plausible workloads), also …"; else empty."""
    second, sure = document.get("second"), document.get("verdict_confidence")
    if not second or sure is None:
        return ""
    share = percent(second.get("confidence"))
    return f"mainly {_CAUSES.get(str(document.get('verdict')), 'that')} ({percent(sure)} of the plausible workloads), also {_CAUSES.get(str(second.get('verdict')), 'another cause')} ({share})"


def reason(document: Mapping[str, Any]) -> str:
    """Why there is no verdict, or no latencies: one sentence that names the cause where it is known."""
    replay = document.get("replay") or {}
    worst = worst_engine(document)
    coverage = [f for f in document.get("findings") or [] if f.get("id") == "coverage" and of_engine(f, worst)]
    if replay.get("declined"):
        return f"This server uses {' and '.join(replay['declined'])}, which the replay does not model."
    for finding in coverage:
        if (finding.get("facts") or {}).get("not_replayed"):
            why = str(finding["title"]).removeprefix("Nothing was replayed: ")
            return f"{why[:1].upper()}{why[1:]}."
    for finding in coverage:
        if finding.get("severity") == "warning" or is_poor_fit(finding):
            return f"{finding['title']}."
    if (document.get("options") or {}).get("replay") is False:
        return "The replay was skipped (--no-replay); run without it for latencies, preemption counts and advice."
    for finding in coverage:
        if "statistics" in str(finding.get("title")):
            return f"{finding['title']}."
    if not worst:
        return "No server in this log got as far as to serve requests."
    if not replay:
        return (
            "The log does not hold what a replay needs: periodic statistics, request or access lines, and the size of "
            "the KV cache."
        )
    return VERDICTS["not-enough-evidence"].says


def no_advice(document: Mapping[str, Any]) -> str:
    """What stands in the place of advice where there is none."""
    verdict = document.get("verdict")
    if verdict in _UNANSWERED:
        return "No setting is recommended: see the findings and their evidence."
    if verdict == "healthy" and all(f.get("severity") == "info" for f in own_findings(document)):
        return "No change recommended."
    replay = document.get("replay") or {}
    if replay.get("requests") and not any(map(is_poor_fit, document.get("findings") or [])):
        return "None of the replayed changes helps enough to recommend."
    return f"No recommendation: {mid_sentence(reason(document))}"


_RANKED = {"e2e_s.p99": "E2E p99", "ttft_s.p99": "TTFT p99", "ttft_s.p50": "TTFT p50"}


def ranked_by(document: Mapping[str, Any]) -> str:
    """The figure by which the replayed advice stands in its order; empty where none was replayed."""
    return next((_RANKED[a["ranked_by"]] for a in document.get("advice") or [] if a.get("ranked_by") in _RANKED), "")


def is_withheld(latency: Mapping[str, Any], name: str, point: str) -> bool:
    """Whether a percentile of the answer's `latency` (`ttft_s`, `p99`, say) is not told because its bounds are too far apart."""
    return bool(latency.get("withheld")) and (latency.get(name) or {}).get(point) is None


def all_engines(document: Mapping[str, Any]) -> str:
    """Whose the totals are: "both engines", "all 4 engines"; empty where there is one."""
    many = len(document.get("engines") or [])
    return "" if many < 2 else "both engines" if many == 2 else f"all {many} engines"


def mid_sentence(sentence: str) -> str:
    """A sentence in the middle of another; a name at its head stays as it is."""
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def evidence_text(line: Mapping[str, Any]) -> str:
    """The text of a line of evidence; one that was cut while it was read ends with a whole word and a mark."""
    text = str(line.get("text"))
    return text if len(text) < MAX_TEXT else f"{text.rpartition(' ')[0]} …"


def evidence_excerpt(text: str, width: int, finding: str = "") -> str:
    """About `width` characters of a line of the log, cut between words: both ends are cut before the number that is the evidence of `finding` (its id) is."""
    if len(text) <= width:
        return text
    own = _TELLING_OF.get(finding)
    found = next((m for pattern in ((own,) if own else ()) + _TELLING if (m := pattern.search(text))), None)
    start, end = found.span() if found else (0, 0)
    if end < width:
        return _whole_words(text, 0, width - 1, end)
    # What stands before it as far as there is room for, from a word on.
    room = max(width - 2, end - start)
    first = max(0, min(end - room + (room - (end - start)) // 2, len(text) - room))
    stop, blank = text.find(", ", first, start), text.find(" ", first, start)
    first = stop + 2 if stop >= 0 else blank + 1 if blank >= 0 else start
    return f"…{_whole_words(text, first, first + room, end)}"


def _whole_words(text: str, first: int, last: int, least: int) -> str:
    """The text from `first` to about `last`, which ends with a part of a list, else with a word, and not before `least`."""
    if last >= len(text):
        return text[first:]
    last = max(last, least)
    for stop in (", ", " "):
        if (place := text.rfind(stop, least, last + 1)) >= 0:
            return f"{text[first:place]}…"
    return f"{text[first:last]}…"


def lines_read(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What became of the lines: (number, what), the whole first; every line is in one of the parts."""
    parts = [
        ("events", "vLLM events parsed"),
        ("other_records", "other vLLM records"),
        ("foreign_lines", "non-vLLM lines"),
    ]
    found = [plural(given.get("lines") or 0, "line") + " read"]
    whole = given.get("lines") or 0
    rest = whole - sum(given.get(key) or 0 for key, _ in parts)
    said = [(f"{given.get(key) or 0:,}", word) for key, word in parts if given.get(key) or key == "events"]
    if rest > 0:
        said.append((f"{rest:,}", "continuation lines"))
    return [(found[0], ""), *said]


def binding_shares(engine: Mapping[str, Any]) -> str:
    """For how much of an engine's statistics what held requests back: "KV-cache space 31 %, no queue 69 % of the time"."""
    spent: dict[str, float] = {}
    for part in engine.get("binding") or []:
        start, end = moment(part["start"]), moment(part["end"])
        if start and end:
            word = BINDING.get(part["limit"] or "", "cause not visible")
            spent[word] = spent.get(word, 0.0) + (end - start).total_seconds()
    total = sum(spent.values())
    if total <= 0:
        return ""
    free = BINDING["arrivals"]
    known = sorted(((w, s) for w, s in spent.items() if s > 0), key=lambda ws: (ws[0] == free, -ws[1]))
    return ", ".join(f"{word} {percent(s / total)}" for word, s in known) + " of the time"


def capacity_sentences(document: Mapping[str, Any]) -> list[str]:
    """What `capacity` found, in words: the answer first."""
    wanted = " and ".join(f"{_metric(name)} within {duration(limit)}" for name, limit in document["slo"].items())
    now, *others = document["highest"]
    rates = now["rate_per_s"]
    if rates["value"] is None:
        lead = f"No rate that was tried keeps {wanted} [replayed]"
    else:
        lead = f"This server keeps {wanted} up to {_with_span(rates)} [replayed]"
    own = f"This log's load, {per_second(document['now']['rate_per_s'])}, is {'within' if document['now']['meets'] else 'above'} that."
    said = [lead, f"{own} The limit beyond it is {BINDING[now['binding']]}."]
    room = document["at_once"]
    if room["kv"] is not None:
        said.append(
            f"The KV cache holds {plural(room['kv'], 'request')} of this log's mean length ({number(room['tokens_per_request'])} tokens) at once;"
            f" max_num_seqs lets {number(room['seats'])} run."
        )
    if idle := [_of_row(r) for r in others if not _gains(r, now)]:
        said.append(f"No gain from {', '.join(idle)}.")
    return said


def _metric(name: str) -> str:
    what, _, point = name.rpartition("_")
    return f"{what.upper()} {point}"


GAIN = 1.03


def _gains(row: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a change is worth a row: more than what the search leaves open."""
    return (row["rate_per_s"]["value"] or 0.0) > GAIN * (now["rate_per_s"]["value"] or 0.0) or row["cost"] == "gpu"


def _of_row(row: Mapping[str, Any]) -> str:
    """A change by its flag, or by its settings."""
    named = row["flag"] or ", ".join(f"{k} = {setting(v)}" for k, v in row["change"].items())
    return (named or "as it is now") + (f" ({COSTS['gpu']})" if row["cost"] == "gpu" else "")


def capacity_tables(document: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Header and rows of the highest rates by change (those that gain), and of the load at rates around them."""
    metrics = [m for m in ("ttft", "e2e", "itl") if m != "itl" or any(n.startswith(m) for n in document["slo"])]
    shown = [
        (f"{m}_s", p)
        for m in metrics
        for p in sorted({"p99", *(n.rpartition("_")[2] for n in document["slo"] if n.startswith(m))})
    ]
    names = [f"{metric.removesuffix('_s').upper()} {point}" for metric, point in shown]
    priced = document["gpu_hour"] is not None
    now, *others = document["highest"]
    changes = [
        [
            _of_row(r),
            _with_span(r["rate_per_s"]),
            *(duration(r[metric][point], "–") for metric, point in shown),
            *([_money(r["cost_per_million_tokens"])] if priced else []),
            BINDING[r["binding"]],
        ]
        for r in (now, *(r for r in others if _gains(r, now)))
    ]
    rates = [
        [
            per_second(r["rate_per_s"]) + (" (this log)" if r["own"] else ""),
            "yes" if r["meets"] else "no",
            *(duration(r[metric][point], "–") for metric, point in shown),
            BINDING[r["binding"]],
        ]
        for r in document["rates"]
    ]
    cost = ["cost per 1M tokens"] if priced else []
    met = "target met" if len(document["slo"]) == 1 else "targets met"
    return [(["change", "highest rate", *names, *cost, "limit"], changes), (["rate", met, *names, "limit"], rates)]


def _money(price: float | None) -> str:
    return "–" if price is None else f"{price:.2f}"


def _with_span(rates: Mapping[str, float | None]) -> str:
    """A rate with its bounds."""
    if rates["value"] is None:
        return "none"
    if rates["high"] is None:
        return f"at least {per_second(rates['value'])}"
    return f"{per_second(rates['value'])} ({per_second(rates['low']).removesuffix('/s')} to {per_second(rates['high']).removesuffix('/s')})"
