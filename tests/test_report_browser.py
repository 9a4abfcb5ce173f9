"""The HTML report in a real browser: it draws without an error or a network, copies, prints, and hostile text is text."""

from __future__ import annotations

import gzip
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from logscope.output.report.page import write_html
from tests.conftest import DATA, NO_BROWSER, SAMPLES
from tests.running import invoke
from tests.test_report_html import HOSTILE, everywhere

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
Opening = Callable[..., "Opened"]
NO_SCRIPT = "The chart needs JavaScript; the table below holds its numbers."
AXE = gzip.decompress((DATA / "axe" / "axe-4.14.1.min.js.gz").read_bytes()).decode()


class Opened:
    """A page opened from a file, offline, with everything it complained about or asked the network for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())

    def drawn(self) -> Any:
        """The page with all its charts drawn."""
        self.page.wait_for_selector("html[data-charts=ready]", timeout=15_000)
        return self.page


def until(page: Any, condition: str) -> None:
    """Wait for a JavaScript condition (playwright's own wait evaluates text, which the page's policy forbids)."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opening(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a report with the options of a browser context; all of them are closed at the end."""
    opened: list[Opened] = []

    def opening(path: Path, **options: Any) -> Opened:
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield opening
    for page in opened:
        page.context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of tests/data/report, once for all tests that only look at it."""
    import json

    analysis = json.loads((DATA / "report" / "analysis.json").read_text(encoding="utf-8"))
    frames = {p.stem: pl.read_csv(p, try_parse_dates=True) for p in (DATA / "report").glob("*.csv")}
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_html(analysis, frames, out)
    return out


@pytest.mark.parametrize("view", VIEWS)
def test_it_opens_offline_without_a_complaint(view: str, opening: Opening, report: Path, tmp_path: Path) -> None:
    opened = opening(report, **VIEWS[view])
    page = opened.drawn()
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]
    assert page.locator(".plot .main-svg").count() >= 4
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture = page.screenshot(path=tmp_path / f"{view}.png", full_page=True)
    assert len(picture) > 50_000


def test_it_is_drawn_in_two_seconds_of_cpu_time(opening: Opening, report: Path) -> None:
    opened = opening(report)
    opened.drawn()
    session = opened.context.new_cdp_session(opened.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    opened.page.reload()
    opened.drawn()
    told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    assert 0.01 < told["TaskDuration"] < 2


def test_the_first_screen_holds_the_answer(opening: Opening, report: Path) -> None:
    page = opening(report, **VIEWS["light"]).drawn()
    for selector in ("#verdict", ".numbers", ".advice .flag", ".advice .effects", "nav"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] <= 860, selector


def test_the_copy_button_copies_the_flag(opening: Opening, report: Path) -> None:
    opened = opening(report, permissions=["clipboard-read", "clipboard-write"])
    page = opened.drawn()
    page.locator("button.copy").first.click()
    until(page, "document.getElementById('copied').textContent !== ''")
    assert page.locator("#copied").text_content() == "Copied --max-num-seqs 12"
    assert page.evaluate("navigator.clipboard.readText()") == "--max-num-seqs 12"
    assert opened.complaints == []


def test_a_chart_zooms_and_comes_back(opening: Opening, report: Path) -> None:
    page = opening(report, **VIEWS["light"]).drawn()
    plot = page.locator(".plot[id^=timeline-]").first
    plot.scroll_into_view_if_needed()
    read = "document.querySelector('.plot').layout.xaxis.range.map(x => new Date(x).getTime())"
    before = page.evaluate(read)
    box = plot.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    until(page, f"{read}.join() !== '{','.join(map(str, before))}'")
    zoomed = page.evaluate(read)
    assert 0.2 < (zoomed[1] - zoomed[0]) / (before[1] - before[0]) < 0.4
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(page, f"{read}.join() === '{','.join(map(str, before))}'")


def test_curve_and_table_show_the_same_numbers(opening: Opening, report: Path) -> None:
    page = opening(report).drawn()
    figure = page.locator("figure", has=page.locator(".plot[id^=timeline-]"))
    rows = figure.locator("tbody tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    drawn = page.evaluate("document.querySelector('.plot').data.filter(t => t.name === 'Waiting')[0].y")
    assert [float(row[2]) for row in rows] == drawn


def test_the_colours_follow_the_screen(opening: Opening, report: Path) -> None:
    page = opening(report, **VIEWS["light"]).drawn()
    read = "document.querySelector('.plot').data[0].line.color"
    light = page.evaluate(read)
    page.emulate_media(color_scheme="dark")
    until(page, f"{read} !== '{light}'")
    page.emulate_media(color_scheme="light")
    until(page, f"{read} === '{light}'")


def test_without_javascript_all_but_the_charts_is_there(opening: Opening, report: Path) -> None:
    with_script = opening(report).drawn()
    without = opening(report, java_script_enabled=False).page
    assert without.locator("h1").inner_text() == with_script.locator("h1").inner_text()
    for selector in ("table", "h2", "h3", ".finding", "dl", ".bar svg"):
        assert without.locator(selector).count() == with_script.locator(selector).count()
    assert without.locator("noscript p").all_inner_texts() == [NO_SCRIPT] * 4
    assert not without.locator("button.copy").first.is_visible()
    without.locator("summary").first.click()
    assert without.locator("details[open] table").first.is_visible()


def test_it_works_from_the_keyboard(opening: Opening, report: Path) -> None:
    page = opening(report).drawn()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "copy"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open]:not(.config)").count() == 1


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an index and its servers' reports: one that is healthy, one under pressure, one that did not start."""
    logs, out = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("fleet")
    for name in ("v1-calm", "v1-under-pressure", "v1-start-failed"):
        shutil.copy(SAMPLES / f"{name}.log", logs)
    done = invoke("analyze", logs, "--no-replay", "--html", out)
    assert done.exit_code == 0, done.output
    return out


PAGES = ("index.html", "index-server-0.html", "index-server-1.html", "index-server-2.html")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_axe_is_clean_on_each_page_of_a_fleet(view: str, name: str, opening: Opening, fleet: Path) -> None:
    opened = opening(fleet / name, bypass_csp=True, **VIEWS[view])
    if opened.page.locator("#figures").count():
        opened.drawn()
    assert violations(opened.page) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def violations(page: Any) -> list[Any]:
    """What axe finds serious or critical, with everything unfolded."""
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.evaluate(AXE)
    found: list[Any] = page.evaluate(
        "axe.run().then(r => r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html.slice(0, 160))]))"
    )
    return [v for v in found if v[0] in ("serious", "critical")]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_serious_violation(view: str, opening: Opening, report: Path) -> None:
    opened = opening(report, bypass_csp=True, **VIEWS[view])
    assert violations(opened.drawn()) == []


def test_on_a_phone_a_table_fits_or_is_unfolded_by_hand(opening: Opening, report: Path) -> None:
    """Wide tables become cards; only the charts' own tables, behind a summary, scroll sideways, with a shadow at the edge."""
    page = opening(report, **VIEWS["narrow"]).drawn()
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => !e.closest('details:not(.config)') && e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.getAttribute('aria-label'))"
    )
    assert wide == []


def test_on_a_phone_nothing_lies_over_a_chart(opening: Opening, report: Path) -> None:
    page = opening(report, has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}).drawn()
    assert page.locator(".modebar-btn").count() == 0
    assert page.locator(".readout").first.inner_text() == "Tap the chart for the values at a time."
    assert page.evaluate("document.querySelector('.plot').layout.dragmode") is False


def test_on_paper_a_chart_and_its_caption_stay_together(opening: Opening, report: Path) -> None:
    page = opening(report).drawn()
    page.emulate_media(media="print")
    assert page.evaluate(
        "[...document.querySelectorAll('.drawn')].every(e => getComputedStyle(e).breakInside === 'avoid' && e.querySelector('h3') && e.querySelector('.plot'))"
    )


def day(frames: dict[str, pl.DataFrame], name: str, hours: int) -> pl.DataFrame:
    """A frame of some minutes repeated over hours."""
    frame = frames[name]
    first, last = frame["time"].min(), frame["time"].max()
    span = last - first + timedelta(seconds=10)  # type: ignore[operator]
    many = int(timedelta(hours=hours) / span) + 1
    return pl.concat([frame.with_columns(pl.col("time") + span * k) for k in range(many)])


def test_a_days_log_is_a_page_of_two_megabytes_drawn_in_two_seconds_of_cpu_time(
    opening: Opening, report_analysis: dict[str, Any], report_frames: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    frames = report_frames | {name: day(report_frames, name, 24) for name in ("stats", "replay_steps")}
    assert frames["stats"].height > 8_000
    out = tmp_path / "report.html"
    write_html(report_analysis, frames, out)
    assert out.stat().st_size <= 2_000_000
    opened = opening(out)
    opened.drawn()
    session = opened.context.new_cdp_session(opened.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    opened.page.reload()
    opened.drawn()
    told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    assert told["TaskDuration"] < 2


def test_it_prints_on_paper(opening: Opening, report: Path, tmp_path: Path) -> None:
    page = opening(report, **VIEWS["dark"]).drawn()
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert printed.startswith(b"%PDF")
    assert 2 <= pages <= 9
    assert min(pieces_of_text(printed)) > 20, "no page is blank"


def pieces_of_text(printed: bytes) -> list[int]:
    """How many pieces of text each page of Chromium's PDF draws."""
    found = []
    for page in re.findall(rb"<<[^<>]*?/Type\s*/Page\b.*?endobj", printed, re.S):
        place = re.search(rb"/Contents\s+(\d+) 0 R", page)
        assert place is not None
        drawn = re.search(rb"(?<!\d)" + place[1] + rb" 0 obj.*?stream\r?\n(.*?)endstream", printed, re.S)
        assert drawn is not None
        found.append(len(re.findall(rb"T[jJ]", zlib.decompress(drawn[1]))))
    return found


def test_hostile_text_runs_nowhere(
    opening: Opening, report_analysis: dict[str, Any], report_frames: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    frames = {
        name: frame.with_columns(id=pl.lit(HOSTILE) + pl.col("id")) if "id" in frame.columns else frame
        for name, frame in report_frames.items()
    }
    out = tmp_path / "report.html"
    write_html(everywhere(report_analysis, HOSTILE), frames, out)
    opened = opening(out, **VIEWS["light"])
    page = opened.drawn()
    page.locator("button.copy").first.click()
    bar = page.locator("#gantt .bars path").first
    bar.scroll_into_view_if_needed()
    bar.hover(force=True)
    page.wait_for_timeout(300)
    assert opened.complaints == []
    assert opened.requests == [out.as_uri()]
    assert page.locator("img").count() == 0
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0


def test_a_hostile_script_would_be_stopped_by_the_policy(opening: Opening, report: Path, tmp_path: Path) -> None:
    text = report.read_text(encoding="utf-8")
    out = tmp_path / "report.html"
    bad = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    out.write_text(text.replace("<main", f"{bad}<main", 1), encoding="utf-8")
    opened = opening(out)
    assert opened.drawn().title() != "owned"
    assert len([c for c in opened.complaints if "Content Security Policy" in c]) >= 2


def test_the_script_beside_the_report_is_found(
    opening: Opening, report_analysis: dict[str, Any], report_frames: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    write_html(report_analysis, report_frames, out, plotlyjs="directory")
    opened = opening(out)
    assert opened.drawn().locator(".plot .main-svg").count() >= 4
    assert opened.complaints == []
