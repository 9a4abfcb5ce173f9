"""The HTML report as a file: what stands in it, what its policy allows, how it is written."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import os
import re
import time
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from logscope.output.report.page import PLOTLY_SHA256, charts, plotly_script, render_html, write_html
from logscope.output.report.timeline import MAX_POINTS
from logscope.output.report.view_advice import advice, compared
from logscope.wording import NOT_VISIBLE, VERDICTS, duration

Frames = dict[str, pl.DataFrame]
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m{{ 7*7 }}\u202e\"'`"
VOID = {"meta", "img", "br", "hr", "input", "link", "rect", "wbr"}


class Outline(HTMLParser):
    """Tags with attributes, headings, script and style texts, and the text of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.raw: dict[str, list[tuple[dict[str, str | None], str]]] = {"script": [], "style": []}
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag in self.raw:
            self.raw[tag].append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            attrs, text = self.raw[self.open[-1]][-1]
            self.raw[self.open[-1]][-1] = (attrs, text + data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words)).replace("\u00a0", " ")


def everywhere(value: Any, put: str) -> Any:
    """The value with every text replaced but those that name things of the contract."""
    if isinstance(value, dict):
        names = {"verdict", "pressure", "severity", "basis", "start", "end", "cost", "cause", "id"}
        return {k: v if k in names and isinstance(v, str) else everywhere(v, put) for k, v in value.items()}
    if isinstance(value, list):
        return [everywhere(v, put) for v in value]
    return put if isinstance(value, str) else value


def nothing_known(value: Any) -> Any:
    """The value with every number unknown and every list empty, as `--no-replay` may leave it."""
    if isinstance(value, dict):
        return {k: nothing_known(v) for k, v in value.items()}
    return [] if isinstance(value, list) else None


def test_the_first_screen_is_the_answer(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    text = render_html(report_analysis, report_frames)
    first = Outline(text[text.index("<body>") : text.index("<nav")]).text
    for part in (
        VERDICTS["kv-capacity"].title,
        "13.1 s queued for KV blocks",
        "Preemptions 62 55 to 71",
        "E2E p99 33.4 s median 5.9 s inferred",
        "--max-num-seqs 12",
        "33.0 s → 25.9 s −22 %",
        "server's clock",
    ):
        assert part in first


def test_no_script_stands_before_the_end_of_the_page(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    text = render_html(report_analysis, report_frames)
    assert text.index("</footer>") < text.index("<script")


def test_headings_are_in_order_and_every_element_is_closed(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    outline = Outline(render_html(report_analysis, report_frames))
    assert outline.open == []
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(outline.headings))
    assert ("html", {"lang": "en"}) in outline.tags


def test_nothing_is_loaded_and_nothing_runs_but_what_the_policy_names(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    outline = Outline(render_html(report_analysis, report_frames))
    [policy] = [a["content"] for t, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for kind, rule in (("script", "script-src"), ("style", "style-src")):
        texts = [text for attrs, text in outline.raw[kind] if attrs.get("type") != "application/json"]
        hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts}
        assert set(rules[rule].split()) == hashes
    for _, attributes in outline.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        links = [v or "" for name, v in attributes.items() if name in ("src", "href", "srcset", "action")]
        assert [link for link in links if not link.startswith("#")] == []


@pytest.mark.parametrize(
    ("where", "address"), [("cdn", "https://cdn.jsdelivr.net/npm/"), ("directory", "plotly-basic-")]
)
def test_the_charts_script_can_stand_elsewhere(
    where: str, address: str, report_analysis: dict[str, Any], report_frames: Frames, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    write_html(report_analysis, report_frames, out, plotlyjs=where)
    outline = Outline(out.read_text(encoding="utf-8"))
    [source] = [a["src"] for t, a in outline.tags if t == "script" and "src" in a]
    assert source
    assert source.startswith(address)
    assert out.stat().st_size < 300_000
    assert (tmp_path / source).is_file() == (where == "directory")


def test_another_word_for_where_is_refused(report_analysis: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="inline, cdn, directory"):
        render_html(report_analysis, {}, plotlyjs="somewhere")


def test_the_vendored_script_is_the_one_that_was_reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = plotly_script()
    assert hashlib.sha256(script).hexdigest() == PLOTLY_SHA256
    assert b"</script" not in script
    assert b"\r" not in script
    assert b"new Function" not in script
    monkeypatch.setattr("logscope.output.report.page.PLOTLY_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="damaged"):
        plotly_script()


def test_a_poor_fit_is_said_once_where_it_is_the_reason(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    whose = {name: report_analysis["engines"][0][name] for name in ("server", "run", "engine_index")}
    title = "The replay fits this log poorly (0 % on average): do not rely on the inferred and replayed figures"
    poor = {"id": "coverage", "severity": "warning", "basis": "replayed", "title": title, "facts": {"mean_fit": 0.0}}
    report_analysis["findings"] = [{**poor, **whose, "start": None, "end": None, "evidence": []}]
    report_analysis["verdict"] = "not-enough-evidence"
    report_analysis["replay"]["fit"] = dict.fromkeys(report_analysis["replay"]["fit"], 0.0)
    text = render_html(report_analysis, report_frames)
    head = Outline(text[text.index("<body>") : text.index("<nav")]).text
    assert head.count("do not rely on") == 1


def test_a_poor_fit_is_said_aloud(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    assert "fits this log poorly" not in Outline(render_html(report_analysis, report_frames)).text
    report_analysis["replay"]["fit"] = {"running": 0.3, "waiting": 0.1, "kv_usage": None, "generation": 0.5}
    words = Outline(render_html(report_analysis, report_frames)).text
    assert "The replay fits this log poorly (30 % on average)" in words


def test_a_healthy_server_is_told_why(report_analysis: dict[str, Any]) -> None:
    report_analysis.update(verdict="healthy", pressure="none", advice=[], findings=[])
    report_analysis["ledger"]["slow_s"] = {"queued_for_kv": 0.1, "decode": 0.8, "prefill": 0.1}
    words = Outline(render_html(report_analysis, {})).text
    assert "90 % of that is their own prefill and decode" in words
    assert "No change recommended." in words


def test_the_file_is_small(report_analysis: dict[str, Any], report_frames: Frames, tmp_path: Path) -> None:
    write_html(report_analysis, report_frames, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


def test_a_day_stays_small_and_quick(report_analysis: dict[str, Any], report_frames: Frames, tmp_path: Path) -> None:
    start, day = datetime(2026, 11, 29), 8_640
    times = [start + timedelta(seconds=10 * i) for i in range(day)]
    stats = pl.DataFrame(
        {
            "time": times,
            "running": [i % 97 for i in range(day)],
            "waiting": [i % 89 for i in range(day)],
            "gpu_kv_cache_usage_pct": [100.0 if i == 5_001 else i % 61 / 1.0 for i in range(day)],
            "prompt_throughput": [float(i % 501) for i in range(day)],
            "generation_throughput": [float(i % 499) for i in range(day)],
        }
    )
    requests = pl.concat([report_frames["replay_requests"]] * 400)
    frames = {**report_frames, "stats": stats, "replay_requests": requests}
    before = time.perf_counter()
    write_html(report_analysis, frames, tmp_path / "report.html")
    assert time.perf_counter() - before < 5
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    [drawn] = charts(report_analysis, frames).timelines
    [usage] = [t for t in drawn.figure["data"] if t["name"] == "KV usage" and "dash" not in t["line"]]
    assert len(usage["x"]) <= MAX_POINTS
    assert max(usage["y"]) == 100.0
    assert any("8,640" in note for note in drawn.notes)
    assert len(drawn.table.rows) <= 241


@pytest.mark.parametrize("column", ["running", "gpu_kv_cache_usage_pct", "generation_throughput"])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_a_number_that_is_none_is_a_gap(
    column: str, bad: float | None, report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    stats = report_frames["stats"].with_columns(pl.lit(bad, pl.Float64).alias(column))
    words = Outline(render_html(report_analysis, {"stats": stats})).text
    assert "15 rows" in words
    assert not re.search(r"\b(nan|NaN|inf|None)\b", words)


def test_the_comparison_is_the_advice_of_the_json(report_analysis: dict[str, Any]) -> None:
    table = compared(advice(report_analysis))
    where = {"E2E p99": ("e2e_s", "p99"), "TTFT p50": ("ttft_s", "p50"), "ITL p99": ("itl_s", "p99")}
    for name, (key, quantile) in where.items():
        column = table.names.index(name)
        assert table.now[column] == duration(report_analysis["advice"][0]["baseline"][key][quantile])
        assert [effects[column].after for _, effects in table.rows if effects[column]] == [
            duration(a["scenario"][key][quantile]) for a in report_analysis["advice"]
        ]


def test_without_a_replay_its_sections_are_absent(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    frames = {"stats": report_frames["stats"]}
    report_analysis.update(replay=None, spikes=[], advice=[], ledger=nothing_known(report_analysis["ledger"]))
    report_analysis["engines"][0].update(replay=None, spikes=[])
    outline = Outline(render_html(report_analysis, frames))
    ids = {a.get("id") for _, a in outline.tags}
    assert {"timeline", "evidence", "config", "unseen"} <= ids
    assert not {"ledger", "spikes", "whatif", "gantt"} & ids
    assert "No recommendation: the log does not hold what a replay needs" in outline.text


def test_a_second_cause_is_named_where_it_is_close(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    report_analysis |= {"verdict_confidence": 0.62, "second": {"verdict": "prefill-interference", "confidence": 0.38}}
    said = " ".join(Outline(render_html(report_analysis, report_frames)).text.split())
    assert (
        "The cause is mainly KV-cache space (62 % of the plausible workloads), also other requests' prefill (38 %)."
        in said
    )


@pytest.mark.parametrize("verdict", [*VERDICTS, "a verdict of a later version"])
def test_what_is_unknown_says_so(verdict: str, report_analysis: dict[str, Any]) -> None:
    bare = {**nothing_known(report_analysis), "verdict": verdict}
    words = Outline(render_html(bare, {})).text
    assert NOT_VISIBLE in words
    assert not re.search(r"\b(None|null|nan|NaN|undefined)\b", words)
    if verdict in VERDICTS:
        assert VERDICTS[verdict].title in words


def test_every_number_of_the_advice_is_on_the_page(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    words = Outline(render_html(report_analysis, report_frames)).text
    for advised in report_analysis["advice"]:
        for side in (advised["baseline"], advised["scenario"]):
            for key in ("ttft_s", "e2e_s"):
                assert duration(side[key]["p99"]).replace("\u00a0", " ") in words
        assert advised["why"] in words
        assert advised["trade"] in words


def test_evidence_names_its_source_and_line(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    alone = Outline(render_html(report_analysis, report_frames)).text
    report_analysis["input"]["sources"] = ["server.log", "server.log.1"]
    several = Outline(render_html(report_analysis, report_frames)).text
    for finding in report_analysis["findings"]:
        assert finding["title"] in several
        for line in finding["evidence"]:
            assert f"line {line['line']} {line['text']}" in alone
            assert f"{line['source']}:{line['line']} {line['text']}" in several


def test_several_engines_have_a_table_and_a_timeline_each(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    engine = report_analysis["engines"][0]
    report_analysis["engines"] = [{**copy.deepcopy(engine), "engine_index": i} for i in range(6)]
    report_analysis["worst_engine"] = 2
    stats = report_frames["stats"]
    frames = {"stats": pl.concat([stats.with_columns(engine_index=pl.lit(i, pl.Int64)) for i in range(6)])}
    drawn = charts(report_analysis, frames)
    assert drawn.timelines[0].id == "timeline-0-0-2"
    assert (len(drawn.timelines), drawn.omitted) == (4, 2)
    words = Outline(render_html(report_analysis, frames)).text
    assert "engine 5" in words
    assert "2 more engines" in words


def test_hostile_text_stays_text(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    frames = {
        name: frame.with_columns(id=pl.lit(HOSTILE) + pl.col("id")) if "id" in frame.columns else frame
        for name, frame in report_frames.items()
    }
    text = render_html(everywhere(report_analysis, HOSTILE), frames)
    outline = Outline(text)
    assert "img" not in {tag for tag, _ in outline.tags}
    assert outline.open == []
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{{ 7*7 }}" in outline.text
    assert text.count("<script") == text.count("</script>")


def test_the_same_input_gives_the_same_file(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    assert render_html(report_analysis, report_frames) == render_html(report_analysis, report_frames)


def test_a_crash_leaves_the_old_report(
    report_analysis: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    out.write_text("the old one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_html(report_analysis, {}, out)
    assert out.read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
