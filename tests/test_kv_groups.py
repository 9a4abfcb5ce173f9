"""KV-cache groups off a start's lines, and what the settings and the documents say of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.diagnosis.candidates import candidates
from logscope.evidence.context import Context
from logscope.evidence.preemptions import Logged
from logscope.evidence.pressure import full_pct
from logscope.server.engines import EngineFacts, EngineLog, KvCache, engine_config
from logscope.server.kv_groups import blocks_per_request, blocks_range, layout_of
from logscope.server.scenario import scenario_of
from logscope.server.settings import SETTINGS, Acceptance, SettingError, parse_settings
from reference_engine.model.kv_group import KvGroup, groups_from_records

EXAMPLES = json.loads((Path(__file__).parent / "data" / "groups" / "loglines.json").read_text(encoding="utf-8"))


def _records(example: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups of an example as `kv_groups` names them."""
    layers = {layer["kind"]: layer for layer in example["layers"]}
    found = []
    for group in example["kv_groups"]:
        record = {key: group[key] for key in ("kind", "block_size", "layers")}
        record.update({key: layers[group["kind"]][key] for key in ("window", "chunk") if key in layers[group["kind"]]})
        if group["kind"] == "mamba":
            record.update(mode=example["mamba_cache_mode"], spec_blocks=example["num_spec_tokens"])
        found.append(record)
    return found


def _printed(example: dict[str, Any]) -> tuple[int, float]:
    text = "\n".join(example["log"])
    tokens = re.search(r"cache size: ([\d,]+) tokens", text)
    concurrency = re.search(r"per request: ([\d.]+)x", text)
    assert tokens is not None
    assert concurrency is not None
    return int(tokens[1].replace(",", "")), float(concurrency[1])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e['version']}-{e['name']}")
def test_the_printed_capacity_gives_the_blocks(example: dict[str, Any]) -> None:
    groups = groups_from_records(_records(example))
    length, budget = example["max_model_len"], example["max_num_batched_tokens"]
    batches = 2 if example["async"] else 1
    one = blocks_per_request(groups, example["version"], length, budget, batches)
    assert one == example["blocks_per_request"]
    found = blocks_range(groups, example["version"], one, length, *_printed(example))
    assert found is not None
    assert found[0] <= example["num_blocks"] <= found[1]
    # until 0.19.1 the printed tokens are rounded to the number of groups
    assert found[1] - found[0] < (len(groups) if example["version"] == "0.19.1" else 1)


def _start(version: str, architecture: str, *lines: str, args: str = "") -> str:
    """A start's log with these sizing lines."""
    head = "(EngineCore pid=9) INFO 11-30 10:00:0{} [x.py:1] {}"
    first = f"(APIServer pid=8) INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version {version}"
    told = [
        first,
        head.format(0, f"Resolved architecture: {architecture}"),
        head.format(0, "Using max model len 131072"),
    ]
    told += [head.format(1, line) for line in lines]
    stats = (
        "Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9.0 tokens/s, Running: 1 reqs, "
    )
    return "\n".join(
        [*told, head.format(9, stats + "Waiting: 0 reqs, GPU KV cache usage: 5.0%, Prefix cache hit rate: 0.0%")]
    )


def _engine(text: str, tmp_path: Path, *more: str) -> dict[str, Any]:
    log = tmp_path / "server.log"
    log.write_text(text + "\n", encoding="utf-8")
    done = CliRunner().invoke(cli, ["analyze", str(log), "--no-replay", "--json", "-", *more])
    assert done.exit_code == 0, done.output
    engine: dict[str, Any] = json.loads(done.stdout)["engines"][0]
    return engine


CAPACITY = "GPU KV cache size: {} tokens, Maximum concurrency for 131,072 tokens per request: {}x"


def test_a_known_architecture_gives_the_groups(tmp_path: Path) -> None:
    text = _start("0.28.0", "GptOssForCausalLM", CAPACITY.format("2,053,902", "15.67"))
    settings = ("--set", "max_num_batched_tokens=4096")  # two batches of it are in flight
    engine = _engine(text, tmp_path, *settings)
    assert engine["kv_cache"]["num_blocks"] == 136533
    assert [g["kind"] for g in engine["config"]["kv_groups"]] == ["full", "sliding"]
    assert engine["config_basis"]["num_blocks"] == "inferred"


@pytest.mark.parametrize(
    ("architecture", "model", "count"),
    [
        ("FalconH1ForCausalLM", "tiiuae/Falcon-H1-7B-Instruct", 2),
        ("GraniteMoeHybridForCausalLM", "ibm-granite/granite-4.0-h-small", 10),
        ("GraniteMoeHybridForCausalLM", "ibm-granite/granite-4.0-micro", None),  # attends in all layers
        ("BambaForCausalLM", "ibm-ai-platform/Bamba-9B-v2", 11),
        ("JambaForCausalLM", "ai21labs/Jamba-v0.1", 8),
        ("JambaForCausalLM", "ai21labs/something-newer", None),
        ("Lfm2ForCausalLM", "LiquidAI/LFM2-1.2B", 3),
        ("Lfm2MoeForCausalLM", "LiquidAI/LFM2-24B-A2B", 4),
    ],
)
def test_models_with_states_by_name(architecture: str, model: str, count: int | None) -> None:
    values = {"max_model_len": 8192, "max_num_batched_tokens": 2048, "enable_prefix_caching": False, "block_size": 400}
    layout = layout_of(values, {"architecture": architecture, "model": model}, "0.32.0", None, None)
    assert (layout and len(layout.groups)) == count


def test_groups_can_be_given(tmp_path: Path) -> None:
    text = _start("0.28.0", "SomethingNewForCausalLM", CAPACITY.format("2,053,902", "15.67"))
    groups = '[{"kind": "full", "block_size": 16}, {"kind": "sliding", "block_size": 16, "window": 128}]'
    settings = ("--set", "max_num_batched_tokens=4096", "--set", f"kv_groups={groups}")
    engine = _engine(text, tmp_path, *settings)
    assert engine["kv_cache"]["num_blocks"] == 136533
    assert engine["config_basis"]["kv_groups"] == "given"


def test_the_window_follows_from_blocks_and_tokens() -> None:
    values = {"max_model_len": 2048, "max_num_batched_tokens": 512, "num_blocks": 300, "block_size": 32}
    more = {"kv_group_sizes": "(32, 32)", "architecture": "SomethingNewForCausalLM"}
    layout = layout_of(values, more, "0.32.0", 5851, 2.86)
    assert layout is not None
    assert [(g.kind, g.block_size, g.window) for g in layout.groups] == [("full", 32, 0), ("sliding", 32, 256)]


@pytest.mark.parametrize(
    ("value", "what"),
    [("[]", "must be a list"), ("{", "JSON list"), ('[{"kind": "ring", "block_size": 16}]', "kind is 'ring'"),
     ('[{"kind": "full", "block_size": 0}]', "block_size is 0"), ('[{"kind": "sliding", "block_size": 16}]', "window"),
     ('[{"kind": "full", "block_size": 16, "size": 1}]', "unknown key 'size'")],
)  # fmt: skip
def test_groups_that_are_none_are_refused_with_a_sentence(value: str, what: str) -> None:
    with pytest.raises(SettingError, match=re.escape(what)):
        parse_settings([f"kv_groups={value}"])


def test_a_small_cache_is_full_when_the_next_block_does_not_fit() -> None:
    groups = [{"kind": "full", "block_size": 784}, *({"kind": "mamba", "block_size": 784, "mode": "align"},) * 3]
    config = {"num_blocks": 48, "kv_groups": groups}
    facts = EngineFacts(0, 0, 0, "V1", "0.30.0", None, None, config, {}, KvCache())
    assert 91.5 < full_pct(facts) <= 93.6  # three of 47 blocks are free at 93.6 %, and a request asks for four
    assert full_pct(EngineFacts(0, 0, 0, "V1", "0.30.0", None, None, {"num_blocks": 48}, {}, KvCache())) == 95.0


def test_one_group_of_full_attention_is_the_default() -> None:
    assert KvGroup() == groups_from_records([{"kind": "full", "block_size": 16}])[0]


def test_without_prefix_caching_a_state_is_one_block() -> None:
    groups = [{"kind": "full", "block_size": 32}, {"kind": "mamba", "block_size": 32, "mode": "align"}]
    config = dict.fromkeys(SETTINGS) | {"num_blocks": 9, "block_size": 32, "max_model_len": 4096, "kv_groups": groups}
    facts = EngineFacts(0, 0, 0, "V1", "0.32.0", None, None, config, {}, KvCache())
    changed = engine_config(facts, {"enable_prefix_caching": False})
    assert changed is not None
    assert changed.kv_groups is not None
    assert (changed.kv_groups[1].mode, changed.kv_groups[1].block_size) == ("none", 4096)


def _hybrid(**settings: Any) -> EngineFacts:
    groups = [{"kind": "full", "block_size": 544}, {"kind": "mamba", "block_size": 544, "mode": "align"}]
    config = dict.fromkeys(SETTINGS) | {"num_blocks": 48, "block_size": 544, "max_model_len": 4096, "kv_groups": groups}
    return EngineFacts(0, 0, 0, "V1", "0.32.0", None, None, config | settings, {}, KvCache())


def test_an_8_bit_cache_lengthens_blocks_that_are_as_large_as_a_state() -> None:
    changed = scenario_of(_hybrid(), {"kv_cache_dtype": "fp8"}).config
    assert changed.num_blocks == 48
    assert changed.kv_groups is not None
    assert [group.block_size for group in changed.kv_groups] == [1088, 1088]


def test_states_have_places_for_as_many_drafts_as_there_are() -> None:
    facts = _hybrid(num_spec_tokens=2, acceptance=1.2)
    now, none = engine_config(facts), engine_config(facts, {"num_spec_tokens": 0})
    assert now is not None
    assert none is not None
    assert now.kv_groups is not None
    assert none.kv_groups is not None
    assert (now.kv_groups[1].spec_blocks, none.kv_groups[1].spec_blocks) == (2, 0)
    assert (now.num_spec_tokens, none.num_spec_tokens) == (2, 0)


def test_advice_for_states_is_to_leave_a_prefix_cache_that_is_never_hit() -> None:
    windows = pl.DataFrame({"hit_pct": [0.0, 0.3], "kv_pct": [90.0, 95.0], "running": [9.0, 9.0]})
    context = Context(EngineLog(_hybrid(enable_prefix_caching=True), {}), windows, Logged(), {})
    tried = [c.changes for c in candidates(context, "kv-capacity", out_of_memory=False)]
    assert {"enable_prefix_caching": False} in tried
    assert not any("block_size" in changes for changes in tried)  # it follows from the states
    hit = replace(context, windows=windows.with_columns(hit_pct=pl.lit(40.0)))
    assert {"enable_prefix_caching": False} not in [
        c.changes for c in candidates(hit, "kv-capacity", out_of_memory=False)
    ]


@pytest.mark.parametrize(("accepted", "tried"), [(0.1, [2, 0]), (2.5, [2])])
def test_advice_for_drafts_is_fewer_of_them_or_none(accepted: float, tried: list[int]) -> None:
    facts = replace(_hybrid(num_spec_tokens=4, acceptance=accepted), acceptance=Acceptance(accepted, 4.0, 0.01))
    context = Context(EngineLog(facts, {}), None, Logged(), {})
    found = candidates(context, "kv-capacity", out_of_memory=False)
    assert [c.changes["num_spec_tokens"] for c in found if "num_spec_tokens" in c.changes] == tried
