"""An answer that is kept is the same answer: in the terminal, as a page, in Markdown; and a bundle gives nobody away."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import pytest

from logscope.evidence.finding import MEANINGS
from logscope.output.answer import AnswerError, markdown, read_answer
from logscope.wording import VERDICTS
from tests.conftest import ROOT, SAMPLES
from tests.logs import stats_v1, v1_start
from tests.running import invoke, log, run

SECRET = "the-secret-of-acme"


def test_every_form_is_the_same_without_a_replay(answered: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, printed = answered
    monkeypatch.setattr("logscope.inference.prediction.replay_workload", None)
    assert invoke("report", folder / "a").stdout == printed
    forms = ("--json", folder / "b.json", "--md", folder / "b.md", "--html", folder / "b.html")
    done = invoke("report", folder / "a", *forms)
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads((folder / "b.json").read_text()) == json.loads((folder / "a.json").read_text())
    assert (folder / "b.md").read_text() == (folder / "a.md").read_text()
    first, second = ((folder / name).read_text() for name in ("a.html", "b.html"))
    made = re.compile(r"<dt>(?:Command|Created)</dt><dd>.*?</dd>")
    assert len(first) == pytest.approx(len(second), abs=300)
    assert made.sub("", first)[:20000] == made.sub("", second)[:20000]


def test_the_same_answer_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        invoke("analyze", SAMPLES / "v1-calm.log", "--no-replay", "--save", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_several_servers(tmp_path: Path) -> None:
    logs = [
        log(tmp_path, *v1_start(pid=n), *(stats_v1(10 * i, 3, 0, 20.0) for i in range(1, 9)), name=f"s{n}.log")
        for n in (1, 2)
    ]
    done = invoke("analyze", *logs, "--no-replay", "--save", tmp_path / "kept")
    assert invoke("report", tmp_path / "kept").stdout == done.stdout
    assert invoke("report", tmp_path / "kept", "--html", tmp_path / "pages").exit_code == 0
    assert len(list((tmp_path / "pages").glob("*.html"))) == 3


def damaged(content: bytes) -> list[bytes]:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as out:
        out.writestr(
            "answer.json", '{"format": "logscope-answer", "version": 1, "document": {"servers": 3}, "parts": []}'
        )
    return [b"", b"no zip", content[: len(content) // 2], other.getvalue(), content.replace(b"PAR1", b"XXXX")]


@pytest.mark.parametrize("place", range(5))
def test_what_is_no_answer_is_refused(answered: tuple[Path, str], tmp_path: Path, place: int) -> None:
    path = tmp_path / "broken"
    path.write_bytes(damaged((answered[0] / "a").read_bytes())[place])
    if place == 4:
        path.write_bytes(_with_broken_frames((answered[0] / "a").read_bytes()))
    with pytest.raises(AnswerError, match="not an answer that `logscope analyze --save` kept"):
        read_answer(path)
    done = run("report", path)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1


def _with_broken_frames(content: bytes) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(found, "w") as out:
        for name in given.namelist():
            out.writestr(name, given.read(name) if name.endswith(".json") else b"no parquet")
    return found.getvalue()


def test_it_is_not_written_over_what_is_read(answered: tuple[Path, str]) -> None:
    assert invoke("report", answered[0] / "a", "--json", answered[0] / "a").exit_code == 2
    assert invoke("report", answered[0] / "a", "--json", "-", "--md", "-").exit_code == 2


def test_markdown_says_the_answer(answered: tuple[Path, str]) -> None:
    text = (answered[0] / "a.md").read_text()
    assert text.startswith("**kv-capacity**: requests are queuing for KV-cache space or being preempted")
    for words in ("| E2E p50, p99 | ", "- **kv-preemption** (critical, inferred)", "What to do:", "--watermark"):
        assert words in text
    assert invoke("report", answered[0] / "a", "--md", "-").stdout == text


def test_markdown_is_text_whatever_a_log_holds(tmp_path: Path) -> None:
    evil = "x|<script>@everyone [a](http://evil.example) `b`"
    path = log(
        tmp_path, *v1_start(), f"(EngineCore pid=2) ERROR 05-09 00:49:10 [core.py:1] ValueError: {evil}", name="a.log"
    )
    invoke("analyze", path, "--no-replay", "--save", tmp_path / "kept")
    answer = read_answer(tmp_path / "kept")
    answer.document["findings"] = [{**f, "title": evil} for f in answer.document["findings"]]
    answer.parts[0].document["findings"][:] = answer.document["findings"] or [
        {
            "id": "startup-failed",
            "severity": "critical",
            "basis": "measured",
            "title": evil,
            "server": 0,
            "run": 0,
            "engine_index": 0,
        }
    ]
    text = markdown(answer)
    assert "script" in text
    assert not re.search(r"<script|@everyone|[^\\]\]\(|http://|[^\\]`", text)


def test_a_bundle_holds_no_name_and_no_text(tmp_path: Path) -> None:
    lines = [x.replace("acme/m", SECRET) for x in v1_start()]
    lines += [stats_v1(10 * i, 8, 9, 99.0) for i in range(1, 12)]
    lines += [
        f"(APIServer pid=1) WARNING 05-09 00:51:00 [x.py:1] {SECRET} happened",
        f"(EngineCore pid=2) ERROR 05-09 00:51:01 [core.py:5] RuntimeError: {SECRET}",
    ]
    path = log(tmp_path, *lines, name=f"{SECRET}.log")
    assert invoke("analyze", path, "--bundle", tmp_path / "b.zip").exit_code == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as found:
        for name in found.namelist():
            assert SECRET.encode() not in found.read(name)
            assert b"acme" not in found.read(name)
        document = json.loads(found.read("bundle.json"))
        assert document["answer"]["verdict"] in VERDICTS
        assert document["answer"]["engines"][0]["config"]["max_num_seqs"] == 8
        assert found.read("statistics-0.csv").decode().splitlines()[1]


def test_every_verdict_and_finding_is_explained() -> None:
    contract = (ROOT / "docs" / "contract.md").read_text()
    row = next(x for x in contract.splitlines() if x.startswith("| `findings` |"))
    ids = {*re.findall(r"`([a-z-]+)`", row[: row.index("`severity`")])} - {"id", "verdict", "findings"}
    assert {*VERDICTS} | ids == {*MEANINGS}
    page = (ROOT / "docs" / "findings.md").read_text()
    for name, meaning in MEANINGS.items():
        assert f"## {name}\n\n{meaning.says}\n\nWhat helps: {meaning.helps}\n" in page
        done = invoke("explain", name)
        assert done.stdout.startswith(f"{name}: {meaning.says}\nWhat helps: {meaning.helps}\nMore: https://")
    assert "did you mean kv-preemption?" in invoke("explain", "kv-preemptions").output
    assert invoke("explain").stdout.count("\n") == len(MEANINGS)
