"""What a replay's ledger is worth a finding: a cause with a tenth of the slow requests' time that others do not share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logscope.diagnosis.findings.replayed import replay_findings
from logscope.inference.result import InferredReplay, PreemptionCount
from tests.logs import analysed, stats_v1, v1_start

LABELS = ("queued_for_kv", "queued_for_seat", "interference", "decode")


def answer(slow: tuple[float, ...], typical: tuple[float, ...]) -> InferredReplay:
    ledger = {"slow_s": dict(zip(LABELS, slow, strict=True)), "typical_s": dict(zip(LABELS, typical, strict=True))}
    found = SimpleNamespace(preemptions=PreemptionCount(0.0, 0.0, 0.0, 0.0), ledger=ledger)
    return cast("InferredReplay", found)


@pytest.mark.parametrize(
    ("slow", "typical", "found"),
    [
        ((90, 0, 0, 910), (0, 0, 0, 100), []),  # less than a tenth
        ((100, 0, 0, 900), (0, 0, 0, 100), [("kv-admission-wait", "warning")]),
        ((0, 140, 0, 860), (0, 10, 0, 90), []),  # nearly as everybody else
        ((0, 151, 0, 849), (0, 10, 0, 90), [("seat-limit", "warning")]),
        ((0, 0, 334, 666), (0, 0, 34, 66), [("prefill-interference", "critical")]),  # a third is much
        ((400, 0, 200, 400), (0, 0, 0, 9), [("kv-admission-wait", "critical"), ("prefill-interference", "warning")]),
        ((0, 0, 0, 0), (0, 0, 0, 0), []),
    ],
)  # fmt: skip
def test_which_causes_are_told(
    slow: tuple[float, ...], typical: tuple[float, ...], found: list[tuple[str, str]], tmp_path: Path
) -> None:
    (engine,) = analysed(tmp_path, [*v1_start(), stats_v1(10, 4, 4, 97.0)]).engines
    told: list[Any] = replay_findings(engine.context, answer(slow, typical), (), None, [])
    assert [(f.id, f.severity) for f in told] == found
    assert {f.basis for f in told} <= {"replayed"}


def test_the_share_is_said_beside_a_typical_requests(tmp_path: Path) -> None:
    (engine,) = analysed(tmp_path, [*v1_start(), stats_v1(10, 4, 4, 97.0)]).engines
    (told,) = replay_findings(engine.context, answer((4, 0, 0, 6), (1, 0, 0, 4)), (), None, [])
    assert told.title == (
        "Slow requests spent 40 % of their 10.0 s waiting for KV blocks before admission (typical requests: 20 % of 5.0 s)"
    )
    assert [e.line for e in told.evidence] == [len(v1_start()) + 1]
