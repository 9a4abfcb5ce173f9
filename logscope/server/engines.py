"""Who the servers were: one `EngineLog` for each engine of each start of each server in the input."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any

import polars as pl

from logscope.server.defaults import fill_defaults
from logscope.server.kv_groups import layout_of
from logscope.server.settings import Acceptance, Configuration, acceptance_of, gather
from logscope.server.unsupported import DECLINED, unsupported_features
from parsers.families import FORMATS
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.model.kv_group import KvGroup, group_record, groups_from_records, several_groups
from reference_engine.v1.profile import release_numbers

__all__ = ["EngineFacts", "EngineLog", "KvCache", "engine_config", "engine_logs", "impossible_setting"]

_V1_PROCESS = re.compile(r"EngineCore|Worker_(?:TP|PP|DP|EP)|WorkerProc|VllmWorker(?:-\d| rank)")
_V1_FILES = frozenset(
    f"{name}.py"
    for name in (
        *("loggers", "async_llm", "core", "core_client", "kv_cache_utils", "kv_cache_manager", "block_pool"),
        *("gpu_worker", "gpu_model_runner", "cpu_model_runner", "dump_input", "jit_monitor", "multiproc_executor"),
    )
)
_V0_FILES = frozenset(
    f"{name}.py"
    for name in (
        *("async_llm_engine", "metrics", "model_runner", "model_runner_base", "multiproc_worker_utils"),
        *("executor_base", "gpu_executor", "distributed_gpu_executor", "multiproc_gpu_executor", "ray_gpu_executor"),
    )
)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_ENGINE_FAMILIES = ("stats", "iteration", "preemption")


@dataclass(frozen=True, slots=True)
class KvCache:
    """The KV cache: size in tokens, blocks (V1: with the null block), tokens a block, bytes; None where the log does not say."""

    tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of one engine. `engine` is "V0" or "V1"; `config` holds every key of `SETTINGS`, `basis` how each is known."""

    server: int
    run: int
    engine_index: int
    engine: str | None
    version: str | None
    start: datetime | None
    end: datetime | None
    config: dict[str, Any]
    basis: dict[str, str]
    kv: KvCache
    more: dict[str, Any] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    started_in_log: bool = False
    device: str | None = None
    acceptance: Acceptance | None = None

    @property
    def seat_setting(self) -> str:
        """Which setting limits how many requests run at once: `max_num_active_seqs` where it is the lower one."""
        most, active = self.config.get("max_num_seqs"), self.config.get("max_num_active_seqs")
        return "max_num_active_seqs" if active and (not most or active < most) else "max_num_seqs"

    @property
    def seats(self) -> int | None:
        """How many requests may run at once, None where the log does not tell."""
        found: int | None = self.config.get(self.seat_setting)
        return found

    @property
    def declined(self) -> tuple[str, ...]:
        """The features for which nothing is replayed."""
        return tuple(name for name in self.unsupported if name in DECLINED)


@dataclass(frozen=True, slots=True)
class EngineLog:
    """One engine's facts and frames; `stats`, `iteration` and `preemption` are its own, the rest its server run's."""

    facts: EngineFacts
    frames: dict[str, pl.DataFrame]
    engines_in_run: int = 1

    def get(self, family: str) -> pl.DataFrame | None:
        """The family's frame, or None where it has no row."""
        frame = self.frames.get(family)
        return frame if frame is not None and frame.height else None


def engine_logs(frames: Mapping[str, pl.DataFrame], given: Mapping[str, Any] | None = None) -> list[EngineLog]:
    """Split the frames by server, run and engine, and gather each engine's facts; `given` are the user's own (`--set`)."""
    found: list[EngineLog] = []
    # Cut once for all starts: a crash loop has thousands.
    parts = {name: frame.partition_by("server", "run", as_dict=True) for name, frame in frames.items()}
    engines = _indices(frames)
    for server, run in sorted({key for part in parts.values() for key in part}):
        of_run = {
            name: part[server, run] if (server, run) in part else frames[name].clear() for name, part in parts.items()
        }
        indices = sorted(engines.get((server, run), ())) or [0]
        own = {name: of_run[name] for name in _ENGINE_FAMILIES if name in of_run}
        # Lines over all engines (`N Engines Aggregated`) count for a single engine of the log.
        by_engine = {} if len(indices) == 1 else _by_engine(own)
        for index in indices:
            of_engine = {**of_run, **{name: p.get((index,), own[name].clear()) for name, p in by_engine.items()}}
            facts = _facts(server, run, index, of_engine, given, of_run.get("stats"))
            found.append(EngineLog(facts, {k: v for k, v in of_engine.items() if v.height}, len(indices)))
    return found


def _indices(frames: Mapping[str, pl.DataFrame]) -> Mapping[tuple[int, int], set[int]]:
    """The engines of each start (server, run), as far as lines name them."""
    found: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for name in _ENGINE_FAMILIES:
        if name in frames:
            for server, run, index in (
                frames[name]
                .filter(~_companions(frames[name]))
                .select("server", "run", "engine_index")
                .unique()
                .iter_rows()
            ):
                if index is not None:
                    found[server, run].add(index)
    return found


def _companions(frame: pl.DataFrame) -> pl.Series:
    """Statistics rows beside the per-engine line (drafts, KV transfers): they name no engine, so none is known by them."""
    return frame["running"].is_null() if "running" in frame.columns else pl.repeat(False, frame.height, eager=True)


def _by_engine(frames: Mapping[str, pl.DataFrame]) -> dict[str, dict[tuple[Any, ...], pl.DataFrame]]:
    return {name: frame.partition_by("engine_index", as_dict=True) for name, frame in frames.items()}


def _facts(
    server: int,
    run: int,
    index: int,
    frames: Mapping[str, pl.DataFrame],
    given: Mapping[str, Any] | None,
    run_stats: pl.DataFrame | None,
) -> EngineFacts:
    """One engine's facts; lines about drafts (in `run_stats`, those of all its start) name no engine."""
    rows = _setup_rows(frames)
    configuration = gather(rows, given)
    configuration.more["chosen_budget"] = _chosen_budget(rows)
    runtime = frames.get("runtime")
    version = _last(rows, "version") or (_last(runtime.rows(named=True), "version") if runtime is not None else None)
    engine = _engine_of(rows, frames, version)
    device = _device(frames, configuration)
    kv = _kv_cache(rows, configuration)
    if kv.num_blocks is not None and configuration.values.get("num_blocks") is None:
        configuration.set("num_blocks", kv.num_blocks, "measured")
    if configuration.values.get("block_size") is None and kv.tokens is None:
        configuration.set("block_size", _block_size_of(rows, kv.num_blocks), "measured")
    acceptance = acceptance_of(run_stats) if engine == "V1" else None
    _note_acceptance(configuration, acceptance)
    fill_defaults(configuration, engine, version, device)
    kv = _in_groups(kv, configuration, rows, version) or _complete(kv, configuration)
    start, end = _span(frames)
    return EngineFacts(
        server,
        run,
        index,
        engine,
        version,
        start,
        end,
        configuration.values,
        configuration.basis,
        kv,
        configuration.more,
        unsupported_features(configuration, frames),
        any(r["variant"].startswith(("init", "api_version", "version_model")) for r in rows),
        device,
        acceptance,
    )


def _note_acceptance(configuration: Configuration, acceptance: Acceptance | None) -> None:
    """What the lines about drafts tell of the settings: accepted tokens a step, and how many drafts there are where the start does not say."""
    if acceptance is None:
        return
    if configuration.values.get("num_spec_tokens") is None and acceptance.by_position:
        configuration.set("num_spec_tokens", len(acceptance.by_position), "measured")
    if configuration.basis.get("acceptance") != "given":
        configuration.set("acceptance", round(acceptance.accepted, 4), "measured")


def _block_size_of(rows: list[dict[str, Any]], blocks: int | None) -> int | None:
    """Tokens a block where the start prints blocks and how many full-length requests fit (V0 from 0.6.3 on, V1 until 0.7.3)."""
    told = [r for r in rows if r.get("max_concurrency") and r.get("max_model_len")]
    if not blocks or not told:
        return None
    size = told[-1]["max_concurrency"] * told[-1]["max_model_len"] / blocks
    nearest = min(BLOCK_SIZES, key=lambda known: abs(known - size))
    return nearest if abs(nearest - size) < nearest * 0.02 else None


def _chosen_budget(rows: list[dict[str, Any]]) -> int | None:
    """The token budget that the server's start prints and that its arguments do not give; None where either is not in the log."""
    arguments = [r for r in rows if r["variant"] == "api_version" and "args" in str(r["extra"])]
    printed = [r["max_num_batched_tokens"] for r in rows if r["variant"] == "chunked"]
    if not arguments or any(r["max_num_batched_tokens"] is not None for r in arguments):
        return None
    return next((n for n in printed if n is not None), None)


def _setup_rows(frames: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """The rows that tell the configuration: defaults first, then what the engine says of itself, then sizes, then what the user set."""
    rows: list[dict[str, Any]] = []
    for name in ("startup", "kv_sizing"):
        frame = frames.get(name)
        if frame is not None:
            rows += frame.rows(named=True)
    stats = frames.get("stats")
    if stats is not None and "num_gpu_blocks" in stats.columns and stats["num_gpu_blocks"].null_count() < stats.height:
        rows += stats.filter(pl.col("num_gpu_blocks").is_not_null()).rows(named=True)
    return sorted(rows, key=lambda r: r["order"])


def _last(rows: list[dict[str, Any]], name: str) -> Any:
    return next((r[name] for r in reversed(rows) if r.get(name) not in (None, "")), None)


def _engine_of(rows: list[dict[str, Any]], frames: Mapping[str, pl.DataFrame], version: Any) -> str | None:
    said = _last(rows, "engine")
    if said in ("V0", "V1"):
        return str(said)
    stats = frames.get("stats")
    variants = set(stats["variant"].to_list()) if stats is not None else set()
    preempted = frames.get("preemption")
    if preempted is not None and "v0_preempt_warning" in preempted["variant"].to_list():
        return "V0"
    if any(v.startswith("v0_") for v in variants):
        return "V0"
    if any(v.startswith("v1_") for v in variants) or "iteration" in frames:
        return "V1"
    if any(r["variant"].startswith("gpu_cpu_blocks") for r in rows):
        return "V0"
    starts = [r for r in rows if r["variant"] == "init_cfg"]
    # Until 0.7.0 the start does not name the engine: V1 is the one that speaks from core.py, and before 0.4.0 there is no version.
    if any(str(r["origin"]).startswith("core.py") for r in starts):
        return "V1"
    if any(r["version"] is None for r in starts):
        return "V0"
    return _engine_by_version(str(version)) if version else _engine_by_any_line(frames)


@cache
def _engine_of_variants() -> dict[tuple[str, str], str | None]:
    """The engine that alone prints a kind of line."""
    engines: dict[tuple[str, str], set[str]] = {}
    for format_ in FORMATS:
        engines.setdefault((format_.family, format_.variant), set()).add(format_.engine)
    return {kind: min(found) for kind, found in engines.items() if found in ({"V0"}, {"V1"})}


def _engine_by_any_line(frames: Mapping[str, pl.DataFrame]) -> str | None:
    """The engine that most lines are of: by the process and the source file that printed them, and by what they say."""
    votes: Counter[str] = Counter()
    for family, frame in frames.items():
        for process, origin, variant in frame.select("process", "origin", "variant").unique().iter_rows():
            file = str(origin or "").partition(":")[0].rpartition("/")[2]
            told = _engine_of_variants().get((family, variant))
            if _V1_PROCESS.match(str(process or "")) or file in _V1_FILES or "/v1/" in str(origin):
                told = "V1"
            elif file in _V0_FILES or str(process).startswith("VllmWorkerProcess"):
                told = "V0"
            if told:
                votes[told] += 1
    return votes.most_common(1)[0][0] if votes else None


def _engine_by_version(version: str) -> str | None:
    """Before 0.8.0 V0 is the default, from 0.11.0 there is only V1; in between V1 is the default."""
    key = release_numbers(version)
    return None if key is None else "V1" if key >= (0, 8, 0) else "V0"


def _device(frames: Mapping[str, pl.DataFrame], configuration: Configuration) -> str | None:
    for name in ("stats", "kv_sizing", "iteration"):
        frame = frames.get(name)
        if frame is not None and "device" in frame.columns and frame["device"].null_count() < frame.height:
            said = [d for d in frame["device"].to_list() if d]
            if said:
                return str(said[-1]).upper()
    platform = configuration.more.get("platform") or configuration.more.get("device")
    return str(platform).upper() if platform else None


def _kv_cache(rows: list[dict[str, Any]], configuration: Configuration) -> KvCache:
    tokens = [r["kv_cache_tokens"] for r in rows if r.get("kv_cache_tokens")]
    size = configuration.values.get("block_size")
    gib = _last(rows, "available_kv_cache_gib") or _last(rows, "kv_cache_gib")
    blocks = configuration.values.get("num_blocks")
    # Each worker prints its own size; the engine takes the smallest.
    return KvCache(min(tokens) if tokens else None, blocks, size, int(gib * 2**30) if gib else None)


def _in_groups(
    kv: KvCache, configuration: Configuration, rows: list[dict[str, Any]], version: str | None
) -> KvCache | None:
    """The cache of a model with several KV-cache groups, where the log (or the user) says which; else None."""
    told = [r["max_concurrency"] for r in rows if r.get("max_concurrency")]
    known = {**configuration.values, "num_blocks": kv.num_blocks}
    layout = layout_of(known, configuration.more, version, kv.tokens, told[-1] if told else None)
    if layout is None:
        return None
    size = layout.groups[0].block_size
    if layout.basis != "given":
        configuration.set("kv_groups", [group_record(group) for group in layout.groups], layout.basis)
    configuration.set("block_size", size, "measured" if kv.block_size == size else layout.basis)
    if kv.num_blocks is None:
        configuration.set("num_blocks", layout.num_blocks, "inferred")
    return KvCache(kv.tokens, layout.num_blocks, size, kv.bytes)


def _complete(kv: KvCache, configuration: Configuration) -> KvCache:
    size = configuration.values.get("block_size")
    blocks, tokens = configuration.values.get("num_blocks"), kv.tokens
    if size and blocks and tokens and configuration.basis.get("block_size") == "default" and tokens % blocks == 0:
        size = tokens // blocks
        configuration.set("block_size", size, "measured")
    if blocks is None and tokens and size:
        blocks = max(1, tokens // size)
        configuration.set(
            "num_blocks", blocks, "measured" if configuration.basis.get("block_size") == "measured" else "inferred"
        )
    if tokens is None and blocks and size:
        tokens = blocks * size
    return KvCache(tokens, blocks, size, kv.bytes)


def _span(frames: Mapping[str, pl.DataFrame]) -> tuple[datetime | None, datetime | None]:
    times = [t for frame in frames.values() for t in (frame["at"].min(), frame["at"].max()) if isinstance(t, datetime)]
    return (min(times), max(times)) if times else (None, None)


def _drafts(facts: EngineFacts, value: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Drafts for the reference engine, where it is known how many are accepted."""
    drafts, accepted = value["num_spec_tokens"] or 0, value["acceptance"]
    if not drafts or facts.engine == "V0" or (accepted is None and "num_spec_tokens" not in changes):
        return {}
    now, seen = facts.config["num_spec_tokens"], facts.acceptance
    if seen is not None and facts.basis.get("acceptance") == "measured" and "acceptance" not in changes:
        if now and drafts != now:
            accepted = seen.with_drafts(drafts, now)
        if now:
            # a drafter that often proposes nothing is taken as one that always proposes a few
            drafts = max(1, round(drafts * min(1.0, seen.drafted / now)), math.ceil(accepted))
    return {
        "num_spec_tokens": drafts,
        "spec_method": facts.more.get("spec_method") or "ngram",
        "acceptance": min(1.0, (accepted or 0.0) / drafts),
    }


def _groups(value: Mapping[str, Any]) -> tuple[KvGroup, ...] | None:
    """The groups for the reference engine; how states are kept follows from prefix caching, which a change may switch."""
    if not value["kv_groups"]:
        return None
    groups = groups_from_records(value["kv_groups"])
    caching, length = value["enable_prefix_caching"], value["max_model_len"]
    found = []
    drafts = value["num_spec_tokens"] or 0
    for group in groups:
        if group.is_state and group.spec_blocks != drafts and value["num_spec_tokens"] is not None:
            group = replace(group, spec_blocks=drafts)
        if group.is_state and caching is False and length:
            group = replace(group, mode="none", block_size=length, checkpoint=False)
        elif group.is_state and caching and group.mode == "none":
            group = replace(group, mode="align", block_size=groups[0].block_size)
        found.append(group)
    return several_groups(tuple(found))


def engine_config(facts: EngineFacts, changes: Mapping[str, Any] | None = None) -> EngineConfig | None:
    """The reference engine's configuration of a server, with `changes`; None where a size that it needs is not known, or is none that any has."""
    config = _engine_config(facts, changes or {})
    return config if changes or _impossible(config) is None else None


def impossible_setting(facts: EngineFacts) -> str | None:
    """What of a server's known configuration no server can have, as a sentence."""
    return _impossible(_engine_config(facts, {}))


def _impossible(config: EngineConfig | None) -> str | None:
    try:
        if config is not None:
            check_config(config)
    except ConfigError as error:
        return str(error)
    return None


def _engine_config(facts: EngineFacts, changes: Mapping[str, Any]) -> EngineConfig | None:
    value = {**facts.config, **changes}
    if not value.get("num_blocks") or not value.get("block_size"):
        return None
    v0 = facts.engine == "V0"
    more = facts.more
    asynchronous = more.get("async_scheduling")
    return EngineConfig(
        num_blocks=value["num_blocks"],
        block_size=value["block_size"],
        max_num_seqs=value["max_num_seqs"] or 256,
        max_num_active_seqs=None if v0 else value["max_num_active_seqs"],
        max_num_batched_tokens=value["max_num_batched_tokens"] or 2048,
        max_model_len=value["max_model_len"] or 8192,
        engine="vllm-v0" if v0 else "vllm-v1",
        version=facts.version or ("0.8.5" if v0 else "0.33.0"),
        enable_chunked_prefill=value["enable_chunked_prefill"]
        if value["enable_chunked_prefill"] is not None
        else not v0,
        enable_prefix_caching=value["enable_prefix_caching"] if value["enable_prefix_caching"] is not None else not v0,
        policy=value["policy"] or "fcfs",
        long_prefill_token_threshold=value["long_prefill_token_threshold"] or 0,
        reserve_full_isl=more.get("scheduler_reserve_full_isl")
        if isinstance(more.get("scheduler_reserve_full_isl"), bool)
        else None,
        watermark=value["watermark"],
        async_scheduling=asynchronous in (True, "enabled"),
        num_cpu_blocks=int(more.get("num_cpu_blocks") or 0),
        kv_groups=_groups(value),
        **_drafts(facts, value, changes),
        preemption_mode=more.get("preemption_mode") if more.get("preemption_mode") in ("recompute", "swap") else None,
    )
