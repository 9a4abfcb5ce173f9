"""A server's configuration as its log tells it: each setting with the basis of its value."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from logscope.sanitize import LARGEST_NUMBER, json_document
from logscope.server.flags import ALIASES
from reference_engine.model import ConfigError
from reference_engine.model.kv_group import group_record, groups_from_records

__all__ = ["SETTINGS", "Acceptance", "Configuration", "SettingError", "acceptance_of", "gather", "parse_settings"]

SETTINGS: dict[str, type] = {
    "max_num_seqs": int,
    "max_num_active_seqs": int,
    "max_num_batched_tokens": int,
    "num_blocks": int,
    "block_size": int,
    "max_model_len": int,
    "policy": str,
    "enable_chunked_prefill": bool,
    "enable_prefix_caching": bool,
    "long_prefill_token_threshold": int,
    "watermark": float,
    "gpu_memory_utilization": float,
    "kv_cache_dtype": str,
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "num_spec_tokens": int,
    "acceptance": float,
    "kv_groups": list,
}
"""The keys of `--set` that describe a server, in the order in which they are shown."""

SCENARIO_SETTINGS: dict[str, type] = {"replicas": int, "arrival_scale": float}

# What vLLM calls a setting -> what it is called here. Later sources overrule earlier ones.
_ALIASES = {
    **{name: key for key, name in ALIASES.items()},
    "max_seq_len": "max_model_len",
    "auto_fit_max_model_len": "max_model_len",
    "num_gpu_blocks": "num_blocks",
}
_MORE = (
    *("async_scheduling", "swap_space", "preemption_mode", "scheduler_reserve_full_isl"),
    *("max_num_partial_prefills", "max_long_partial_prefills", "scheduler_delay_factor", "num_cpu_blocks"),
    *("data_parallel_size", "speculative_config", "speculative_model", "enable_lora", "kv_transfer_config"),
    *("kv_offloading_size", "disable_hybrid_kv_cache_manager", "num_scheduler_steps", "runner", "task"),
    *("pooler_config", "supported_tasks", "architecture", "mamba_cache_mode", "kv_group_sizes", "padding_pct"),
    *("prefill_context_parallel_size", "decode_context_parallel_size", "device", "platform", "model"),
    *("quantization", "enforce_eager"),
    # Memory, in GiB a GPU, as the sizing lines print it.
    *("total_gpu_gib", "weights_gib", "available_kv_cache_gib", "activation_gib", "non_torch_gib"),
    *("cudagraph_gib", "requested_gib", "free_gib"),
)


_LONGEST_TEXT = 4096
_DRAFTS = re.compile(r"num_spec(?:ulative)?_tokens['\"]?\s?[=:]\s?(\d{1,4})")
_DRAFTER = re.compile(r"method['\"]?\s?[=:]\s?['\"](\w{1,40})['\"]")
_DRAFT_MODEL = re.compile(r"model['\"]?\s?[=:]\s?['\"]")
# What a drafter's name holds -> the method of the reference engine; heads (Medusa) and lookups hold no places for the next drafts.
_METHODS = (
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("mtp", "mtp"),
    ("dflash", "eagle"),
    ("draft", "draft_model"),
    ("", "ngram"),
)

_NUMBERS = frozenset(
    (
        "swap_space",
        "max_num_partial_prefills",
        "max_long_partial_prefills",
        "scheduler_delay_factor",
        "num_cpu_blocks",
        "data_parallel_size",
        "kv_offloading_size",
        "num_scheduler_steps",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        *(name for name in _MORE if name.endswith("_gib")),
    )
)
"""Those of `_MORE` that are numbers, or nothing at all."""


class SettingError(ValueError):
    """A `--set` that is none; the text lists the keys that are known."""


@dataclass(slots=True)
class Configuration:
    """Values and their basis; a setting that is not known is None. `more` holds facts beside the settings."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(SETTINGS))
    basis: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def set(self, name: str, value: Any, basis: str) -> None:
        """Note a value, unless it is none of the setting's kind."""
        fitted = _fit(name, value)
        if fitted is not None:
            self.values[name] = fitted
            self.basis[name] = basis


def gather(rows: Iterable[Mapping[str, Any]], given: Mapping[str, Any] | None = None) -> Configuration:
    """Read a run's `startup` and `kv_sizing` rows (dicts of fields) in their order; `given` overrules what the log says."""
    found = Configuration()
    for row in rows:
        for name, value in _flat(row):
            if value is None:
                continue
            key = _ALIASES.get(name, name)
            if key in SETTINGS:
                found.set(key, value, "measured")
            elif key in _MORE and (fact := _fact(key, value)) is not None:
                found.more[key] = fact
    _read_drafts(found)
    for name, value in (given or {}).items():
        if name in SETTINGS:
            found.set(name, value, "given")
    return found


def _read_drafts(found: Configuration) -> None:
    """How many drafts a step has, and who makes them, from the text of `speculative_config`."""
    text = str(found.more.get("speculative_config") or "")[:_LONGEST_TEXT]
    if text in ("", "None"):
        return
    number = _DRAFTS.search(text)
    if number is not None:
        found.set("num_spec_tokens", int(number[1]), "measured")
    method = _DRAFTER.search(text)
    said = method[1].lower() if method else "draft" if _DRAFT_MODEL.search(text) else ""
    found.more["spec_method"] = next(name for part, name in _METHODS if part in said)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts fared, per step of a request: `accepted` and `drafted` tokens on the mean, and `spread`, by which `accepted` may be off.

    `by_position`: the part of each that came from the first draft, the second, … (empty where no line tells).
    """

    accepted: float
    drafted: float
    spread: float
    by_position: tuple[float, ...] = ()

    def with_drafts(self, drafts: int, now: int) -> float:
        """Accepted tokens a step with another number of drafts than `now`: those of their positions, each further one like the last."""
        parts = list(self.by_position)
        if not parts:
            # each draft has the same chance, given that those before it were accepted
            chance = _chance(self.accepted, now)
            parts = [chance ** (i + 1) for i in range(now)]
        fall = parts[-1] / parts[-2] if len(parts) > 1 and parts[-2] > 0 else min(0.95, parts[-1])
        while len(parts) < drafts:
            parts.append(parts[-1] * min(fall, 0.95))
        return sum(parts[:drafts])


def _chance(accepted: float, drafts: int) -> float:
    """The chance of each draft by which so many of a row are accepted on the mean."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle ** (i + 1) for i in range(drafts)) < accepted else (low, middle)
    return low


_ALWAYS = 0.93  # of a request's steps with drafts, from where on each has them (its first token has none)
_FEW_DRAFTS = 20


def acceptance_of(stats: pl.DataFrame | None) -> Acceptance | None:
    """How drafts fared by `SpecDecoding metrics` lines; None without one that tells.

    What a line calls acceptance is per verification. A drafter that looks text up (ngram) often proposes nothing: the tokens of the
    statistics lines less those accepted are a request's steps, with drafts or without.
    """
    names = ("accepted_tokens", "drafted_tokens", "mean_acceptance_length")
    if stats is None or any(name not in stats.columns for name in names):
        return None
    rows = stats.filter(pl.col("drafted_tokens") > 0).sort("order")
    accepted, drafted = float(rows["accepted_tokens"].sum() or 0), float(rows["drafted_tokens"].sum() or 0)
    if drafted < _FEW_DRAFTS or not 0 <= accepted <= drafted:
        return None
    lengths = rows.filter(pl.col("mean_acceptance_length") > 1)
    verified = float((lengths["accepted_tokens"] / (lengths["mean_acceptance_length"] - 1)).sum() or 0.0)
    verified *= accepted / max(float(lengths["accepted_tokens"].sum() or 0.0), 1.0)
    parts = _positions(rows)
    if verified <= 0:
        verified = drafted / max(1, len(parts))
    steps = max(verified, _request_steps(stats, rows, accepted))
    if verified >= _ALWAYS * steps:
        steps = verified
    each = accepted / steps
    spread = math.sqrt(max(each, 0.05) / steps) + 0.01 * each
    scale = accepted / sum(parts) / steps if parts and sum(parts) > 0 else 0.0
    return Acceptance(each, drafted / steps, spread, tuple(part * scale for part in parts))


def _positions(rows: pl.DataFrame) -> list[float]:
    """Accepted drafts by position, over all lines that tell."""
    if "extra" not in rows.columns:
        return []
    found: list[float] = []
    for text, accepted in rows.select("extra", "accepted_tokens").iter_rows():
        told = _POSITIONS.search(str(text or "")[:_LONGEST_TEXT])
        rates = [float(rate) for rate in _RATE.findall(told[1])[:_MOST_POSITIONS]] if told else []
        if sum(rates) <= 0:
            continue
        found += [0.0] * (len(rates) - len(found))
        for i, rate in enumerate(rates):
            found[i] += rate / sum(rates) * (accepted or 0)
    return found


def _request_steps(stats: pl.DataFrame, rows: pl.DataFrame, accepted: float) -> float:
    """Steps of requests in the intervals of lines about drafts: the tokens that came less those accepted."""
    if "generation_throughput" not in stats.columns or "running" not in stats.columns:
        return 0.0
    told = stats.filter(pl.col("running").is_not_null() & pl.col("at").is_not_null()).sort("order")
    if told.height < 2:
        return 0.0
    gaps = told["at"].diff().dt.total_microseconds() / 1e6
    usual = float(gaps.filter(gaps > 0.5).median() or 10.0)
    seconds = gaps.fill_null(usual).clip(0.0, 1.5 * usual)
    near = told.with_columns(tokens=told["generation_throughput"].cast(pl.Float64) * seconds).select("order", "tokens")
    beside = rows.select("order").join_asof(near, on="order", strategy="nearest")
    return float(beside["tokens"].sum() or 0.0) - accepted


_POSITIONS = re.compile(r'"per_position_acceptance":\s?"?\[?([\d., ]{3,1024})')
_RATE = re.compile(r"\d?\.\d{1,6}")
_MOST_POSITIONS = 64


def _flat(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The row's fields, its `args`, and what the frame kept as JSON in `extra`; the explicit arguments last."""
    yield from ((k, v) for k, v in row.items() if k not in ("args", "extra"))
    for name in ("extra", "args"):
        value = row.get(name)
        if isinstance(value, str) and value.startswith("{"):
            try:
                value = json_document(value)
            except ValueError:
                continue
        if isinstance(value, Mapping):
            nested = value.get("args")
            yield from ((k, v) for k, v in value.items() if not isinstance(v, (dict, list)))
            if isinstance(nested, Mapping):
                yield from nested.items()


def _fact(name: str, value: Any) -> Any:
    """A fact beside the settings; None where it is not of its kind (a damaged line)."""
    if name not in _NUMBERS:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if isinstance(value, bool) or not math.isfinite(number):
        return None
    if isinstance(value, (int, float)):
        return value
    return int(number) if number == int(number) else number


def _fit(name: str, value: Any) -> Any:
    kind = SETTINGS[name]
    if kind is bool:
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    if kind is str:
        text = str(value)
        return text if text and text != "None" else None
    if kind is list:
        return value if isinstance(value, list) else None
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(number) or number < 0:
        return None
    return int(number) if kind is int else number


_EXAMPLES: dict[type, str] = {int: "12", float: "0.9", bool: "true"}


def parse_settings(pairs: Iterable[str], *, scenario: bool = False) -> dict[str, Any]:
    """Read `KEY=VALUE` texts of `--set`.

    With `scenario` also `replicas` and `arrival_scale`. Raises SettingError for an unknown key or a value of the wrong kind.
    """
    known = {**SETTINGS, **(SCENARIO_SETTINGS if scenario else {})}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sep, text = pair.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        name = _ALIASES.get(name, name)
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f", did you mean {near[0]}?" if near else "; write KEY=VALUE."
            raise SettingError(f"--set {pair}: unknown setting {name!r}{hint} (all: {', '.join(known)})")
        if not sep or not text.strip():
            raise SettingError(f"--set {pair}: value missing; write {name}={_EXAMPLES.get(known[name], 'VALUE')}")
        found[name] = _parse_value(name, text.strip(), known[name], pair)
    return found


def _parse_value(name: str, text: str, kind: type, pair: str) -> Any:
    if kind is str:
        if name == "policy" and text not in POLICIES:
            raise SettingError(f"--set {pair}: policy must be {' or '.join(POLICIES)}")
        return text
    if kind is list:
        return _parse_groups(text)
    if kind is bool:
        value = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }.get(text.lower())
        if value is None:
            raise SettingError(f"--set {pair}: {name} must be true or false")
        return value
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        kind_words = "a whole number" if kind is int else "a number"
        raise SettingError(f"--set {pair}: {name} must be {kind_words}") from None
    if number != number or number in (float("inf"), float("-inf")) or number < 0 or (number == 0 and name in _POSITIVE):
        raise SettingError(f"--set {pair}: {name} must be a number above 0")
    if name in _SHARES and number > 1:
        raise SettingError(f"--set {pair}: {name} must be a share, at most 1")
    if number > LARGEST_NUMBER:
        raise SettingError(f"--set {pair}: {name} is larger than any server has")
    if kind is int and number != int(number):
        raise SettingError(f"--set {pair}: {name} must be a whole number")
    return int(number) if kind is int else number


def _parse_groups(text: str) -> list[dict[str, Any]]:
    """The KV-cache groups of `--set kv_groups=[{"kind": "full", "block_size": 16}, …]`."""
    try:
        return [group_record(group) for group in groups_from_records(json_document(text))]
    except ValueError as error:  # a ConfigError too
        said = str(error) if isinstance(error, ConfigError) else "kv_groups is a JSON list of objects"
        raise SettingError(f"--set kv_groups: {said}") from None


POLICIES = ("fcfs", "priority")
_SHARES = ("gpu_memory_utilization", "watermark")
_POSITIVE = (
    *("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "max_model_len"),
    *("tensor_parallel_size", "pipeline_parallel_size", "replicas", "arrival_scale", "gpu_memory_utilization"),
)
