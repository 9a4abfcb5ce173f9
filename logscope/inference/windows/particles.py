"""Particles: engines that live through a log, each with its own past.

`Particle`, `Node` (what one did in one window), `WindowFit` (what all say of a window), `Plan` (how a pass goes).

Particles on their way between processes: their pasts as a table, for a chain of a thousand windows is too deep to be sent as it is.

How well a proposal meets a statistics line, and how far such verdicts may be trusted at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from logscope.inference.windows.lengths import OutputShape
from logscope.inference.windows.observations import Window
from reference_engine.cost.step_time import Floats, StepCost
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.request import SketchRequest

__all__ = [
    "Node",
    "PackedParticles",
    "Particle",
    "Plan",
    "WindowFit",
    "count_misfit",
    "log_likelihood",
    "packed_particles",
    "tempering",
    "unpacked_particles",
    "with_owed",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pass of the filter goes.

    `particles` go on after each window, each makes `proposals`; `cost_sd` is the least spread of the particles' step
    costs (log), `speed_sd` that of the speed from window to window; `speeds` are beliefs (mean, sd of the log) by window.
    """

    particles: int = 48
    proposals: int = 2
    rounds: int = 3
    cost_sd: float = 0.15
    speed_sd: float = 0.12
    speeds: tuple[Floats, Floats] | None = None


@dataclass(slots=True)
class Node:
    """What a particle did in one window, and where it came from. `work` as in `SketchReplay`; `speed` is a logarithm.

    `known`: how far the line would differ, in its spreads, had the speed been a tenth lower; negative where nobody looked.
    """

    parent: Node | None
    window: int
    cost: StepCost
    speed: float
    work: list[float]
    busy: float
    generated: float
    credited: float
    preempted_at: list[float]
    done: list[SketchRequest]
    known: float
    stalled: bool = False


@dataclass(slots=True)
class Particle:
    """An engine, its step costs, how long outputs are, and its past. `arrived`: requests that came to it so far.

    `owed`: tokens that the log has more than the engine, over the last windows: it has to catch up.
    """

    engine: SketchReplay
    cost: StepCost
    shape: OutputShape
    speed: float = 0.0
    node: Node | None = None
    log_weight: float = 0.0
    stalled: bool = False
    arrived: int = 0
    owed: float = 0.0

    def past(self) -> list[Node]:
        """Its nodes, oldest first."""
        nodes = []
        node = self.node
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class WindowFit:
    """What the particles say of a window, weighted: the gauges at its end and the tokens in it."""

    running: float
    waiting: float
    kv_usage: float
    generated: float
    credited: float
    tempering: float
    best: float


@dataclass(frozen=True, slots=True)
class PackedParticles:
    """`particles` and `nodes` without what they hang on; `parents[i]` is the place of node i's parent, `ends[i]` that of particle i's node
    (-1: none). A parent stands before its children.
    """

    particles: list[Particle]
    ends: list[int]
    nodes: list[Node]
    parents: list[int]


def packed_particles(particles: Sequence[Particle]) -> PackedParticles:
    """The particles, ready to be sent; a past that several have in common is in it once."""
    place: dict[int, int] = {}
    nodes: list[Node] = []
    parents: list[int] = []
    for particle in particles:
        for node in particle.past():
            if id(node) not in place:
                place[id(node)] = len(nodes)
                nodes.append(replace(node, parent=None))
                parents.append(-1 if node.parent is None else place[id(node.parent)])
    ends = [-1 if p.node is None else place[id(p.node)] for p in particles]
    return PackedParticles([replace(p, node=None) for p in particles], ends, nodes, parents)


def unpacked_particles(sent: PackedParticles) -> list[Particle]:
    """The particles with their pasts again."""
    for node, parent in zip(sent.nodes, sent.parents, strict=True):
        node.parent = sent.nodes[parent] if parent >= 0 else None
    return [
        replace(p, node=sent.nodes[end] if end >= 0 else None) for p, end in zip(sent.particles, sent.ends, strict=True)
    ]


def with_owed(window: Window, owed: float) -> Window:
    """A window in which an engine that fell behind, or ran ahead, comes back to the log's total."""
    generated = window.generated_tokens
    if generated is None or not owed:
        return window
    most = 20.0 + 0.1 * generated
    return replace(window, generated_tokens=max(0.0, generated + min(max(0.7 * owed, -most), most)))


def log_likelihood(window: Window, engine: SketchReplay, generated: float, credited: float) -> float:
    """How well a window's line is met. The spreads are what one step more or less would change."""
    total = count_misfit(window.running, engine.shown_running, 0.03)
    total += count_misfit(window.waiting, engine.shown_waiting, 0.04)
    if window.kv_usage is not None:
        total += _usage_misfit(window, engine)
    if window.generated_tokens is not None:
        spread = 6.0 + 0.02 * window.generated_tokens
        total += _square(generated - window.generated_tokens, spread)
    if window.prompt_tokens is not None:
        spread = 15.0 + 0.03 * window.prompt_tokens
        total += _square(credited - window.prompt_tokens, spread)
    if window.recomputing is not None:
        # several may resume in one step, and who was evicted in this window may resume in the next
        told = len(engine.preempted_at)
        total += _square(told - 1.25 * window.recomputing, 1.0 + 0.6 * math.sqrt(told) + 0.1 * told)
    return -total / 2


def count_misfit(seen: int, told: int, relative: float) -> float:
    """-2 log likelihood (but for a constant) that a line says `seen` where `told` is true.

    An engine that is empty is hardly ever seen at work: a spread that did not shrink towards zero would make idle servers
    look faster than they are.
    """
    spread = 0.45 + 0.35 * min(told, 1) + relative * told
    return _square(seen - told, spread) + 2.0 * math.log(spread)


def _usage_misfit(window: Window, engine: SketchReplay) -> float:
    """KV usage, where one request more or less running is not held against it twice."""
    seen = window.kv_usage or 0.0
    told = engine.usage
    each = seen / window.running if window.running else told / max(engine.shown_running, 1)
    surplus = (engine.shown_running - window.running) * each
    miss = min(abs(told - seen), abs(told - seen - surplus))
    return _square(miss, 0.003 + 0.015 * max(seen, told) + 0.15 * each)


def _square(miss: float, spread: float) -> float:
    return (miss / spread) ** 2


def tempering(logs: Floats, enough: float) -> float:
    """The exponent, at most 1, at which so many particles still count."""

    def effective(exponent: float) -> float:
        weights = np.exp(exponent * logs)
        return float(weights.sum() ** 2 / (weights**2).sum())

    if effective(1.0) >= enough:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= enough else (low, middle)
    return low
