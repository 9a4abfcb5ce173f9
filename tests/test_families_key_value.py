"""Key/value lines: what is new, moved or missing is kept or left out, and breaks nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.families import match
from parsers.families.formats import slug, split_pairs

HEAD = "Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 9 reqs, Waiting: 4 reqs, "


def stats(rest: str) -> dict[str, object]:
    found = match(HEAD + rest, prefixed=True)
    assert found is not None
    assert found.family == "stats"
    return found.fields


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("Foo rate: 3.1%", "foo_rate_pct", 3.1),
        ("Step time: 12.5 ms", "step_time_ms", 12.5),
        ("Uptime: 7 s", "uptime_seconds", 7),
        ("Held memory: 1.5 GiB", "held_memory_gib", 1.5),
        ("Evicted: 12 tokens", "evicted_tokens", 12),
        ("Swap rate: 8.5 tokens/s", "swap_rate_tokens_per_s", 8.5),
        ("Paused: 3 reqs", "paused", 3),
        ("Mode: eager", "mode", "eager"),
    ],
)
def test_an_unknown_field_is_kept_under_its_slug_and_unit(part: str, name: str, value: object) -> None:
    fields = stats(f"{part}, GPU KV cache usage: 99.9%")
    assert fields[name] == value
    assert fields["gpu_kv_cache_usage_pct"] == 99.9
    assert stats(f"GPU KV cache usage: 99.9%, {part}.")[name] == value


def test_a_field_may_hold_commas() -> None:
    fields = stats("KV fetch: 1 waiting to start, 0 in progress, 2 completed waiting, GPU KV cache usage: 50.0%")
    assert (fields["kv_fetch_waiting"], fields["kv_fetch_in_progress"], fields["kv_fetch_completed"]) == (1, 0, 2)
    assert fields["gpu_kv_cache_usage_pct"] == 50.0


@pytest.mark.parametrize("device", ["GPU", "CPU", "XPU", "NPU", "TPU", "GPU + host"])
def test_the_usage_is_that_of_the_device_named(device: str) -> None:
    fields = stats(f"{device} KV cache usage: 12.5%")
    assert (fields["device"], fields["gpu_kv_cache_usage_pct"]) == (device, 12.5)


def test_a_hit_rate_that_is_not_printed_is_not_zero() -> None:
    assert "prefix_cache_hit_rate_pct" not in stats("GPU KV cache usage: 12.5%")


@pytest.mark.parametrize("cut", ["Avg generation throughpu\nt: 3.0", "Avg generation\nthroughput: 3.0"])
def test_a_line_wrapped_at_the_terminals_width_is_read(cut: str) -> None:
    message = HEAD.replace("Avg generation throughput: 3.0", cut) + "GPU KV cache usage: 99.9%"
    found = match(message, prefixed=True)
    assert found is not None
    assert found.fields["running"] == 9


@given(st.lists(st.tuples(st.sampled_from(["A", "B b", "C"]), st.integers(0, 99)), min_size=1, max_size=6))
def test_pairs_come_back_in_order(pairs: list[tuple[str, int]]) -> None:
    text = ", ".join(f"{key}: {value}" for key, value in pairs)
    assert split_pairs(text) == [(key, str(value)) for key, value in pairs]


def test_slug() -> None:
    assert slug(" Avg xfer time (ms)") == "avg_xfer_time_ms"


@pytest.mark.parametrize("length", range(len(HEAD) - 12, len(HEAD) + 24))
def test_the_last_number_of_a_cut_line_is_not_believed(length: int) -> None:
    whole = HEAD.replace("Waiting: 4", "Waiting: 417") + "GPU KV cache usage: 99.9%, Prefix cache hit rate: 38.2%"
    found = match(whole[:length], prefixed=True)
    assert found is not None
    assert found.fields.get("waiting") in (None, 417)
    assert found.fields.get("gpu_kv_cache_usage_pct") in (None, 99.9)
