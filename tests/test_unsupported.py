"""What a log shows of features that the replay does not model: each is named, and the replay widens or is declined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logscope.analysis import Analysis, analyze
from logscope.log.frames import read_log
from logscope.log.span import Span
from logscope.output.json import analysis_document
from logscope.server.settings import gather
from logscope.server.unsupported import DECLINED, DIFFUSION, POOLING, STATE_LAYERS, WINDOW_LAYERS, widened
from parsers.sources.source import expand
from tests.logs import access, analysed, parsed, stats_v0, stats_v1, v1_start

DATA = Path(__file__).parent / "data" / "unsupported"
INFO = "(APIServer pid=1) INFO 05-09 00:49:02 [x.py:1] "
WARNING = INFO.replace("INFO", "WARNING")
ENGINE = "INFO 05-09 00:49:01 [llm_engine.py:1] Initializing a V0 LLM engine (v0.8.5) with config: model='m', max_seq_len=4096, "
RECEIVED = "INFO 05-09 00:49:12 [logger.py:40] Received request c-1: params: "
SAMPLING = (
    "SamplingParams(n=1, temperature=0.0, stop=['guided_decoding=GuidedDecoding'], max_tokens=16, guided_decoding=None)"
)
STATS = [stats_v1(10 * i, 4, 0, 30.0) for i in range(1, 4)]


def served(*more: str, args: str = "") -> list[str]:
    return [*v1_start(more=args), *more, *STATS]


def named(folder: Path, lines: list[str]) -> tuple[str, ...]:
    (engine,) = analysed(folder, lines).engines
    return engine.log.facts.unsupported


@pytest.mark.parametrize(
    ("lines", "feature"),
    [
        # Speculative decoding: the arguments, the engine, the statistics.
        (served(args=", 'speculative_config': {'method': 'ngram'}"), "speculative decoding"),
        ([f"{ENGINE}speculative_config=SpeculativeConfig(draft_model='d', num_spec_tokens=5)", stats_v0(10, 1, 0, 1.0)], "speculative decoding"),
        (["INFO 05-09 00:49:00 api_server.py:1] args: Namespace(model='m', speculative_model='[ngram]')", stats_v0(10, 1, 0, 1.0)], "speculative decoding"),
        (served(INFO + "SpecDecoding metrics: Draft acceptance rate: 63.5%, Accepted: 5401 tokens, Drafted: 8505 tokens"), "speculative decoding"),
        # LoRA
        (served(args=", 'enable_lora': True, 'max_loras': 2"), "LoRA limits"),
        (served(f"{RECEIVED}{SAMPLING}, lora_request: LoRARequest(lora_name='a', lora_int_id=1, lora_path='p')."), "LoRA limits"),
        # The KV cache elsewhere
        (served(args=", 'kv_transfer_config': KVTransferConfig(kv_connector='LMCacheConnectorV1')"), "KV connectors"),
        (served(args=", 'kv_offloading_size': 32.0"), "KV connectors"),
        (served(INFO + "KV Transfer metrics: Num successful transfers=12, Avg xfer time (ms)=3.412"), "KV connectors"),
        (served(INFO + "SimpleCPUOffloadScheduler: Allocating 2048 CPU blocks (32.00 GB, mode=eager)"), "KV connectors"),
        (served(args=", 'decode_context_parallel_size': 2"), "context parallelism"),
        # Several kinds of layers
        (served(INFO + "Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size."), STATE_LAYERS),
        (served(INFO + "Auto-fit max_model_len: attention-free model, using derived max_model_len=131072"), STATE_LAYERS),
        (served(INFO + "Resolved architecture: NemotronHForCausalLM"), STATE_LAYERS),
        (served(INFO + "Resolved architecture: Gemma4ForCausalLM"), WINDOW_LAYERS),
        (served(WARNING + "Add 2 padding layers, may waste at most 9.09% KV cache memory"), WINDOW_LAYERS),
        # 8,000 tokens are 1.95 requests of 4,096; here five fit, so most layers keep a window.
        (served(INFO + "Maximum concurrency for 4,096 tokens per request: 5.10x"), WINDOW_LAYERS),
        # Pooling
        (served(args=", 'task': 'embed'"), POOLING),
        (served(args=", 'runner': 'pooling'"), POOLING),
        (served(INFO + "Supported tasks: ['embed', 'token_embed']"), POOLING),
        (served(f"{RECEIVED}PoolingParams(dimensions=None), lora_request: None."), POOLING),
        ([f"{ENGINE}pooler_config=PoolerConfig(pooling_type='CLS')", stats_v0(10, 1, 0, 1.0)], POOLING),
        ([*v1_start(), stats_v1(10, 4, 0, 0.0, generation=0.0, prompt=900.0), access("/v1/embeddings", "POST")], POOLING),
        # Scheduling
        (served(f"{RECEIVED}SamplingParams(n=1, max_tokens=16, guided_decoding=GuidedDecodingParams(json='x')), lora_request: None."), "structured output"),
        (served(f"{RECEIVED}SamplingParams(n=1, max_tokens=16, structured_outputs=StructuredOutputsParams(regex='x')), lora_request: None."), "structured output"),
        (served(stats_v1(40, 4, 3, 30.0, extra="Deferred: 2 reqs, ")), "deferred requests (structured output, transfers or LoRA limits)"),
        (served(f"{RECEIVED}SamplingParams(n=4, max_tokens=16), lora_request: None."), "several outputs a request"),
        ([f"{ENGINE}pipeline_parallel_size=2", stats_v0(10, 1, 0, 1.0)], "pipeline bubbles"),
        ([f"{ENGINE}num_scheduler_steps=8", stats_v0(10, 1, 0, 1.0)], "multi-step scheduling"),
        (served(INFO + "DiffusionDecoding metrics: Committed token throughput: 10.00 tokens/s, Mean denoising steps per canvas: 4.00, Mean tokens committed per denoising step: 2.00, Committed: 100 tokens, Denoising steps: 50, Canvas positions evaluated: 400"), DIFFUSION),
    ],
)  # fmt: skip
def test_what_the_log_shows_is_named(tmp_path: Path, lines: list[str], feature: str) -> None:
    assert named(tmp_path, lines) == (feature,)


@pytest.mark.parametrize(
    "lines",
    [
        served(),
        served(f"{RECEIVED}{SAMPLING}, lora_request: None."),
        served(args=", 'task': 'generate', 'runner': 'auto', 'speculative_config': None"),
        served(INFO + "Supported tasks: ['generate', 'score']"),
        served(INFO + "Resolved architecture: LlamaForCausalLM"),
        served(INFO + "Maximum concurrency for 4,096 tokens per request: 1.95x"),
        served(access("/v1/embeddings", "POST")),  # a generating server that is asked for embeddings
        [f"{ENGINE}speculative_config=None, pooler_config=None, num_scheduler_steps=1", stats_v0(10, 1, 0, 1.0)],
    ],
)  # fmt: skip
def test_a_plain_server_has_none(tmp_path: Path, lines: list[str]) -> None:
    assert named(tmp_path, lines) == ()


def test_hybrid_layers_that_vllm_made_alike_are_one_group(tmp_path: Path) -> None:
    lines = served(INFO + "Resolved architecture: GptOssForCausalLM", args=", 'disable_hybrid_kv_cache_manager': True")
    assert named(tmp_path, lines) == ()


def test_the_block_size_of_a_hybrid_model_is_that_of_its_state(tmp_path: Path) -> None:
    (engine,) = analysed(tmp_path, (DATA / "hybrid-model.log").read_text()).engines
    facts = engine.log.facts
    assert facts.config["block_size"] == 1056
    assert facts.basis["block_size"] == "measured"


def replayed(name: str) -> tuple[Analysis, dict[str, Any]]:
    data = read_log(expand([str(DATA / name)]), Span(), year=2026)
    found = analyze(data, with_advice=False)
    return found, analysis_document(found)


def features(document: dict[str, Any]) -> list[str]:
    return [f["facts"]["feature"] for f in document["findings"] if f["id"] == "unsupported-feature"]


def test_a_hybrid_model_is_not_replayed_and_the_answer_says_why() -> None:
    found, document = replayed("hybrid-model.log")
    assert found.engines[0].answer is None
    assert document["replay"]["unsupported"] == [STATE_LAYERS] == features(document)
    assert document["replay"]["declined"] == [STATE_LAYERS]
    assert document["replay"]["requests"] is None
    unknown = {"p50": None, "p90": None, "p99": None}
    assert document["latency"]["e2e_s"] == {**unknown, "low": unknown, "high": unknown}
    assert document["verdict"] == "kv-capacity"  # which the queues show by themselves


def test_drafts_are_replayed_with_the_acceptance_that_the_log_shows() -> None:
    found, document = replayed("speculative-decoding.log")
    answer = found.engines[0].answer
    assert answer is not None
    assert document["replay"]["unsupported"] == [] == features(document)
    assert answer.replay.config.num_spec_tokens > 0
    engine = document["engines"][0]
    assert engine["config"]["acceptance"] > 0
    assert engine["config_basis"]["acceptance"] == "measured"


def test_drafts_whose_acceptance_no_line_shows_are_replayed_with_wider_bounds(tmp_path: Path) -> None:
    lines = (DATA / "speculative-decoding.log").read_text().splitlines(keepends=True)
    data = parsed(tmp_path, "".join(line for line in lines if "SpecDecoding" not in line))
    found = analyze(data, with_advice=False)
    document = analysis_document(found)
    assert found.engines[0].answer is not None
    assert document["replay"]["unsupported"] == ["speculative decoding"] == features(document)
    counts = document["preemptions"]
    assert counts["high"] - counts["low"] >= 3


def test_a_poor_fit_is_said_aloud_and_decides_nothing() -> None:
    found, document = replayed("speculative-decoding.log")
    answer = found.engines[0].answer
    assert answer is not None
    assert not answer.fair
    said = [f for f in document["findings"] if "mean_fit" in f.get("facts", {})]
    assert [f["facts"]["mean_fit"] for f in said] == [round(answer.mean_fit, 3)]
    assert document["verdict"] == "kv-capacity"  # by the queues, not by the replay's ledger


@pytest.mark.parametrize(
    ("counts", "wide"),
    [
        ((8.0, 10.0, 12.0), (6.0, 10.0, 14.0)),
        ((100.0, 100.0, 100.0), (75.0, 100.0, 125.0)),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 3.0)),
    ],
)
def test_bounds_widen(counts: tuple[float, float, float], wide: tuple[float, float, float]) -> None:
    assert widened(*counts) == wide


def test_nothing_is_declined_without_a_replay(tmp_path: Path) -> None:
    data = parsed(tmp_path, (DATA / "hybrid-model.log").read_text())
    assert analysis_document(analyze(data, replay=False))["replay"] is None


def test_the_declined_are_of_another_kind() -> None:
    assert set(DECLINED) == {POOLING, STATE_LAYERS, DIFFUSION}


def test_a_setting_that_is_no_number_is_not_known() -> None:
    """A damaged line, or a client's text where vLLM prints a number."""
    rows = [
        {"decode_context_parallel_size": "</script>", "num_scheduler_steps": "8", "swap_space": True},
        {"num_cpu_blocks": "inf", "total_gpu_gib": 79.2, "max_num_seqs": "inf", "device": "cuda"},
    ]
    found = gather(rows)
    assert found.more == {"num_scheduler_steps": 8, "total_gpu_gib": 79.2, "device": "cuda"}
    assert found.values["max_num_seqs"] is None


def test_the_groups_of_a_known_architecture_are_modelled(tmp_path: Path) -> None:
    assert named(tmp_path, served(INFO + "Resolved architecture: GptOssForCausalLM")) == ()
