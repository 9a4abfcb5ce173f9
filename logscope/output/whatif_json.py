"""The contract's `whatif --json` document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logscope.server.engines import EngineFacts
from logscope.server.scenario import flag_text

__all__ = ["whatif_document"]


def whatif_document(
    facts: EngineFacts,
    changes: Mapping[str, Any],
    baseline: Mapping[str, Any],
    scenario: Mapping[str, Any],
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Both sides of a change of one engine; `notes` say what was assumed."""
    return {
        "schema_version": 1,
        "set": dict(changes),
        "flag": flag_text(facts, changes),
        "baseline": dict(baseline),
        "scenario": dict(scenario),
        "notes": list(notes),
        "unsupported": list(facts.unsupported),
    }
