"""Particles on their way between processes: their pasts as a table, for a chain of a thousand windows is too deep to be sent as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from logscope.inference.windows.particles import Node, Particle

__all__ = ["Carried", "carried", "unpacked"]


@dataclass(frozen=True, slots=True)
class Carried:
    """`particles` and `nodes` without what they hang on; `parents[i]` is the place of node i's parent, `ends[i]` that of particle i's node
    (-1: none). A parent stands before its children.
    """

    particles: list[Particle]
    ends: list[int]
    nodes: list[Node]
    parents: list[int]


def carried(particles: Sequence[Particle]) -> Carried:
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
    return Carried([replace(p, node=None) for p in particles], ends, nodes, parents)


def unpacked(sent: Carried) -> list[Particle]:
    """The particles with their pasts again."""
    for node, parent in zip(sent.nodes, sent.parents, strict=True):
        node.parent = sent.nodes[parent] if parent >= 0 else None
    return [
        replace(p, node=sent.nodes[end] if end >= 0 else None)
        for p, end in zip(sent.particles, sent.ends, strict=True)
    ]
