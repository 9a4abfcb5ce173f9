"""Targets that take what is typed, and files that are no logs: `whatif --set`, and what `replay` reads."""

from __future__ import annotations

import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

from logscope.analysis import EngineResult, analyze
from logscope.log.frames import read_log
from logscope.log.span import Span
from logscope.output.events import to_json
from logscope.output.json import whatif_document
from logscope.sanitize import OBEYED
from logscope.server.scenario import scenario_of
from logscope.server.settings import SCENARIO_SETTINGS, SETTINGS, SettingError, parse_settings
from parsers.sources.source import expand
from tests.fuzz.cases import Case, Target, lay_out, run
from tests.fuzz.mutations import HOSTILE, NUMBERS, ROOT, seeds
from tests.fuzz.workload_files import CONFIG, DAMAGES, WORKLOADS, damaged

__all__ = ["SETTING_TARGETS"]

KEYS = (*SETTINGS, *SCENARIO_SETTINGS, "num-gpu-blocks-override", "--max-num-seqs", "max_seq_len", "x")
VALUES = (
    *(n.decode("utf-8", "replace")[:60] for n in NUMBERS),
    "1e18",
    "1e-9",
    "3.5",
    "7",
    "16",
    "250",
    "4096",
    "true",
    "off",
    "fp8",
    "fp8_e5m2",
    "auto",
    "fcfs",
    "priority",
    "0.05",
    "0.99",
    "1.5",
    " 8 ",
    "1e6",
    "12=13",
    "\x1b[2J",
    "\u202e",
    "'; DROP",
)


@cache
def _servers() -> tuple[EngineResult, ...]:
    """Servers whose workload is inferred once: a start and a stretch under pressure."""
    found = []
    for name in ("samples/v1-under-pressure.log", "samples/v0-with-warnings.log.gz"):
        lines = [*seeds()[name][:60], *seeds()[name][420:560]]
        path = ROOT / "out" / "fuzz" / "whatif.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(lines) + b"\n")
        data = read_log(expand([str(path)]), Span(), year=2026)
        found += [r for r in analyze(data, with_advice=False).engines if r.answer is not None]
    assert found, "the seeds give something to replay"
    return tuple(found)


def _settings(chance: random.Random) -> Case:
    pairs = [
        f"{chance.choice(KEYS)}{chance.choice(['=', '=', '=', '=', '', '=='])}{chance.choice(VALUES)}"
        for _ in range(chance.randrange(1, 4))
    ]
    return Case({}, {"pairs": pairs, "server": chance.randrange(8)})


def _check_settings(case: Case, folder: Path) -> None:
    servers = _servers()
    found = servers[case.facts["server"] % len(servers)]
    assert found.answer is not None
    try:
        changes = parse_settings(case.facts["pairs"], scenario=True)
        scenario = scenario_of(found.log.facts, changes)
    except SettingError as told:
        assert str(told)  # noqa: PT017
        return
    after = found.answer.predict(scenario)
    document = whatif_document(found.log.facts, changes, found.answer.predict(None), after, scenario.notes)
    text = to_json(document)
    assert not OBEYED.search(text)
    json.loads(text)
    for name in ("ttft_s", "e2e_s", "itl_s"):
        points = [v for v in after[name].values() if v is not None]
        assert points == sorted(points), (name, points)
        assert all(math.isfinite(v) and v >= 0 for v in points), (name, points)
    for name in ("preemptions", "recomputed_tokens", "generation_tokens_per_s", "duration_s"):
        assert after[name] is None or (math.isfinite(after[name]) and after[name] >= 0), name


def _workload(chance: random.Random) -> Case:
    name = chance.choice(sorted(WORKLOADS))
    texts = (*NUMBERS, *HOSTILE[:30])
    damages = [
        (chance.choice(DAMAGES), chance.random() * 0.999, chance.choice(texts)) for _ in range(chance.randrange(1, 4))
    ]
    config: dict[str, Any] = dict(CONFIG)
    config |= {"engine": chance.choice(["vllm-v1", "vllm-v1", "vllm-v0", "x"])}
    for _ in range(chance.choice([0, 0, 1, 2])):
        config[chance.choice([*config, "watermark", "policy", "delay_factor"])] = chance.choice(
            [0, 1, -1, 10**18, 0.5, 1e308, None, "8", [], {}, True, 2]
        )
    sets = [
        f"{chance.choice(['max_num_seqs', 'arrival_scale', 'num_blocks', 'watermark', 'policy'])}={chance.choice(VALUES)}"
        for _ in range(chance.choice([0, 0, 1]))
    ]
    files = {name: damaged(WORKLOADS[name], damages), "config.json": json.dumps(config).encode()}
    return Case(files, {"name": name, "sets": sets})


def _check_workload(case: Case, folder: Path) -> None:
    lay_out(case, folder)
    name, answer = case.facts["name"], folder / "answer.json"
    arguments: list[str | Path] = ["replay", folder / name, "--json", answer]
    arguments += [] if name == "golden.jsonl" else ["--config", folder / "config.json"]
    for pair in case.facts["sets"]:
        arguments += ["--set", pair]
    result = run(*arguments)
    if result is not None:
        assert not OBEYED.search(result.output.replace("\n", " ")), result.output
        if result.exit_code == 0:
            found = answer.read_text(encoding="utf-8")
            assert "NaN" not in found
            json.loads(found)


SETTING_TARGETS = {
    "whatif": Target(_settings, _check_settings, share=2),
    "replay": Target(_workload, _check_workload, share=2),
}
