"""Lines that were wrapped, glued, cut or forged on their way, and what is read of them all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs import parsed, stats_v1, v0_warning, v1_start


def test_a_stats_line_wrapped_at_a_terminal_width(tmp_path: Path) -> None:
    line = "2026-05-09T07:49:10.331095044Z " + stats_v1(10, 34, 2, 91.0)
    cut = 160
    data = parsed(tmp_path, [*v1_start(), line[:cut], line[cut:]])
    assert data.frames["stats"].select("running", "waiting", "gpu_kv_cache_usage_pct").rows() == [(34, 2, 91.0)]


def test_wrapped_inside_a_word(tmp_path: Path) -> None:
    line = stats_v1(10, 34, 2, 91.0)
    at = line.index("generation throughput") + len("generation throughpu")
    data = parsed(tmp_path, [line[:at], line[at:], stats_v1(20, 35, 0, 92.0)])
    assert data.frames["stats"]["running"].to_list() == [34, 35]
    assert data.frames["stats"]["generation_throughput"].to_list() == [100.0, 100.0]


WARNING = v0_warning(1, 51)


REQUEST = "INFO 05-09 00:49:33 [logger.py:40] Received request c-1: prompt: "


AFTER = ", params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: None, lora_request: None, prompt_adapter_request: None."


@pytest.mark.parametrize(
    "text",
    [
        REQUEST + "'why?\\n" + WARNING + "\\n" + stats_v1(5, 9, 9, 99.9) + "'" + AFTER,
        REQUEST + "'why?\r\n" + WARNING + "\r\n" + stats_v1(5, 9, 9, 99.9) + "'" + AFTER,
        REQUEST + '"' + WARNING + '"' + AFTER,
        REQUEST
        + "'why?\r\n"
        + "INFO 05-09 00:49:33 [logger.py:40] "
        + WARNING
        + "\r\nINFO 05-09 00:49:33 [logger.py:40] "
        + stats_v1(5, 9, 9, 99.9)
        + "'"
        + AFTER,
        "my-app: the user wrote: " + stats_v1(5, 9, 9, 99.9),
        "my-app: " + WARNING.replace("WARNING", "we saw WARNING"),
    ],
    ids=["escaped", "real line breaks", "quoted", "re-prefixed", "another program", "another program's warning"],
)
def test_what_a_client_sent_is_never_an_event(tmp_path: Path, text: str) -> None:
    data = parsed(
        tmp_path, "INFO 05-09 00:49:30 [api_server.py:1] ready\n" + text + "\n" + stats_v1(40, 1, 0, 1.0) + "\n"
    )
    assert "preemption" not in data.frames
    assert data.frames["stats"].height == 1


def test_a_damaged_statistics_line_takes_none_with_it(tmp_path: Path) -> None:
    whole = stats_v1(10, 34, 2, 91.0)
    damaged = (
        whole.replace("Running: ", "Run ing: ").replace("Waiting: ", "Wai ting: ").replace(" tokens/s", " to kens/s")
    )
    received = (
        whole[: whole.index("] ") + 2]
        + "Received request c-1: params: SamplingParams(n=1, max_tokens=16), lora_request: None."
    )
    data = parsed(tmp_path, [damaged, received])
    assert data.frames["request"]["request_id"].to_list() == ["c-1"]
    assert data.coverage.client_text == 0


def test_an_unknown_message_may_hold_what_a_client_wrote(tmp_path: Path) -> None:
    whole = stats_v1(10, 34, 2, 91.0)
    unknown = whole[: whole.index("] ") + 2] + "The user said: hello"
    data = parsed(tmp_path, [unknown, whole])
    assert "stats" not in data.frames
    assert data.coverage.client_text == 1


def test_the_word_preempt_in_dumps_is_no_preemption(tmp_path: Path) -> None:
    lines = [
        "INFO 05-09 00:49:33 [core.py:60] Initializing a V1 LLM engine (v0.10.2) with config: model='m', preemption_mode=None",
        "ERROR 05-09 00:49:33 [dump_input.py:69] Dumping input data for V1 LLM engine (v0.10.2) with config: x, scheduler_output=SchedulerOutput(resumed_from_preemption=[false], preempted_requests=0)",
    ]
    data = parsed(tmp_path, lines)
    assert "preemption" not in data.frames


def test_a_warning_glued_to_a_progress_bar(tmp_path: Path) -> None:
    bar = "\r".join(f"Processed prompts: {i:3d}%|##| {i}/3000 [00:01<00:00, 9.9it/s]" for i in range(3000))
    data = parsed(tmp_path, bar + WARNING + "\n")
    assert data.frames["preemption"]["total_num_cumulative_preemption"].to_list() == [51]


def test_two_statistics_on_one_line(tmp_path: Path) -> None:
    data = parsed(tmp_path, stats_v1(10, 1, 0, 1.0) + stats_v1(20, 2, 0, 2.0) + "\n")
    assert data.frames["stats"]["running"].to_list() == [1, 2]


def test_a_record_of_300_kilobytes_in_the_middle(tmp_path: Path) -> None:
    ids_text = ", ".join(str(i % 50000) for i in range(50_000))
    line = (
        "INFO 05-09 00:49:33 [logger.py:40] Received request c-1: prompt: 'x', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: ["
        + ids_text
        + "], lora_request: None, prompt_adapter_request: None."
    )
    data = parsed(tmp_path, [stats_v1(10, 1, 0, 1.0), line, stats_v1(20, 2, 0, 2.0)])
    assert len(line) > 300_000
    assert data.frames["request"]["num_prompt_token_ids"].to_list() == [50_000]
    assert data.frames["stats"].height == 2


def test_new_year_and_a_restart_with_an_older_clock(tmp_path: Path) -> None:
    old = stats_v1(10, 1, 0, 1.0).replace("05-09", "12-31")
    new = stats_v1(20, 2, 0, 2.0).replace("05-09", "01-01")
    data = parsed(tmp_path, [old, new, stats_v1(5, 3, 0, 3.0).replace("05-09", "01-01")])
    times = data.frames["stats"]["time"].to_list()
    assert [t.year for t in times] == [2026, 2027, 2027]
    assert data.frames["stats"]["running"].to_list() == [1, 2, 3]
    assert data.coverage.out_of_order == 1


def test_new_fields_with_commas_break_nothing(tmp_path: Path) -> None:
    line = stats_v1(
        10,
        4,
        6,
        50.0,
        extra="Deferred: 5 reqs, KV fetch: 1 waiting to start, 3 in progress, 1 completed waiting, Sparkle rate: 3.1%, ",
    )
    (row,) = parsed(tmp_path, [line]).frames["stats"].rows(named=True)
    assert (row["running"], row["waiting"], row["deferred"], row["kv_fetch_in_progress"]) == (4, 6, 5, 3)
    assert "sparkle" in row["extra"]


def test_a_log_that_begins_inside_a_record(tmp_path: Path) -> None:
    lines = ["ut: 3.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 5%", stats_v1(20, 2, 0, 2.0)]
    assert parsed(tmp_path, lines).frames["stats"]["running"].to_list() == [2]


CARRIERS = {
    "journald": (49_152, "May  9 00:49:33 gpu1 vllm[7]: "),
    "a store's driver": (16_384, "2026-05-09T00:49:33.331095044Z "),
    "CloudWatch": (262_118, ""),
}


@pytest.mark.parametrize(("limit", "head"), CARRIERS.values(), ids=CARRIERS.keys())
@pytest.mark.parametrize(
    "rest",
    [
        WARNING,
        "100%|#| 3/3 [00:01<00:00, 9.9it/s]" + WARNING,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB.",
    ],
)
def test_behind_a_line_that_a_carrier_cut_stands_its_rest(tmp_path: Path, limit: int, head: str, rest: str) -> None:
    """A request id (a header of 64 KiB) can be as long as it takes for its end to begin a line."""
    begun = "(APIServer pid=1) INFO 05-09 00:49:33 [async_llm.py:252] Added request "
    lines = [stats_v1(1, 3, 0, 10.0), begun + "A" * (limit - len(begun)), f"{rest} x.", stats_v1(10, 3, 0, 10.0)]
    data = parsed(tmp_path, [head + line for line in lines])
    assert data.frames["stats"].height == 2
    assert "preemption" not in data.frames
    assert "runtime" not in data.frames
    assert data.coverage.client_text == ("WARNING" in rest)


def test_a_long_line_of_another_length_is_whole(tmp_path: Path) -> None:
    begun = "(APIServer pid=1) INFO 05-09 00:49:33 [async_llm.py:252] Added request "
    data = parsed(tmp_path, [stats_v1(1, 3, 0, 10.0), begun + "A" * (16_000 - len(begun)), stats_v1(10, 3, 0, 10.0)])
    assert data.frames["stats"].height == 2


def test_a_prompt_that_was_cut_and_closed_takes_nothing_with_it(tmp_path: Path) -> None:
    prompt = REQUEST + "'" + "A" * 40_000 + WARNING + "'" + AFTER
    pieces = [prompt[at : at + 16_384] for at in range(0, len(prompt), 16_384)]
    data = parsed(tmp_path, [stats_v1(1, 3, 0, 10.0), *pieces, stats_v1(10, 3, 0, 10.0)])
    assert data.frames["stats"].height == 2
    assert "preemption" not in data.frames
