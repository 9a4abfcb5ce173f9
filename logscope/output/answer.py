"""An answer as it is shown, kept and sent on: from an analysis, or from the file that `--save` left, without a replay.

As a summary in Markdown for tickets and chats, and as a bundle for bug reports that holds statistics and facts, no names and no text.
"""

from __future__ import annotations

import io
import json
import platform
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from logscope import __version__
from logscope.analysis import Analysis, EngineResult
from logscope.atomic_files import whole_file
from logscope.diagnosis.spikes import report_frames
from logscope.errors import LogscopeError
from logscope.evidence.pressure import limits_over_time
from logscope.execution.fleet import server_rows, servers_of
from logscope.output.events import to_json
from logscope.output.json import analysis_document
from logscope.output.report.captions import (
    all_engines,
    certainty,
    engine_name,
    gaps,
    is_overloaded,
    mid_sentence,
    no_advice,
    own_findings,
    scope,
    undecided,
    worst_engine,
)
from logscope.output.report.page import FRAMES, FleetRow, render_html, report_name, write_fleet_index, write_html
from logscope.sanitize import clean, json_document
from logscope.wording import COSTS, VERDICTS, duration, estimate, number, period, rate, setting, shares

__all__ = [
    "Answer",
    "AnswerError",
    "Part",
    "answer_of",
    "bundle",
    "frames_of_report",
    "markdown",
    "read_answer",
    "write_reports",
]

FORMAT, VERSION = "logscope-answer", 1
MAX_BYTES = 1 << 30
"""Of a member of a saved answer, unpacked; what claims more was not written by `--save`."""

SERIES = {"Running": "running", "Waiting": "waiting", "KV usage": "kv_pct"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same answer gives the same file


class AnswerError(LogscopeError):
    """A file that holds no saved answer."""

    status = 3


@dataclass(frozen=True, slots=True)
class Part:
    """What is shown of one server: its document, the worst engine's observed series, and the report's frames (made when asked for)."""

    document: Mapping[str, Any]
    series: Mapping[str, Sequence[float | None]]
    frames: Callable[[], Mapping[str, pl.DataFrame]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The document of `analyze --json`, and a part for each of its servers, the worst first."""

    document: dict[str, Any]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The servers' rows, as in the document."""
        rows: Sequence[Mapping[str, Any]] = self.document["servers"]
        return rows

    def html(self, *, plotlyjs: str = "inline", made: Mapping[str, Any] | None = None) -> str:
        """The report of the only server."""
        return render_html(self.document, self.parts[0].frames(), plotlyjs=plotlyjs, made=made)

    def save(self, path: Path) -> None:
        """Keep it in a file that `read_answer` reads."""
        with whole_file(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as out:
            head = {"format": FORMAT, "version": VERSION, "logscope": __version__}
            parts = [{"document": part.document, "series": part.series} for part in self.parts]
            _add(out, "answer.json", to_json({**head, "document": self.document, "parts": parts}, indent=None).encode())
            for place, part in enumerate(self.parts):
                for name, frame in sorted(part.frames().items()):
                    if name in FRAMES:
                        buffer = io.BytesIO()
                        frame.write_parquet(buffer)
                        _add(out, f"{place}/{name}.parquet", buffer.getvalue())


def _add(out: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    out.writestr(entry, content)


def answer_of(found: Analysis, options: Mapping[str, Any] | None = None) -> Answer:
    """The answer that an analysis gives; `options` are kept in its document."""
    document = {**analysis_document(found), "servers": server_rows(found), "options": dict(options or {})}
    if len(document["servers"]) < 2:
        return Answer(document, (_part(found, document),))
    parts = servers_of(found)
    shown = (parts[row["server"]] for row in document["servers"])
    return Answer(
        document, tuple(_part(part, {**analysis_document(part), "options": dict(options or {})}) for part in shown)
    )


def _part(found: Analysis, document: Mapping[str, Any]) -> Part:
    worst = found.worst_result
    windows = worst.windows if worst is not None else None
    series = {} if windows is None else {word: windows[name].to_list() for word, name in SERIES.items()}
    return Part(document, series, lambda: frames_of_report(found))


def frames_of_report(found: Analysis) -> dict[str, pl.DataFrame]:
    """The log's frames by family, what held each engine back (`binding`), and those of the worst engine's replay."""
    frames = dict(found.data.frames)
    lanes = [frame for result in found.engines if (frame := _lane(result)) is not None]
    if lanes:
        frames["binding"] = pl.concat(lanes)
    worst = found.worst_result
    if worst is not None and worst.answer is not None:
        changes = [a.candidate.changes for a in worst.advice if a.scenario["duration_s"] is not None]
        frames |= report_frames(worst.answer, worst.spikes, changes, worst.log.facts)
    return frames


def _lane(result: EngineResult) -> pl.DataFrame | None:
    facts = result.log.facts
    rows = limits_over_time(result.windows, facts.seats)
    clock = pl.Datetime("us")
    schema: dict[str, pl.DataType] = {"start": clock, "end": clock, "limit": pl.String()}
    place = {"server": facts.server, "run": facts.run, "engine_index": facts.engine_index}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(pl.lit(v, pl.Int64).alias(k) for k, v in place.items()) if rows else None


def read_answer(path: Path) -> Answer:
    """The answer that `Answer.save` kept.

    Raises:
        AnswerError: the file is none, or damaged.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as saved:
            found = json_document(_member(saved, "answer.json"))
            if found.get("format") != FORMAT:
                raise ValueError("another format")
            if found["version"] != VERSION:
                raise AnswerError(f"{path}: kept by another version of logscope; analyse the log again")
            parts = [
                Part(part["document"], part["series"], partial(dict, _frames(saved, place)))
                for place, part in enumerate(found["parts"])
            ]
            document = {**found["document"], "servers": list(found["document"]["servers"])}
            if not parts:
                raise ValueError("no part")
            return Answer(document, tuple(parts))
    except (
        zipfile.BadZipFile,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        pl.exceptions.PolarsError,
        NotImplementedError,
        EOFError,
    ):
        raise AnswerError(f"{path}: not an answer that `logscope analyze --save` kept, or a damaged one") from None


def _member(saved: zipfile.ZipFile, name: str) -> bytes:
    if saved.getinfo(name).file_size > MAX_BYTES:
        raise ValueError("too large")
    return saved.read(name)


def _frames(saved: zipfile.ZipFile, place: int) -> dict[str, pl.DataFrame]:
    known = {name: f"{place}/{name}.parquet" for name in FRAMES}
    held = set(saved.namelist())
    return {name: pl.read_parquet(io.BytesIO(_member(saved, file))) for name, file in known.items() if file in held}


def write_reports(
    answer: Answer, target: Path, *, plotlyjs: str | None = None, made: Mapping[str, Any] | None = None
) -> None:
    """Write the report to the file `target`, or to its `index.html` where it is a folder (or, for several servers, to be one: its name
    has no suffix).

    The reports of several servers share one script beside them, unless `plotlyjs` says otherwise; a single report holds it.
    `made`: when and with which command, see `write_html`.
    """
    several = len(answer.rows) > 1
    folder = target.is_dir() or (several and not target.suffix and not target.exists())
    if folder:
        target.mkdir(parents=True, exist_ok=True)
        target = target / "index.html"
    if not several:
        write_html(answer.document, answer.parts[0].frames(), target, plotlyjs=plotlyjs or "inline", made=made)
        return
    shown = []
    for row, part in zip(answer.rows, answer.parts, strict=True):
        page = target.with_name(report_name(target, row["server"]))
        own = {**(made or {}), "index": target.name, "name": ", ".join(row["names"])}
        write_html(part.document, part.frames(), page, plotlyjs=plotlyjs or "directory", made=own)
        shown.append(FleetRow(row, part.document, part.series.get("KV usage", [])))
    write_fleet_index(shown, answer.document["input"]["lines"], target, made=made)


MAX_SAID = 5
_SPECIAL = re.compile(r"([\\`*_{}\[\]|~#])")


def markdown(answer: Answer) -> str:
    """A summary for a ticket or a chat: verdict, figures, why, what to do. What comes from the log is text there, never markup."""
    document = {**answer.document, **answer.parts[0].document, "input": answer.document["input"]}
    worst = worst_engine(document)
    verdict = VERDICTS.get(document["verdict"])
    why = undecided(document) if document["verdict"] == "not-enough-evidence" else ""
    lead = f"**{document['verdict']}**: {_md(why or (verdict.brief if verdict else ''))}"
    if is_overloaded(document):
        lead += "; overloaded: requests arrive faster than this server can serve"
    lines = [lead + (f"; {_md(sure)}" if (sure := certainty(document)) else ""), ""]
    if worst:
        version = f"vLLM {_md(str(worst['vllm_version'] or 'of a version that is not visible'))}"
        lines += [
            f"{version}, {period(worst['start'], worst['end'])}{'. ' + _md(scope(document)) if scope(document) else ''}",
            "",
        ]
    if len(answer.rows) > 1:
        lines += ["| server | verdict | E2E p99 |", "|---|---|---|"]
        lines += [
            f"| {_md(', '.join(r['names']))} | {r['verdict']} | {duration(r['p99_e2e_s'])} |" for r in answer.rows[:20]
        ] + [""]
    lines += ["| figure | value | basis |", "|---|---|---|", *_md_figures(document), ""]
    if lost := shares(document["ledger"]["slow_s"]):
        whose = f" ({engine_name(worst, document)})" if len(document["engines"]) > 1 else ""
        lines += [f"Slow requests' time{whose}: {lost} [replayed].", ""]
    findings = own_findings(document)[:MAX_SAID]
    lines += [f"- **{f['id']}** ({f['severity']}, {f['basis']}): {_md(f['title'])}" for f in findings] + [""] * bool(
        findings
    )
    advice = document["advice"][:MAX_SAID]
    lines += ["What to do:", "", *map(_md_advice, advice)] if advice else [_md(no_advice(document))]
    if missing := gaps(document):
        lines += ["", "Not visible in this log:", "", *(f"- {_md(text)}" for text in missing)]
    lines += ["", f"{number(document['input']['lines'])} lines read by logscope {__version__}."]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Plain words in Markdown: nothing is a link, a mention, a tag or a column's end."""
    plain = _SPECIAL.sub(r"\\\1", clean(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return plain.replace("@", "&#64;").replace("://", ":&#8203;//")


def _md_figures(document: Mapping[str, Any]) -> list[str]:
    count, latency, flow = document["preemptions"], document["latency"], document["throughput"]
    several = len(document["engines"]) > 1
    all_of = f", {all_engines(document)}" if several else ""
    own = f", {engine_name(worst_engine(document), document)}" if several and latency["basis"] != "measured" else ""
    rows = [(f"Preemptions{all_of}", estimate(count["low"], count["value"], count["high"]), count["basis"])]
    for name, word in (("ttft_s", "TTFT"), ("e2e_s", "E2E")):
        if any(latency[name][p] is not None for p in ("p50", "p99")):
            rows.append(
                (
                    f"{word} p50, p99{own}",
                    ", ".join(duration(latency[name][point], "withheld") for point in ("p50", "p99")),
                    latency["basis"],
                )
            )
    rows.append(
        (
            f"Generated{all_of}",
            rate(flow["generation_tokens_per_s"]),
            "measured" if flow["generation_tokens_per_s"] is not None else None,
        )
    )
    return [f"| {name} | {value} | {basis or ''} |" for name, value, basis in rows]


def _md_advice(item: Mapping[str, Any]) -> str:
    name = item["flag"] or ", ".join(f"{k} = {setting(v)}" for k, v in item["set"].items())
    effect = "a rule of thumb, not replayed"
    if item["scenario"] is not None:
        before, after = item["baseline"], item["scenario"]
        effect = ", ".join(
            f"{word} p99 {duration(before[key]['p99'])} to {duration(after[key]['p99'])}"
            for key, word in (("e2e_s", "E2E"), ("ttft_s", "TTFT"))
            if before[key]["p99"] is not None and after[key]["p99"] is not None
        )
    return f"- {_md(name)} ({COSTS.get(item['cost'], item['cost'])}): {effect}. Trade-off: {_md(mid_sentence(item['trade']))}"


_LEFT_OUT = "(left out)"
# Words of logscope's own, versions, times and flags with plain values; a name or a sentence is none of these.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,15}(?:Z|[+-]\d\d:\d\d)?")
_FLAGS = re.compile(r"--[a-z][a-z-]{2,40}(?: [0-9.]{1,12}|(?:-| )fp8)?(?: --[a-z][a-z-]{2,40} [0-9.]{1,12})*")
_RELEASE = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}")
_OWN_KEYS = re.compile(r"[a-z][a-z0-9_]{0,40}|p\d{1,2}")
_TEXT_KEYS = frozenset(
    (
        *("id", "severity", "basis", "verdict", "pressure", "cause", "cost", "engine", "ranked_by", "kind"),
        *("times", "binding"),
    )
)
_ENUMS = {"kv_cache_dtype", "policy"}
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}")


def bundle(answer: Answer) -> bytes:
    """A zip for a bug report: `bundle.json` (figures, settings and findings by their ids) and each server's statistics as CSV.

    Sources, servers and models have no name in it; no line of the log, no sentence that may quote one, and no text of a user is in it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        facts = {
            "format": "logscope-bundle",
            "version": 1,
            "logscope": __version__,
            "python": platform.python_version(),
        }
        _add(out, "bundle.json", json.dumps({**facts, "answer": _anonymous(answer.document)}, indent=1).encode())
        for place, part in enumerate(answer.parts):
            stats = part.frames().get("stats")
            if stats is not None:
                plain = stats.select(pl.selectors.numeric() | pl.selectors.temporal() | pl.selectors.boolean())
                _add(out, f"statistics-{place}.csv", plain.write_csv().encode())
    return buffer.getvalue()


def _anonymous(value: Any, key: str = "") -> Any:
    """What of a document is a number, a time or one of logscope's own words; the rest is left out."""
    if isinstance(value, Mapping):
        return {k: _anonymous(v, k) for k, v in value.items() if isinstance(k, str) and _OWN_KEYS.fullmatch(k)}
    if isinstance(value, (list, tuple)):
        return [_anonymous(item, key) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    if key == "vllm_version":
        found = _RELEASE.match(text)
        return found[0] if found else _LEFT_OUT
    known = (key in _TEXT_KEYS or key in _ENUMS) and _WORD.fullmatch(text)
    return text if known or _TIME.fullmatch(text) or (key == "flag" and _FLAGS.fullmatch(text)) else _LEFT_OUT
