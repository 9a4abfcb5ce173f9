"""Put what `logscope analyze` really prints, and a picture of its report, into README.md. Run by `make readme`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- output of: logscope (?P<command>[^\n]*?) -->\n).*?(<!-- end of output -->)", re.S)


def printed(command: str) -> str:
    """What the command prints without a terminal."""
    run = [sys.executable, "-m", "logscope", *command.split()]
    out = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return "\n".join(line.rstrip() for line in out.strip("\n").split("\n"))


def block(found: re.Match[str]) -> str:
    """The marked block, with its command's output."""
    command = found["command"]
    return f"{found[1]}```console\n$ logscope {command}\n{printed(command)}\n```\n{found[3]}"


def picture(target: Path) -> None:
    """The report's first screen, in Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("no chromium: the picture stays as it is", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        report = Path(folder) / "report.html"
        printed(f"analyze samples/v1-under-pressure.log --html {report}")
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": 1120, "height": 1180}, device_scale_factor=1)
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-charts=ready]")
        page.screenshot(path=target)
        opened.close()


def main() -> None:
    """Rewrite README.md and docs/report.png."""
    readme = ROOT / "README.md"
    readme.write_text(BLOCK.sub(block, readme.read_text(encoding="utf-8")), encoding="utf-8")
    picture(ROOT / "docs" / "report.png")


if __name__ == "__main__":
    main()
