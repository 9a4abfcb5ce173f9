"""Particles: engines that live through a log, each with its own past.

`Particle`, `Node` (what one did in one window), `WindowFit` (what all say of a window), `Plan` (how a pass goes).
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.request import SketchRequest
from reference_engine.sketch.step_cost import Floats, StepCost

__all__ = ["Node", "Particle", "Plan", "WindowFit"]


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
    """An engine, its step costs, and its past. `arrived`: requests that came to it so far.

    `owed`: tokens that the log has more than the engine, over the last windows: it has to catch up.
    """

    engine: SketchReplay
    cost: StepCost
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
