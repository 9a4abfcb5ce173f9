"""One number, one scope, once: what report and terminal print is in the JSON, in the JSON's own value."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

import pytest

from logscope.output.answer import Answer, Part, markdown
from logscope.output.report import view
from logscope.output.report.captions import engine_name, scope
from logscope.output.report.page import render_html
from logscope.output.terminal.answer import print_answer
from logscope.wording import LEDGER_LABELS, LOST_TO, change, duration, number, percent, rate, setting
from tests.test_report_html import Frames, Outline

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def leaves(value: Any) -> Iterator[Any]:
    """Every value of a document, keys with digits included."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from leaves(part)
    elif isinstance(value, (list, tuple)):
        yield len(value)
        for part in value:
            yield from leaves(part)
    elif value is not None:
        yield value


def forms(value: float) -> list[str]:
    """A number as one of the formatters prints it."""
    fixed = [f"{value:.{digits}f}" for digits in (0, 1, 2)] + [f"{value:g}", f"{value:,.2f}"]
    return [*fixed, number(value), duration(value), percent(value), percent(value / 100), rate(value), setting(value)]


def derived(document: Mapping[str, Any]) -> Iterator[str]:
    """What is made of two numbers of the JSON: sums and shares of a ledger, changes of an advice, lines of no kind."""
    ledgers = [*document["ledger"].values(), *(s["ledger_s"] for s in document["spikes"])]
    for ledger in ledgers:
        parts = {k: ledger.get(k) or 0.0 for k in LEDGER_LABELS}
        whole = sum(parts.values())
        groups = [*((k,) for k in LEDGER_LABELS), *LOST_TO.values(), ("prefill", "decode")]
        yield duration(whole)
        for group in groups:
            lost = sum(parts[k] for k in group)
            yield duration(lost)
            yield percent(lost / whole if whole else 0)
    for advice in document["advice"]:
        before, after = (
            [v for v in leaves(advice[side]) if isinstance(v, (int, float))] for side in ("baseline", "scenario")
        )
        yield from (change(a, b) for a, b in zip(before, after, strict=True))
    fit = [v for v in ((document["replay"] or {}).get("fit") or {}).values() if v is not None]
    yield percent(sum(fit) / len(fit) if fit else None)
    given = document["input"]
    yield number(given["lines"] - given["events"] - given["other_records"] - given["foreign_lines"])


def known_numbers(document: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for leaf in leaves(document):
        texts = forms(leaf) if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) else [str(leaf)]
        for text in texts:
            found |= set(NUMBER.findall(text))
    for text in derived(document):
        found |= set(NUMBER.findall(text))
    for start, end in (
        (e["start"], e["end"]) for e in (*document["engines"], *document["spikes"], *document["findings"])
    ):
        if start and end:
            from logscope.wording import period

            found |= set(NUMBER.findall(period(start, end)))
    found |= set(NUMBER.findall(" ".join(re.sub(r"[-T:]", " ", str(v)) for v in leaves(document))))
    return found


# What a text says of itself, not of the server: percentiles, the 5 % that are slow, V1, the digits of a name.
OWN = {"50", "90", "99", "5", "40", "60", "95", "0", "1", "2", "3"}


@pytest.fixture
def document(report_analysis: dict[str, Any]) -> dict[str, Any]:
    for name in ("warning_samples", "skipped_sources"):
        report_analysis["input"].setdefault(name, [])
    return report_analysis


def test_every_number_of_the_terminal_is_in_the_json(document: dict[str, Any]) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        print_answer(document, verbose=True)
    unknown = set(NUMBER.findall(out.getvalue())) - known_numbers(document) - OWN
    assert unknown == set()


def test_every_number_of_the_report_is_in_the_json(document: dict[str, Any], report_frames: Frames) -> None:
    """Charts and their tables are drawn from the frames; all else comes from the JSON."""
    text = render_html(document, report_frames)
    text = re.sub(r"<figure.*?</figure>", " ", text, flags=re.S)
    words = Outline(text[text.index("<body>") : text.index("<footer")]).text
    unknown = set(NUMBER.findall(words)) - known_numbers(document) - OWN
    assert unknown == set()


def test_a_number_that_the_json_does_not_hold_is_found(document: dict[str, Any], report_frames: Frames) -> None:
    """The two tests above can fail: each number of the page in turn is replaced by another."""
    text = re.sub(r"<figure.*?</figure>", " ", render_html(document, report_frames), flags=re.S)
    words = Outline(text[text.index("<body>") : text.index("<footer")]).text
    known = known_numbers(document) | OWN
    numbers = sorted({n for n in NUMBER.findall(words) if len(n) > 2})
    assert len(numbers) > 40
    missed = [n for n in numbers if (n[:-1] + str((int(n[-1]) + 7) % 10)) in known]
    assert len(missed) < 0.25 * len(numbers), "a wrong last digit is noticed in most numbers"


def test_the_headline_of_several_engines_names_whose_it_is(document: dict[str, Any]) -> None:
    document["engines"] = [{**document["engines"][0], "engine_index": i} for i in range(2)]
    out = io.StringIO()
    with redirect_stdout(out):
        print_answer(document)
    assert "Showing engine 0, the worse of 2" in out.getvalue()
    assert re.search(r"E2E .* · engine 0\n", out.getvalue())
    assert " in total" in out.getvalue()
    words = Outline(render_html(document, {})).text
    assert "Preemptions, both engines" in words
    assert "E2E p99, engine 0" in words


def test_servers_and_starts_are_counted_from_one_and_engines_as_vllm_does(document: dict[str, Any]) -> None:
    first = {**document["engines"][0], "run": 0, "server": 0, "engine_index": 0}
    document["engines"] = [first, {**first, "run": 1}, {**first, "server": 1, "engine_index": 1}]
    names = [engine_name(entry, document) for entry in document["engines"]]
    assert names == ["server 1, start 1, engine 0", "server 1, start 2, engine 0", "server 2, start 1, engine 1"]


def test_a_server_that_came_up_after_a_failed_start_is_said_to_be_up(document: dict[str, Any]) -> None:
    first = {**document["engines"][0], "verdict": "startup-failed"}
    document |= {"engines": [first], "worst_engine": 0, "verdict": "startup-failed"}
    assert "did start later" not in scope(document)
    document["engines"] = [first, {**first, "run": 1, "start": "2026-05-09T00:51:00", "verdict": "healthy"}]
    assert scope(document).endswith(
        "The server did start later: start 2 at 00:51:00 (healthy: the slow requests are simply long)."
    )


def test_of_a_withheld_figure_the_page_tells_only_the_change(document: dict[str, Any], report_frames: Frames) -> None:
    now, then = (document["advice"][0][side]["ttft_s"]["p50"] for side in ("baseline", "scenario"))
    assert f"{duration(now)} → {duration(then)}" in " ".join(Outline(render_html(document, report_frames)).text.split())
    document["latency"]["ttft_s"]["p50"] = None
    document["latency"]["withheld"] = "TTFT p50 (bounds too far apart)"
    shown = view.page(document, report_frames)
    (effect,) = [e for e in shown.advice[0].effects if e.name == "TTFT p50"]
    assert (effect.before, effect.after) == ("withheld", "")
    assert effect.change
    assert shown.compared.now[shown.compared.names.index("TTFT p50")] == "withheld"


def test_the_order_of_the_advice_is_named_as_it_is(document: dict[str, Any], report_frames: Frames) -> None:
    for advice in document["advice"]:
        advice["ranked_by"] = "ttft_s.p50"
    words = Outline(render_html(document, report_frames)).text
    assert "ranked by TTFT p50" in words
    assert "ranked by E2E p99" not in words


def test_markdown_names_whose_the_figures_are(document: dict[str, Any]) -> None:
    document["engines"] = [{**document["engines"][0], "engine_index": i} for i in range(2)]
    document |= {"servers": [], "options": {}}
    text = markdown(Answer(document, (Part(document, {}, dict),)))
    assert "| Preemptions, both engines |" in text
    assert "| E2E p50, p99, engine 0 |" in text
    assert "| Generated, both engines |" in text


def test_a_line_that_was_logged_again_stands_once(document: dict[str, Any], report_frames: Frames) -> None:
    line = {"source": "server.log", "line": 66, "time": None, "text": "ValueError: too small"}
    document["findings"][0]["evidence"] = [line, {**line, "line": 99}]
    assert [place for place, *_ in view.page(document, report_frames).findings[0].evidence] == ["line 66"]
