"""What every page that is written keeps, whatever the log: only the template's own elements, nothing that runs, nothing that loads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from logscope.sanitize import OBEYED

__all__ = ["faults_of_page"]

_TEMPLATES = Path(__file__).resolve().parents[2] / "logscope" / "output" / "report"
_TAG = re.compile(r"<([a-z][a-z0-9]*)")
_LINKS = ("href", "src", "action", "formaction", "xlink:href", "data", "poster", "srcset")


@cache
def _own_tags() -> frozenset[str]:
    """The elements that the templates name."""
    text = "".join(path.read_text(encoding="utf-8") for path in _TEMPLATES.glob("*.j2"))
    return frozenset(_TAG.findall(text)) | {f"h{n}" for n in range(1, 7)}


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.policy = ""
        self._script: dict[str, str | None] | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in _own_tags():
            self.faults.append(f"an element <{tag}> of no template")
        if tag == "meta" and (given.get("http-equiv") or "").lower() == "content-security-policy":
            self.policy = given.get("content") or ""
        elif tag == "meta" and "http-equiv" in given:
            self.faults.append(f"a meta element {given}")
        for name, value in attrs:
            if name.startswith("on"):
                self.faults.append(f"an attribute {name} of <{tag}>")
            if name == "style":
                self.faults.append(f"a style within <{tag}>")
            scheme = (value or "").strip().lower().partition(":")[0]
            if name in _LINKS and scheme in ("javascript", "vbscript", "data"):
                self.faults.append(f"<{tag}> leads to {value!r}")
        if tag == "script":
            self._script, self._text = given, []

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag != "script" or self._script is None:
            return
        given, text, self._script = self._script, "".join(self._text), None
        if given.get("type") == "application/json":
            json.loads(text)
        elif "src" not in given:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            if f"'sha256-{digest}'" not in self.policy:
                self.faults.append(f"a script that the policy does not name: {text[:80]!r}")


def faults_of_page(text: str) -> Iterator[str]:
    """Each way in which a page obeys its log, as a sentence."""
    found = _Elements()
    found.feed(text)
    found.close()
    yield from found.faults
    if "default-src 'none'" not in found.policy:
        yield "a page without its policy"
    control = OBEYED.search(text.replace("\n", " "))
    if control is not None:
        yield f"a character that a page obeys: {control[0]!r} at {control.start()}"
