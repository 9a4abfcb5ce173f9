"""Every format: its example rows give exactly their fields, and the tables agree with themselves."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from logscope.server.flags import parsed_version
from parsers.families import FAMILIES, FORMATS, Format, anchors, match, schema
from tests.formats_data import examples, forms, message_of, same


@pytest.mark.parametrize("family", FAMILIES)
def test_example_rows_give_their_fields(family: str) -> None:
    rows = [row for row in examples() if row["family"] == family]
    wrong = []
    for row in rows:
        message, prefixed = message_of(row["line"])
        found = match(message, prefixed=prefixed)
        if found is None or found.family != family or not same(row["fields"], found.fields):
            wrong.append((row["version"], row["kind"], row["line"], found))
    assert rows
    assert wrong == []


@pytest.mark.parametrize("row", forms(), ids=lambda row: row["kind"])
def test_forms_without_an_example(row: dict[str, Any]) -> None:
    message, prefixed = message_of(row["line"])
    found = match(message, prefixed=prefixed)
    assert found is not None
    assert (found.family, found.variant) == (row["family"], row["kind"])
    assert same(row["fields"], found.fields), found.fields


@pytest.mark.parametrize("rows", [examples(), forms()], ids=["examples", "forms"])
def test_every_known_line_holds_an_anchor(rows: tuple[dict[str, Any], ...]) -> None:
    assert [row["line"] for row in rows if not any(anchor in row["line"] for anchor in anchors())] == []


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: f"{format_.family}.{format_.variant}")
def test_a_format_reads_its_own_example(format_: Format) -> None:
    found = match(format_.example, prefixed=not format_.foreign)
    assert found is not None
    assert (found.family, found.variant) == (format_.family, format_.variant)
    assert any(anchor in format_.example for anchor in anchors())


def test_what_a_format_declares_is_well_formed() -> None:
    for format_ in FORMATS:
        assert format_.family in FAMILIES
        assert format_.engine in ("V0", "V1", "any")
        assert parsed_version("0.1.0") <= parsed_version(format_.first) <= parsed_version(format_.last)
        assert re.match(r"(?:INFO|WARNING|DEBUG|ERROR|CRITICAL|raise )", format_.level)
        assert len(format_.needle) > 3 or format_.needle == "█"


@pytest.mark.parametrize(
    "format_",
    [format_ for format_ in FORMATS if format_.read is None],
    ids=lambda format_: f"{format_.variant}-{format_.template[:30]}",
)
def test_a_filled_in_template_gives_its_values_back(format_: Format) -> None:
    values = {
        "d": "1,234",
        "f": "0.25",
        "gib": "3.5 GiB",
        "": "some-word_1",
        "s": "some words, more",
        "v": "{'a': 1}",
        "dev": "GPU + host",
    }
    meant = {
        "d": 1234,
        "f": 0.25,
        "gib": 3.5,
        "": "some-word_1",
        "s": "some words, more",
        "v": {"a": 1},
        "dev": "GPU + host",
    }
    text = re.sub(r"\{([^{}:|]*)\|[^{}]*\}", r"\1", format_.body)
    fields = dict(re.findall(r"\{(\w+)(?::(\w+))?\}", text))
    text = re.sub(r"\{\w+(?::(\w+))?\}", lambda found: values[found[1] or ""], text)
    got = format_.fields(text.replace("[[", "").replace("]]", "").removesuffix("..."))
    assert got is not None
    assert got == {name: meant[spec] for name, spec in fields.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schema_holds_the_fields_of_its_templates_types(family: str) -> None:
    columns = schema(family)
    for row in examples():
        if row["family"] != family:
            continue
        for name, value in row["fields"].items():
            if name not in columns or value is None:
                continue
            kind = columns[name]
            if kind.is_float():
                assert isinstance(value, int | float)
                assert math.isfinite(value)
            elif kind.is_integer():
                assert isinstance(value, int), (name, value)


def test_an_unknown_family_has_no_schema() -> None:
    with pytest.raises(KeyError):
        schema("weather")
