"""Every pattern of the project takes linear time: a line of a megabyte made to stop it takes no longer than others."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import ROOT
from tests.fuzz.attacks import ROOMS, Used, attacks, used_patterns

MEGABYTE = 1 << 20
SMALL = 2048
LIMIT_S = 1.0
"""CPU seconds for a megabyte. A linear pattern takes hundredths; a quadratic one passes this at 16 to 64 kB."""


def cost(used: Used, head: str, pump: str, size: int) -> float:
    """CPU seconds over `head` and `size` characters of `pump`, which then come to nothing."""
    text = head + pump * max(1, size // len(pump)) + "\0\n"
    given = text.encode("utf-8", "replace") if isinstance(used.pattern.pattern, bytes) else text
    run: Callable[[], object] = (
        (lambda: sum(1 for _ in used.pattern.finditer(given))) if used.searched else (lambda: used.pattern.match(given))
    )
    began = time.process_time()
    run()
    return time.process_time() - began


def slowest(used: Used) -> tuple[float, int, str, str]:
    """The cost of the attack that is the worst on small texts, at a megabyte or at the size where it passed the limit."""
    ranked = sorted(((cost(used, h, p, SMALL), h, p) for h, p in attacks(used.pattern)), reverse=True)
    _, head, pump = ranked[0]
    size = SMALL
    while True:
        size *= 8
        took = cost(used, head, pump, size)
        if took > LIMIT_S:  # a busy machine is no evidence
            took = min(took, cost(used, head, pump, size))
        if took > LIMIT_S or size >= MEGABYTE:
            return took, size, head, pump


@pytest.mark.parametrize("part", range(8))
def test_a_megabyte_of_anything_costs_linear_time(part: int) -> None:
    for used in used_patterns()[part::8]:
        took, size, head, pump = slowest(used)
        assert took <= LIMIT_S, f"{used.place}: {took:.1f} s for {size} characters of {pump!r} after {head!r}"


def test_the_test_finds_what_it_looks_for() -> None:
    import re

    for pattern, searched in ((r"(a+)+$", False), (r"\s*x", True), (r"a[^b]*c", True), (r"\d+=", True)):
        hostile = Used("here", re.compile(pattern), searched)
        worst = max(cost(hostile, h, p, 24 if "+)+" in pattern else 16_384) for h, p in attacks(hostile.pattern))
        assert worst > 0.1, pattern


def test_all_patterns_are_found() -> None:
    places = {used.place for used in used_patterns()}
    assert {
        "parsers.records.prefix._HEADER",
        "parsers.records.record._AFTER_TEXT",
        "parsers.records.record._CLOSES",
        "logscope.sanitize._PROMPT",
    } <= places
    assert sum("/" in place for place in places) > 100, "the templates of the formats"


def test_every_pattern_that_is_compiled_anywhere_is_attacked() -> None:
    """Also those that functions compile, while modules are imported or when a line of its kind is first met, and those that objects hold."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.compiled"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *missed, count = done.stdout.splitlines()
    assert missed == []
    assert int(count) > 300


def test_no_other_pattern_is_compiled_when_it_is_used() -> None:
    """A pattern that a function makes of its argument is seen by no test: only these, of texts that are logscope's own."""
    own = {"flags.py": 1, "request.py": 1, "formats.py": 2, "discovery.py": 1}
    own |= {"blocks.py": 1, "kv_groups.py": 1, "layouts.py": 1}
    found: Counter[str] = Counter()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in ("re", "regex")
                    and node.func.attr not in ("compile", "escape")
                ):
                    found[path.name] += 1
    assert found == own


def test_under_all_of_them_is_a_net(monkeypatch: pytest.MonkeyPatch) -> None:
    import regex

    from parsers.families import formats as template

    monkeypatch.setattr(template, "_PATIENCE_S", 0.2)
    slow = template.Compiled(regex.compile(r"(?:a|aa|aaa|b)*c"), ())
    began = time.monotonic()
    assert slow.read("a" * 40_000 + "xc") is None
    assert 0.15 < time.monotonic() - began < 5
