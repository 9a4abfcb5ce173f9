"""What every test may use: the real logs of samples/, and the rule about skipped tests.

A test may skip where a machine lacks a tool (a browser, a journal). With LOGSCOPE_CI=1, as .ci/run sets it, nothing may:
a skipped test is then a failed one, so that a missing tool cannot pass for a passing suite.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "samples"
DATA = Path(__file__).resolve().parent / "data"

NO_BROWSER = "no Chromium on this machine (Debian: apt install chromium)"
NO_JOURNAL = "no journalctl on this machine (Debian: apt install systemd systemd-journal-remote)"

IN_CI = os.environ.get("LOGSCOPE_CI") == "1"

# A check of a commit says the same thing twice: there the examples of properties are always the same ones. A developer's run and
# `make fuzz` draw new ones each time. No test is timed: machines are busy.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if IN_CI else "developer")


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of small real logs; samples/README.md says where each comes from."""
    return SAMPLES


@pytest.fixture(scope="session")
def sample_under_pressure() -> Path:
    """A V1 server (0.32.0) short of KV space, with request lines and without iteration lines."""
    return SAMPLES / "v1-under-pressure.log"


@pytest.fixture(scope="session")
def sample_calm() -> Path:
    """A V1 server (0.32.0) with hardly anything to do."""
    return SAMPLES / "v1-calm.log"


@pytest.fixture(scope="session")
def sample_v0() -> Path:
    """A V0 server (0.8.5) whose log holds preemption warnings."""
    return SAMPLES / "v0-with-warnings.log.gz"


@pytest.fixture(scope="session")
def sample_start_failed() -> Path:
    """A V1 server (0.32.0) that did not start: one full request does not fit into its KV cache."""
    return SAMPLES / "v1-start-failed.log"


@pytest.fixture(scope="session")
def answered(sample_under_pressure: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The whole answer on the sample under pressure, made once: a folder with every form of it, and what was printed."""
    from tests.running import invoke

    folder = tmp_path_factory.mktemp("answered")
    forms = {"save": "a", "json": "a.json", "md": "a.md", "html": "a.html", "workload-out": "w.jsonl"}
    options = [word for name, file in forms.items() for word in (f"--{name}", folder / file)]
    done = invoke("analyze", sample_under_pressure, *options)
    assert done.exit_code == 0, done.output
    return folder, done.stdout


@pytest.fixture
def report_analysis() -> dict[str, Any]:
    """An analysis as `analyze --json` gives it, of the sample under pressure, with a replay."""
    loaded: dict[str, Any] = json.loads((DATA / "report" / "analysis.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="session")
def report_frames() -> dict[str, pl.DataFrame]:
    """The frames that belong to `report_analysis`: statistics, and what the replay gives."""
    files = sorted((DATA / "report").glob("*.csv"))
    return {path.stem: pl.read_csv(path, try_parse_dates=True) for path in files}


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"nothing may skip in CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one in CI."""
    report = yield
    _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips as a whole."""
    report = yield
    _fail_instead(report)
    return report
