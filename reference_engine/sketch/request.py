"""A request inside the sketch, and a step on its device."""

from __future__ import annotations

from reference_engine.sketch.sketch_rules import Lengths

__all__ = ["Batch", "SketchRequest"]


class SketchRequest:
    """One request inside the sketch; lengths in tokens, times in seconds, `held` in blocks of its own.

    While it is in the `bulk`, `computed` and `output` are old: they are `base` and `output_base` plus the engine's tick.
    """

    __slots__ = (
        "arrival",
        "base",
        "bulk",
        "computed",
        "credit",
        "end",
        "first",
        "group",
        "held",
        "id",
        "limit",
        "output",
        "output_base",
        "preemptions",
        "prompt",
        "shared",
        "started",
        "tried",
    )

    def __init__(self, request_id: int, lengths: Lengths, arrival: float) -> None:
        self.id = request_id
        self.arrival = arrival
        self.computed = 0
        self.output = 0
        self.held = 0
        self.preemptions = 0
        self.credit = 0
        self.first: float | None = None
        self.end: float | None = None
        self.started: float | None = None
        self.tried = False
        self.bulk = False
        self.base = 0
        self.output_base = 0
        self.resize(lengths)

    def resize(self, lengths: Lengths) -> None:
        """Take other lengths, before the first step."""
        self.prompt = lengths.prompt
        self.limit = lengths.output
        self.shared = lengths.shared
        self.group = lengths.group

    @property
    def lengths(self) -> Lengths:
        """The lengths as they are assumed."""
        return Lengths(self.prompt, self.limit, self.shared, self.group)

    def copy(self) -> SketchRequest:
        """An independent copy."""
        new = SketchRequest.__new__(SketchRequest)
        new.id = self.id
        new.arrival = self.arrival
        new.computed = self.computed
        new.output = self.output
        new.held = self.held
        new.preemptions = self.preemptions
        new.credit = self.credit
        new.first = self.first
        new.end = self.end
        new.started = self.started
        new.prompt = self.prompt
        new.limit = self.limit
        new.shared = self.shared
        new.group = self.group
        new.tried = self.tried
        new.bulk = self.bulk
        new.base = self.base
        new.output_base = self.output_base
        return new


class Batch:
    """A step on the device."""

    __slots__ = ("chunks", "decodes", "kv_tokens", "members", "prefill", "seconds")

    def __init__(self) -> None:
        self.chunks: list[SketchRequest] = []
        self.members = 0
        self.prefill = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.seconds = 0.0
