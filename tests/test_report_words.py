"""Numbers and text as people read them; text from a log made harmless."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logscope.output.report.timeline import keep_extremes
from logscope.output.report.view_advice import ledger_bars
from logscope.sanitize import axis_text, redacted, script_json, visible
from logscope.wording import (
    LEDGER_LABELS,
    LOST_TO,
    NOT_VISIBLE,
    VERDICTS,
    bounds,
    change,
    duration,
    number,
    percent,
    period,
    rate,
    setting,
)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, NOT_VISIBLE),
        (0, "0 s"),
        (0.00007, "70 µs"),
        (0.0042, "4.2 ms"),
        (0.031, "31 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (5.86, "5.9 s"),
        (99.96, "100 s"),
        (154.2, "154 s"),
        (750, "12.5 min"),
        (7199, "120.0 min"),
        (7200, "2.0 h"),
        (86_400, "24.0 h"),
        (270_618, "3.1 days"),
    ],
)
def test_seconds(value: float | None, printed: str) -> None:
    assert duration(value) == printed


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (number(13758), "13,758"),
        (number(None), NOT_VISIBLE),
        (percent(0.034), "3.4 %"),
        (percent(0.71), "71 %"),
        (percent(0), "0 %"),
        (rate(277.04), "277 tok/s"),
        (rate(3.25), "3.2 tok/s"),
        (bounds(55, 71), "55 to 71"),
        (bounds(51, None), "at least 51"),
        (bounds(None, 3), "at most 3"),
        (bounds(2, 2), "exactly 2"),
        (bounds(None, None), ""),
        (change(33.0, 25.9), "−22 %"),
        (change(0.29, 4.1), "×14"),
        (change(74.1, 0.217), "−99.7 %"),
        (change(74.1, 0), "−100 %"),
        (change(277, 277.5), "±0 %"),
        (change(0, 4), ""),
        (change(None, 4), ""),
        (setting(True), "on"),
        (setting(0.9), "0.9"),
        (setting(None), NOT_VISIBLE),
        (setting("fcfs"), "fcfs"),
    ],
)
def test_other_numbers(printed: str, expected: str) -> None:
    assert printed == expected


@pytest.mark.parametrize(
    ("start", "end", "printed"),
    [
        ("2026-11-29T23:56:30", "2026-11-29T23:59:54", "29 Nov 2026, 23:56:30 to 23:59:54 (204 s)"),
        ("2026-12-31T23:59:00", "2027-01-01T00:01:00", "31 Dec 2026, 23:59:00 to 1 Jan 2027, 00:01:00 (120 s)"),
        ("2026-11-29T23:56:30Z", None, "29 Nov 2026, 23:56:30"),
        (None, None, NOT_VISIBLE),
        ("rubbish", None, NOT_VISIBLE),
    ],
)
def test_a_period(start: str | None, end: str | None, printed: str) -> None:
    assert period(start, end) == printed


def test_every_cause_has_words_and_every_label_a_name() -> None:
    assert set(LOST_TO) <= set(VERDICTS)
    assert {label for labels in LOST_TO.values() for label in labels} | {"prefill", "decode"} == set(LEDGER_LABELS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("a\x00b\rc\x9bd", "a␀b␍c\ufffdd"),
        ("tab\tstays", "tab\tstays"),
        ("evil\u202egnp.exe", "evil\ufffdgnp.exe"),
        ("x" * 700, "x" * 600 + "…"),
        ("half \ud83d pair", "half \ufffd pair"),
    ],
)
def test_control_characters_are_shown_not_obeyed(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("line", "gone", "kept"),
    [
        (
            "INFO 05-09 00:49:33 [logger.py:40] Received request chatcmpl-1: prompt: 'my secret, params: still secret', "
            "params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [101, 202], lora_request: None.",
            ["secret", "101"],
            ["chatcmpl-1", "max_tokens=16", "lora_request"],
        ),
        ("Received request cmpl-2: prompt: 'cut in the mid", ["cut in"], ["cmpl-2"]),
        (
            "Generated response cmpl-3: output: 'the answer', output_token_ids: [7, 8], finish_reason: stop",
            ["the answer", "[7, 8]"],
            ["cmpl-3", "finish_reason: stop"],
        ),
        (
            'INFO:     192.0.2.7:51908 - "POST /v1/completions HTTP/1.1" 200 OK',
            ["192.0.2.7", "51908"],
            ["POST /v1/completions", "200 OK"],
        ),
        ('INFO:     2001:db8::7:51908 - "GET /health HTTP/1.1" 200 OK', ["2001:db8"], ["GET /health"]),
    ],
)
def test_prompts_and_clients_are_left_out(line: str, gone: list[str], kept: list[str]) -> None:
    shown = redacted(line)
    assert [word for word in gone if word in shown] == []
    assert [word for word in kept if word not in shown] == []


@pytest.mark.parametrize("piece", ["prompt: ", "output: ", "prompt_token_ids: [", "INFO:   ", ", params: ", "1.1.1.1:"])
def test_hostile_lines_take_no_time(piece: str) -> None:
    before = time.perf_counter()
    redacted(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - before < 1


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_json_in_a_script_cannot_leave_it(value: object) -> None:
    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        script_json({"y": float("nan")})


def test_text_on_an_axis_is_no_markup() -> None:
    assert axis_text('<a href="https://example.org">&lt;b\x1b') == (
        "&lt;a href=&quot;https://example.org&quot;&gt;&amp;lt;b␛"
    )


VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 80))
def test_a_thinned_series_keeps_its_ends_and_extremes(values: list[float | None], limit: int) -> None:
    kept = keep_extremes(values, limit)
    known = [v for v in values if v is not None]
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 4)
    assert {0, len(values) - 1} <= set(kept)
    if known:
        drawn = [v for i in kept if (v := values[i]) is not None]
        assert (min(drawn), max(drawn)) == (min(known), max(known))


def test_a_limit_too_small_for_the_extremes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        keep_extremes([1.0] * 9, 3)


def test_the_ledgers_bars_have_one_scale_and_their_own_parts() -> None:
    ledger = {"slow_s": {"queued_for_kv": 6.0, "decode": 2.0, "recompute": None}, "typical_s": {"decode": 4.0}}
    slow, typical = ledger_bars(ledger)
    assert (slow.name, slow.whole.replace("\u00a0", " ")) == ("Slow requests", "8.0 s")
    assert (typical.name, typical.whole.replace("\u00a0", " ")) == ("Typical requests", "4.0 s")
    assert [s[:3] for s in slow.segments] == [("queued_for_kv", 0.0, 750.0), ("decode", 750.0, 250.0)]
    assert [s[:3] for s in typical.segments] == [("decode", 0.0, 500.0)]
    assert ledger_bars({}) == ledger_bars({"slow_s": {}, "typical_s": None}) == []
