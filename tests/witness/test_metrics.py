"""Metrics in every form in which they come, and what their counters prove."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logscope.witness.metrics import MetricsWitness, WitnessError, growth_of, read_metrics, text_of
from logscope.witness.samples import plain_name

SCRAPE = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="a \\"b\\" {{}}, \\\\ c"}} {count}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
python_gc_objects_collected_total{{generation="0"}} 4711.0
process_start_time_seconds 1.7959935e+09
"""


def read(folder: Path, *texts: str) -> MetricsWitness:
    names = []
    for i, text in enumerate(texts):
        path = folder / f"metrics{i}"
        path.write_text(text)
        names.append(str(path))
    return read_metrics(names)


def counted(witness: MetricsWitness) -> tuple[float, float, int]:
    growth = witness.preemptions()
    assert growth is not None
    return growth.from_zero, growth.seen, growth.scrapes


def scrape(count: float, running: float = 3) -> str:
    return SCRAPE.format(count=count, running=running)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([scrape(86.0)], (86, 0, 1)),
        ([scrape(5.0), scrape(86.0)], (86, 81, 2)),
        ([scrape(5.0) + scrape(60.0) + scrape(86.0)], (86, 81, 3)),
        ([scrape(60.0) + scrape(5.0)], (65, 5, 2)),  # the server began anew between them
        (["2026-11-29T23:06:00Z\n" + scrape(1.0) + "1795993800\n" + scrape(9.0)], (9, 8, 2)),
        (["vllm:num_preemptions 7\n"], (7, 0, 1)),  # before it was a counter by name
        (['vllm:num_preemptions_total{engine="0"} 7 1795993597141\n'], (7, 0, 1)),
        (["ray_vllm_num_preemptions_total 7\n"], (7, 0, 1)),
        (
            [
                '# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total{engine="0"} 7.0 1795993597.5 # {trace_id="x"} 1.0\n'
                "vllm:num_preemptions_created 1.7959935e+09\n# EOF\n"
            ],
            (7, 0, 1),
        ),
    ],
)
def test_text_expositions(tmp_path: Path, texts: list[str], found: tuple[float, ...]) -> None:
    assert counted(read(tmp_path, *texts)) == found


def test_times_of_scrapes(tmp_path: Path) -> None:
    text = "2026-11-29T23:06:00Z\n" + scrape(1.0) + "1795993800\n" + scrape(9.0)
    witness = read(tmp_path, text)
    assert witness.span == (1795993560.0, 1795993800.0)
    growth = witness.preemptions()
    assert growth is not None
    assert growth.steps == ((1795993560.0, 1795993800.0, 8.0),)


def answer(result: object, kind: str = "matrix") -> str:
    data = {"status": "success", "data": {"resultType": kind, "result": result}}
    return json.dumps(data, indent=1)


NAME = {"__name__": "vllm:num_preemptions_total", "engine": "0", "instance": "a:8000"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (answer([{"metric": NAME, "values": [[10, "1"], [20, "4"], [30, "2"]]}]), (6, 5, 3)),
        (answer([{"metric": NAME, "value": [10, "4"]}], "vector"), (4, 0, 1)),
        ('{"ts": 1, "vllm:num_preemptions_total": 2.0}\n{"ts": 2, "vllm:num_preemptions_total": 9}', (9, 7, 2)),
        ('[{"time": 1, "metrics": {"vllm:num_preemptions_total{engine=\\"0\\"}": 2.0}}]', (2, 0, 1)),
    ],
)  # fmt: skip
def test_json_forms(tmp_path: Path, text: str, found: tuple[float, ...]) -> None:
    assert counted(read(tmp_path, text)) == found


def test_engines_are_told_apart_by_their_label(tmp_path: Path) -> None:
    lines = [f'vllm:num_preemptions_total{{engine="{i}"}} {n}' for i, n in ((0, 3), (1, 4))]
    witness = read(tmp_path, "\n".join(lines))
    assert witness.engines == {"0", "1"}
    assert [witness.preemptions(i).from_zero for i in (0, 1)] == [3, 4]  # type: ignore[union-attr]
    assert counted(witness)[0] == 7


def test_several_servers_are_not_taken_for_one_engine(tmp_path: Path) -> None:
    lines = [f'vllm:num_preemptions_total{{engine="0",pod="{p}"}} 3' for p in "ab"]
    assert read(tmp_path, "\n".join(lines)).engines == frozenset()


BUCKETS = 'vllm:e2e_request_latency_seconds_bucket{{le="{le}"}} {n}'


def test_percentiles_of_a_histogram(tmp_path: Path) -> None:
    lines = [BUCKETS.format(le=le, n=n) for le, n in (("1.0", 50), ("2.5", 90), ("+Inf", 100))]
    latency = read(tmp_path, "\n".join(lines)).latency(from_zero=True)
    assert latency is not None
    assert latency["e2e_s"] == {"p50": 1.0, "p90": 2.5, "p99": 2.5}  # beyond it nothing is known
    assert latency["ttft_s"]["p50"] is None


def test_latencies_need_a_histogram_and_one_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text("vllm:num_preemptions_total 3\n")
    assert read_metrics([str(path)]).latency(from_zero=True) is None
    path.write_text(
        'vllm:e2e_request_latency_seconds_bucket{le="2"} 1\nvllm:e2e_request_latency_seconds_bucket{le="+Inf"} 1\n'
    )
    found = read_metrics([str(path)]).latency(from_zero=True)
    assert found is not None
    assert (found["e2e_s"]["p50"], found["ttft_s"]["p50"]) == (1.0, None)


def test_a_histogram_between_two_scrapes(tmp_path: Path) -> None:
    first = "\n".join(BUCKETS.format(le=le, n=n) for le, n in (("1", 100), ("+Inf", 100)))
    then = "\n".join(BUCKETS.format(le=le, n=n) for le, n in (("1", 100), ("+Inf", 110)))
    both = read(tmp_path, first, then)
    latency, whole = both.latency(from_zero=False), both.latency(from_zero=True)
    assert latency is not None
    assert whole is not None
    assert (latency["e2e_s"]["p50"], whole["e2e_s"]["p50"]) == (1.0, 0.55)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello world\n",
        "node_load1 0.5\n",
        "{}",
        "[1, 2]",
        '{"data": {"result": [{"metric": {}, "values": [[1, "2"]]}]}}',
        "<html><body>404</body></html>",
        'vllm:num_preemptions_total{engine="0" 7\n',
        "vllm:num_preemptions_total NaN\n",
    ],
)
def test_what_is_no_witness_is_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(WitnessError, match="no vLLM metric"):
        read(tmp_path, text)


def test_bad_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    witness = read(tmp_path, scrape(3.0) + "garbage line here\nvllm:num_requests_running{x=1} 3\n")
    assert witness.samples.bad == 2
    assert counted(witness)[0] == 3


@given(st.text(max_size=300))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    from logscope.witness.samples import Samples, read_exposition, read_json

    read_exposition(text, Samples())
    read_json(text, Samples())
    read_json(json.dumps({"ts": 1, text: 1.0, "data": {"result": [text]}}), Samples())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_a_counters_growth_is_never_less_than_its_last_value(values: list[int]) -> None:
    growth = growth_of([(float(i), float(v)) for i, v in enumerate(values)])
    assert growth.from_zero >= values[-1]
    assert growth.seen == sum(s[2] for s in growth.steps)
    if values == sorted(values):
        assert growth.from_zero == values[-1]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm_num_requests_running", "vllm:num_requests_running"),
        ("sglang:num_running_reqs", None),
        ("vllm", None),
    ],
)
def test_names(name: str, plain: str | None) -> None:
    assert plain_name(name) == plain


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "m.gz").write_bytes(gzip.compress(scrape(4.0).encode()))
    assert counted(read_metrics([str(tmp_path / "m.gz")]))[0] == 4


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nope", "No such file"),
        ("file:///etc/passwd", "only files, http and https"),
        ("ftp://host/metrics", "only files, http and https"),
        ("http://127.0.0.1:1/metrics", "refused"),
    ],
)
def test_what_cannot_be_had(name: str, word: str) -> None:
    with pytest.raises(WitnessError, match=word):
        text_of(name)
