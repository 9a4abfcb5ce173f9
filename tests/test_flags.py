"""No flag is named that a version lacks, and each default is that version's."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from logscope.server.defaults import Deployment, default_for
from logscope.server.flags import flag_for, parsed_version, release_of

TABLE = json.loads(resources.files("logscope.server").joinpath("flags.json").read_text(encoding="utf-8"))
RELEASES = TABLE["releases"]


def test_versions_are_in_order() -> None:
    assert [parsed_version(release) for release in RELEASES] == sorted(parsed_version(release) for release in RELEASES)
    assert parsed_version("0.9.2") < parsed_version("0.10.0") < parsed_version("0.10.1") < parsed_version("0.10.1.1")
    assert parsed_version("0.8.5") < parsed_version("0.8.5.post1") < parsed_version("0.9.0")
    assert (
        parsed_version("0.11.1.dev3+gabc")
        < parsed_version("0.11.1rc1")
        < parsed_version("v0.11.1")
        == parsed_version("0.11.1.0")
    )
    with pytest.raises(ValueError):
        parsed_version("nightly")


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.8.5.post1", "0.8.5.post1"), ("0.4.0.post1", "0.4.0"), ("0.10.1.1+cu128", "0.10.1.1"), ("0.11.1rc2.dev1+g1", "0.11.0"),
     ("0.99.0", RELEASES[-1]), ("0.0.9", None), ("main", None)],
)  # fmt: skip
def test_a_version_between_releases_counts_as_the_earlier(version: str, release: str | None) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("setting", TABLE["settings"])
def test_a_flag_exists_exactly_in_its_versions(setting: str) -> None:
    ranges = [part.split("..") for versions, _ in TABLE["settings"][setting]["flags"] for part in versions.split(",")]
    for index, release in enumerate(RELEASES):
        has = any(RELEASES.index(r[0]) <= index <= RELEASES.index(r[-1]) for r in ranges)
        assert (flag_for(setting, release) is not None) is has, release


@pytest.mark.parametrize(
    ("setting", "version", "value", "text"),
    [
        ("max_num_seqs", "0.32.0", 12, "--max-num-seqs 12"),
        ("num_blocks", "0.32.0", 500, "--num-gpu-blocks-override 500"),
        ("policy", "0.9.2", "priority", "--scheduling-policy priority"),
        ("gpu_memory_utilization", "0.32.0", 0.95, "--gpu-memory-utilization 0.95"),
        ("preemption_mode", "0.5.0", "swap", "--preemption_mode swap"),
        ("preemption_mode", "0.5.1", "swap", "--preemption-mode swap"),
        ("tensor_parallel_size", "0.10.2", 2, "--tensor-parallel-size 2"),
        ("enable_prefix_caching", "0.6.4", True, "--enable-prefix-caching"),
        ("enable_prefix_caching", "0.6.4", False, None),
        ("enable_prefix_caching", "0.6.5", False, "--no-enable-prefix-caching"),
        ("enable_chunked_prefill", "0.6.0", False, "--enable-chunked-prefill=False"),
        ("enable_chunked_prefill", "0.12.0", False, "--no-enable-chunked-prefill"),
        ("scheduler_reserve_full_isl", "0.20.0", False, "--no-scheduler-reserve-full-isl"),
        ("watermark", "0.24.0", 0.05, "--watermark 0.05"),
    ],
)
def test_the_spelling_is_that_of_the_version(setting: str, version: str, value: object, text: str | None) -> None:
    spelling = flag_for(setting, version)
    assert spelling is not None
    assert spelling.text(value) == text


@pytest.mark.parametrize(
    ("setting", "version", "engine"),
    [("watermark", "0.23.0", "V1"), ("watermark", "0.10.2", "V0"), ("swap_space", "0.18.0", None), ("swap_space", "0.12.0", "V1"),
     ("preemption_mode", "0.9.0", "V1"), ("preemption_mode", "0.11.0", None), ("policy", "0.8.5", "V1"), ("scheduler_reserve_full_isl", "0.18.1", "V1"),
     ("num_scheduler_steps", "0.10.1", None), ("max_num_partial_prefills", "0.20.0", "V1"), ("weather", "0.32.0", None), ("max_num_seqs", "0.0.1", None)],
)  # fmt: skip
def test_what_the_version_or_its_engine_lacks_is_not_named(setting: str, version: str, engine: str | None) -> None:
    assert flag_for(setting, version, engine=engine) is None


def test_v1_ignores_a_false_chunked_prefill_until_0_11_1() -> None:
    old, new = (flag_for("enable_chunked_prefill", version, engine="V1") for version in ("0.10.2", "0.11.1"))
    assert old is not None
    assert new is not None
    assert old.text(False) is None
    assert new.text(False) == "--no-enable-chunked-prefill"


def test_without_a_version_only_what_all_share_is_named() -> None:
    assert flag_for("max_num_seqs", None, engine="V1") is not None
    assert flag_for("watermark", None, engine="V1") is None
    assert flag_for("swap_space", None) is None


BIG = Deployment(device_gib=79.1)
SMALL = Deployment(device_gib=22.0)
V0 = Deployment(engine="V0", max_model_len=16384)


@pytest.mark.parametrize(
    ("setting", "version", "on", "value"),
    [
        ("max_num_seqs", "0.8.5", V0, 256),
        ("max_num_seqs", "0.8.2", Deployment(), 1024),
        ("max_num_seqs", "0.10.2", BIG, 1024),
        ("max_num_seqs", "0.10.2", SMALL, 256),
        ("max_num_seqs", "0.10.2", Deployment(device_gib=79.1, device_name="NVIDIA A100-SXM4-80GB"), 256),
        ("max_num_seqs", "0.32.0", Deployment(device="cpu", world_size=2), 256),
        ("max_num_seqs", "0.32.0", Deployment(), None),
        ("max_num_seqs", "0.32.0", Deployment(device_gib=22.0, max_num_batched_tokens=100), 100),
        ("max_num_batched_tokens", "0.1.7", V0, 2560),
        ("max_num_batched_tokens", "0.5.0", V0, 16384),
        ("max_num_batched_tokens", "0.8.5", Deployment(engine="V0", max_model_len=1024), 2048),
        ("max_num_batched_tokens", "0.6.4", Deployment(engine="V0", max_model_len=65536), 512),
        ("max_num_batched_tokens", "0.6.5", Deployment(engine="V0", max_model_len=65536), 2048),
        ("max_num_batched_tokens", "0.32.0", Deployment(device="cpu", world_size=2), 4096),
        ("max_num_batched_tokens", "0.10.2", BIG, 8192),
        ("max_num_batched_tokens", "0.10.2", SMALL, 2048),
        ("max_num_batched_tokens", "0.29.0", Deployment(device_gib=178.0), 16384),
        ("max_num_batched_tokens", "0.29.0", Deployment(device_gib=22.0, offline=True), 8192),
        ("max_num_batched_tokens", "0.20.0", Deployment(device_gib=22.0, throughput_mode=True), 4096),
        (
            "max_num_batched_tokens",
            "0.20.0",
            Deployment(device_gib=22.0, max_model_len=8192, enable_chunked_prefill=False),
            8192,
        ),
        ("gpu_memory_utilization", "0.19.1", BIG, 0.9),
        ("gpu_memory_utilization", "0.20.0", BIG, 0.92),
        ("enable_prefix_caching", "0.8.5", V0, False),
        ("enable_prefix_caching", "0.8.5", BIG, True),
        ("enable_chunked_prefill", "0.6.0", Deployment(engine="V0", max_model_len=65536), True),
        ("watermark", "0.8.5", V0, 0.01),
        ("watermark", "0.24.0", BIG, 0.0),
        ("scheduler_reserve_full_isl", "0.18.1", BIG, False),
        ("scheduler_reserve_full_isl", "0.19.0", BIG, True),
        ("policy", "0.4.0", V0, "fcfs"),
        ("block_size", "0.32.0", BIG, 16),
        ("tensor_parallel_size", "0.32.0", BIG, 1),
        ("max_logprobs", "0.4.3", V0, 5),
        ("max_seq_len_to_capture", "0.11.0", BIG, None),
        ("weather", "0.32.0", BIG, None),
        ("max_num_seqs", "nightly", BIG, None),
    ],
)
def test_defaults(setting: str, version: str, on: Deployment, value: object) -> None:
    assert default_for(setting, version, on) == value
