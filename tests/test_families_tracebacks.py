"""A record with a traceback is what its exception says; a line of the traceback alone is so only as printed, not as source."""

from __future__ import annotations

import pytest

from parsers.families import match

NO_MEMORY = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
FRAMES = 'Traceback (most recent call last):\n  File "core.py", line 1, in run_engine_core\n    raise ValueError("No available memory for the cache blocks. "\n'


@pytest.mark.parametrize(
    "header",
    [
        "EngineCore failed to start.",
        "EngineCore hit an exception: Traceback (most recent call last):",
        "Something new:",
    ],
)
def test_the_exception_names_the_family(header: str) -> None:
    found = match(f"{header}\n{FRAMES}{NO_MEMORY}", prefixed=True)
    assert found is not None
    assert (found.family, found.variant) == ("kv_error", "noavail")
    assert found.fields["logged_as"] == header


def test_of_a_chain_the_cause_counts() -> None:
    message = (
        f"EngineCore failed to start.\n{FRAMES}{NO_MEMORY}\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{FRAMES}RuntimeError: Engine core initialization failed. See root cause above."
    )
    found = match(message, prefixed=True)
    assert found is not None
    assert found.family == "kv_error"


def test_an_unknown_exception_stays_with_its_header() -> None:
    found = match(f"EngineCore encountered a fatal error.\n{FRAMES}KeyError: 'blocks'", prefixed=True)
    assert found is not None
    assert (found.family, found.variant, found.fields["error"]) == ("runtime", "coredied", "KeyError: 'blocks'")


def test_a_traceback_of_nothing_known_is_of_no_family() -> None:
    assert match(f"Something new:\n{FRAMES}KeyError: 'blocks'", prefixed=True) is None


def test_the_bare_last_line_is_an_event_of_its_own() -> None:
    found = match(NO_MEMORY, prefixed=False)
    assert found is not None
    assert (found.family, found.fields["error"]) == ("kv_error", "ValueError")


def test_the_echo_of_the_source_is_none() -> None:
    assert match(FRAMES.splitlines()[2], prefixed=False) is None
