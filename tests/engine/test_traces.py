"""Reading workloads: each known format by its rows, and each kind of bad row by the sentence that it gives."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces import Workload, read_workload, write_requests
from reference_engine.traces.workload_file import read_requests

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"


def read(tmp_path: Path, content: str | bytes, name: str = "workload.txt") -> Workload:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_workload(path)


def rows(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def own(**changes: object) -> dict[str, object]:
    row: dict[str, object] = {"request_id": "r0", "arrival_s": 0.5, "prompt_tokens": 100, "output_tokens": 20}
    row.update(changes)
    return {key: value for key, value in row.items() if value != "absent"}


def assert_read_or_named(path: Path) -> None:
    """Whatever the file holds: requests, or a sentence that names it. Anything else fails the test."""
    sentence = str(path)
    requests: tuple[Request, ...] = ()
    try:
        requests = read_workload(path).requests
    except WorkloadError as error:
        sentence = str(error)
    assert requests or sentence.startswith(f"{path}: ")


# ---- public traces


def test_mooncake_rows_share_the_512_token_blocks_whose_ids_agree() -> None:
    workload = read_workload(DATA / "mooncake.jsonl.gz")
    first, second = workload.requests[:2]
    assert (workload.format, len(workload.requests)) == ("mooncake", 40)
    assert (first.prompt_tokens, first.output_tokens, first.arrival_s) == (6758, 500, 0.0)
    assert first.prompt is not None
    assert second.prompt is not None
    assert first.prompt[0] == second.prompt[0] == ("h0", 512)
    assert first.prompt[1] != second.prompt[1]
    assert first.prompt[-1] == ("h13", 6758 - 13 * 512)
    assert max(request.arrival_s for request in workload.requests) < 60  # seconds, not milliseconds
    for request in workload.requests:
        assert sum(length for _, length in request.prompt or ()) == request.prompt_tokens


def test_azure_and_vidur_tell_the_same_requests() -> None:
    azure, vidur = read_workload(DATA / "azure.csv"), read_workload(DATA / "vidur.csv")
    assert (azure.format, vidur.format) == ("azure", "vidur")
    assert [(r.prompt_tokens, r.output_tokens) for r in azure.requests] == [
        (r.prompt_tokens, r.output_tokens) for r in vidur.requests
    ]
    assert [r.arrival_s for r in azure.requests] == pytest.approx([r.arrival_s for r in vidur.requests], abs=2e-6)
    assert azure.requests[0].arrival_s == 0


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", 4.314579),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", 0.99007),
        ("2024-05-10T00:00:00Z", "2024-05-10T02:00:00+01:00", 3600.0),
        ("2023-12-31 23:59:59", "2024-01-01 00:00:00", 1.0),
    ],
)
def test_azure_times_in_every_spelling(tmp_path: Path, first: str, second: str, seconds: float) -> None:
    content = f"TIMESTAMP,ContextTokens,GeneratedTokens\r\n{first},10,1\r\n{second},10,1\r\n"
    assert read(tmp_path, content).requests[1].arrival_s == pytest.approx(seconds, abs=1e-6)


def test_columns_may_stand_in_any_order_and_more_may_be_there(tmp_path: Path) -> None:
    content = "request_id,num_decode_tokens,arrived_at,num_prefill_tokens,pd_ratio\n7,44,1.5,374,8.5\n"
    (request,) = read(tmp_path, content).requests
    assert (request.arrival_s, request.prompt_tokens, request.output_tokens) == (1.5, 374, 44)


def test_burstgpt_leaves_failed_requests_out_and_says_so(tmp_path: Path) -> None:
    content = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n50,GPT-4,10,2,12,API log\n"
    )
    workload = read(tmp_path, content)
    assert [(r.arrival_s, r.prompt_tokens) for r in workload.requests] == [(0, 472), (45, 10)]
    assert workload.notes == ("1 failed requests (no response tokens) are left out",)


# ---- requests of one's own


def test_own_rows_beside_a_configuration(tmp_path: Path) -> None:
    workload = read(
        tmp_path,
        rows(
            own(priority=-1, prefix_id="system", prefix_tokens=64),
            own(request_id=7, arrival_s=0.25, prefix_id=None, prefix_tokens=0),
            own(request_id="r2", arrival_s=0.75, prefix_id="system", prefix_tokens=100, abort_s=3),
        ),
    )
    assert workload.requests == (
        Request(7, 100, 20, 0.25),
        Request("r0", 100, 20, 0.5, priority=-1, prompt=(("prefix:system", 64), ("own:'r0'", 36))),
        Request("r2", 100, 20, 0.75, prompt=(("prefix:system", 100),), abort_s=3.0),
    )
    assert workload.setup is None
    assert not workload.by_step


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    workload = read(tmp_path, rows(own(request_id="absent"), own(request_id="absent")))
    assert [request.id for request in workload.requests] == [0, 1]


def test_rows_may_arrive_by_step(tmp_path: Path) -> None:
    row = {"request_id": 1, "arrival_step": 3, "prompt_tokens": 5, "output_tokens": 1}
    workload = read(tmp_path, rows(row))
    assert workload.by_step
    assert workload.requests[0].arrival_step == 3


@given(
    st.lists(
        st.builds(
            Request,
            id=st.integers(0, 10**6) | st.text(min_size=1, max_size=5),
            prompt_tokens=st.integers(2, 5000),
            output_tokens=st.integers(1, 5000),
            arrival_s=st.floats(0, 1e6),
            priority=st.integers(-5, 5),
            prompt=st.none(),
            abort_s=st.none() | st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=20,
        unique_by=lambda request: request.id,
    )
)
def test_what_is_written_is_read_back(requests: list[Request]) -> None:
    out = io.StringIO()
    write_requests(out, requests)
    out.seek(0)
    expected = tuple(sorted(requests, key=lambda request: request.arrival_s))
    assert read_requests("written", out).requests == expected


def test_a_shared_prefix_is_written_and_read_back() -> None:
    request = Request("a", 10, 2, 0.0, prompt=(("prefix:p", 4), ("own:'a'", 6)))
    out = io.StringIO()
    write_requests(out, [request])
    out.seek(0)
    assert read_requests("written", out).requests == (request,)


# ---- golden headers

HEADER = {
    "schema": "oracle/1",
    "engine": "vllm-v1",
    "version": "0.24.0",
    "config": {"num_blocks": 21, "block_size": 16, "async": True, "watermark": None},
    "requests": [
        {"arrival_step": 0, "max_tokens": 5, "priority": 1, "prompt": [["p", 20], ["u0", 3]], "id": 0, "arrival_time": 0.5}
    ],
}  # fmt: skip


def test_a_golden_header_brings_its_configuration(tmp_path: Path) -> None:
    workload = read(tmp_path, rows(HEADER, {"s": 0, "n": {"0": 23}}))
    assert workload.format == "golden"
    assert workload.by_step
    assert workload.setup is not None
    assert workload.setup.config.version == "0.24.0"
    assert workload.setup.config.async_scheduling
    assert workload.setup.clock is None
    assert workload.requests == (
        Request(0, 23, 5, arrival_step=0, arrival_time=0.5, priority=1, prompt=(("p", 20), ("u0", 3))),
    )  # fmt: skip


def test_a_header_may_give_seconds_and_a_clock(tmp_path: Path) -> None:
    clock = {"base_s": 0.01, "per_prefill_token_s": 1e-4, "per_decode_s": 1e-4, "per_kv_token_s": 0}
    request = {"id": 0, "arrival_s": 1.5, "max_tokens": 5, "prompt": [["u0", 3]]}
    header = {**HEADER, "config": {"num_blocks": 9, "step_time": clock}, "requests": [request]}
    workload = read(tmp_path, rows(header))
    assert not workload.by_step
    assert workload.requests[0].arrival_s == 1.5
    assert workload.setup is not None
    assert workload.setup.clock == LinearStepTime(0.01, 1e-4, 1e-4, 0.0)


# ---- vLLM's benchmark


@pytest.mark.parametrize(
    ("record", "prompt", "output"),
    [
        ({"prompt": "x" * 41}, 11, 256),
        ({"prompt": "x" * 40, "output_tokens": 33}, 10, 33),
        ({"prompt": [1, 2, 3], "output_len": 4}, 3, 4),
        ({"prompt": "ignored", "prompt_len": 1024, "output_len": 128}, 1024, 128),
        ({"prompt_len": 1024, "expected_output_len": 128}, 1024, 128),
        ({"question_id": 81, "category": "writing", "turns": ["y" * 8, "z"]}, 2, 256),
        ({"id": "a", "conversations": [{"from": "human", "value": "h" * 12}, {"from": "gpt", "value": "g" * 20}]}, 3, 5),
    ],
)  # fmt: skip
def test_benchmark_dataset_rows(tmp_path: Path, record: dict[str, object], prompt: int, output: int) -> None:
    workload = read(tmp_path, rows(record, record))
    assert workload.format == "benchmark-dataset"
    assert [(r.prompt_tokens, r.output_tokens, r.arrival_s) for r in workload.requests] == [(prompt, output, 0.0)] * 2
    assert any("arrive at once" in note for note in workload.notes)


def test_sharegpt_is_one_list_and_short_conversations_are_passed_over(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "hi"}]
    content = json.dumps([{"conversations": turns}, {"conversations": turns[:1]}], indent=1)
    workload = read(tmp_path, content, "ShareGPT.json")
    assert [(r.prompt_tokens, r.output_tokens) for r in workload.requests] == [(3, 1)]
    assert any("estimated" in note for note in workload.notes)


RESULT = {
    "date": "20261129-101010", "backend": "openai", "duration": 2.5, "completed": 2, "request_rate": 4.0,
    "total_input_tokens": 30, "total_output_tokens": 9, "input_lens": [10, 20, 30], "output_lens": [4, 5, 0],
    "ttfts": [0.1, 0.1, 0.0], "errors": ["", "", "Timeout"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "arrivals", "note"),
    [
        ({"start_times": [100.25, 100.0, 101.0]}, [0.25, 0.0], None),
        ({}, [0.0, 0.25], "4 requests a second"),
        ({"request_rate": "inf"}, [0.0, 0.0], "at once"),
    ],
)
def test_a_detailed_result_gives_what_was_sent(
    tmp_path: Path, changes: dict[str, object], arrivals: list[float], note: str | None
) -> None:
    workload = read(tmp_path, json.dumps({**RESULT, **changes}))
    by_id = sorted(workload.requests, key=lambda request: str(request.id))
    assert [(r.prompt_tokens, r.output_tokens) for r in by_id] == [(10, 4), (20, 5)]
    assert [r.arrival_s for r in by_id] == pytest.approx(arrivals)
    assert "1 failed requests (no output tokens) are left out" in workload.notes
    assert note is None or any(note in text for text in workload.notes)


def test_a_result_without_details_says_how_to_get_them(tmp_path: Path) -> None:
    plain = {key: value for key, value in RESULT.items() if not key.endswith("_lens")}
    with pytest.raises(WorkloadError, match="--save-detailed"):
        read(tmp_path, json.dumps(plain))


# ---- files as such


def test_compression_is_seen_by_content_and_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    content = gzip.compress(b"\xef\xbb\xbf" + rows(own()).encode())
    assert len(read(tmp_path, content, "named.jsonl").requests) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty, no requests"),
        (b"\n  \n", "empty, no requests"),
        (b"\x00\xff\xfe\x80binary", "not text"),
        (b"\x1f\x8b\x08\x00cut", "damaged or cut short"),
        (gzip.compress(rows(*[own(request_id=i) for i in range(999)]).encode())[:-40], "cut short"),
        (b"hello world\n", "line 1: no known workload format"),
        (b"a,b,c\n1,2,3\n", "line 1: no known workload format"),
        (b"{}\n", "an object with no keys is no known workload row"),
        (b'{"colour": 1}\n', "an object with colour is no known"),
        (b"[1, 2]\n", "this JSON document is no known workload"),
        (b"[]\n", "no requests"),
        (b'{"request_id": 1,\n', "not JSON"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_files_that_are_no_workload(tmp_path: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(WorkloadError, match="workload.txt.*" + sentence.replace("[", r"\[")):
        read(tmp_path, content)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"gone\.jsonl: no such file"):
        read_workload(tmp_path / "gone.jsonl")
    with pytest.raises(WorkloadError, match="is a folder"):
        read_workload(tmp_path)


GOOD = rows(own(request_id="first"))


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ('{"request_id": 2', "not JSON"),
        ("[1]", "not a JSON object"),
        (own(request_id="first"), "request_id 'first' was used before, on line 1"),
        (own(request_id=[1]), "request_id is neither text nor a whole number"),
        (own(request_id=True), "request_id is neither"),
        (own(arrival_s=float("nan")), "arrival_s is nan, not a finite number"),
        (own(arrival_s=float("inf")), "arrival_s is inf, not a finite"),
        (own(arrival_s=-1), "arrival_s is -1, it must not be negative"),
        (own(arrival_s="soon"), "arrival_s is 'soon', not a finite number"),
        (own(arrival_s="absent"), "no arrival_s"),
        (own(prompt_tokens=0), "prompt_tokens is 0, it must be at least 1"),
        (own(prompt_tokens=1.5), "prompt_tokens is 1.5, not a whole number"),
        (own(prompt_tokens=True), "prompt_tokens is True, not a finite number"),
        (own(prompt_tokens="absent"), "no prompt_tokens"),
        (own(output_tokens=-5), "output_tokens is -5, it must not be negative"),
        (own(output_tokens=0), "output_tokens is 0, it must be at least 1"),
        (own(priority="high"), "priority is 'high', not a whole number"),
        (own(prefix_id="p"), "no prefix_tokens"),
        (own(prefix_id="p", prefix_tokens=101), r"prefix_tokens is 101, more than prompt_tokens \(100\)"),
        (own(prefix_id=["p"], prefix_tokens=1), "prefix_id is neither"),
        (own(abort_s=float("nan")), "abort_s is nan"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, second: object, sentence: str) -> None:
    line = second if isinstance(second, str) else json.dumps(second)
    with pytest.raises(WorkloadError, match="workload.txt: line 3: " + sentence):
        read(tmp_path, GOOD + "\n" + line + "\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "input_length is 0"),
        ('{"timestamp": NaN, "input_length": 9, "output_length": 1}', "timestamp is nan"),
        ('{"timestamp": -3, "input_length": 9, "output_length": 1}', "timestamp is -3"),
        ('{"timestamp": 0, "input_length": 9}', "no output_length"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": "x"}', "not a list"),
        ('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}', "too many"),
        ('{"request_id": 1, "arrival_s": 0, "prompt_tokens": 1e999, "output_tokens": 1}', "prompt_tokens is inf"),
        ('{"prompt": 5}', "not text"),
        ('{"prompt": null}', "neither a prompt nor its length"),
        ('{"turns": []}', "turns is not a list of texts"),
        ('{"conversations": "x"}', "conversations is not a list"),
        ('{"conversations": ["x", "y"]}', "a turn of conversations is not an object"),
        ('{"config": [], "requests": []}', "config must be an object"),
        ('{"config": {}, "requests": [{}]}', "num_blocks"),
        ('{"config": {"num_blocks": 5}, "requests": [3]}', r"requests\[0\] is not an object"),
        ('{"config": {"num_blocks": 5}, "requests": [{"id": 1}]}', "a request of the trace cannot be read"),
        ('{"config": {"num_blocks": 5, "step_time": 3}, "requests": [{"id": 1}]}', "step_time is 3"),
        ('{"config": {"num_blocks": 5}, "requests": [{"id": 1, "arrival_s": -1, "max_tokens": 1, "prompt": [["u", 1]]}]}', "not a time"),
    ],
)  # fmt: skip
def test_bad_first_rows_of_the_other_json_formats(tmp_path: Path, content: str, sentence: str) -> None:
    with pytest.raises(WorkloadError, match="workload.txt: line 1: .*" + sentence):
        read(tmp_path, content + "\n")


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("soon,10,1", "TIMESTAMP is 'soon', not a date and time"),
        ("2023-02-30 00:00:00,10,1", ".*which no calendar has"),
        ("2023-11-16 18:15:46,ten,1", "ContextTokens is 'ten', not a finite number"),
        ("2023-11-16 18:15:46,,1", "no ContextTokens"),
        ("2023-11-16 18:15:46,nan,1", "ContextTokens is 'nan'"),
        ("2023-11-16 18:15:46,-2,1", "ContextTokens is -2"),
        ("2023-11-16 18:15:46,10", "2 cells where the header has 3"),
    ],
)
def test_bad_csv_rows(tmp_path: Path, row: str, sentence: str) -> None:
    content = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,1\n\n{row}\n"
    with pytest.raises(WorkloadError, match="workload.txt: line 4: " + sentence):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "header",
    ["TIMESTAMP,ContextTokens,GeneratedTokens\n", "arrived_at,num_prefill_tokens,num_decode_tokens\n"],
)  # fmt: skip
def test_a_table_without_rows_holds_no_requests(tmp_path: Path, header: str) -> None:
    with pytest.raises(WorkloadError, match="no requests"):
        read(tmp_path, header)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_give_a_workload_or_a_sentence(tmp_path_factory: object, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bin"  # type: ignore[attr-defined]
    path.write_bytes(content)
    assert_read_or_named(path)


mangled = st.dictionaries(
    st.sampled_from(
        ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "timestamp", "input_length", "output_length",
         "hash_ids", "prompt", "conversations", "config", "requests", "duration", "total_input_tokens", "input_lens",
         "output_lens", "start_times", "prefix_id", "prefix_tokens", "priority"]
    ),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.lists(st.integers() | st.text(max_size=2) | st.none(), max_size=3)
    | st.fixed_dictionaries({"num_blocks": st.integers(0, 9)}),
)  # fmt: skip


@given(st.lists(mangled, min_size=1, max_size=3))
def test_any_objects_give_a_workload_or_a_sentence(tmp_path_factory: object, records: list[dict[str, object]]) -> None:
    path = tmp_path_factory.getbasetemp() / "objects.jsonl"  # type: ignore[attr-defined]
    path.write_text(rows(*records))
    assert_read_or_named(path)
