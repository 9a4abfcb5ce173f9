"""Whose event is it: the servers in the input, each server's starts, and the engine of each event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parsers.lines import later
from parsers.records.record import Record

__all__ = ["OF_A_START", "Place", "Sessions", "engine_index"]

# EngineCore_DP1, EngineCore_1, Worker_DP1_TP0, DPEngineCoreActor_DP1, APIServer_DP1
_ENGINE_IN_NAME = later(r"(?:_DP|^EngineCore_)(?P<index>\d{1,4})")
_REPLICA = later(r"(?:ServeReplica|LLMServer)\S* pid=\d+")

# In the order in which a start prints them: a marker that is not after the last one begins a new start.
_MARKERS = ("api_version", "version_model", "init")
# Of the family `stats`, but printed while a server starts.
OF_A_START = ("v1_cacheinfo", "v1_stats_disabled")


@dataclass(slots=True)
class Place:
    """Where an event belongs."""

    server: int
    run: int


@dataclass(slots=True)
class _Server:
    index: int
    run: int = 0
    seen: dict[str, set[str | None]] = field(default_factory=dict)
    serving: bool = False
    counters: dict[tuple[str | None, int | None], int] = field(default_factory=dict)

    def restart(self) -> None:
        self.run += 1
        self.seen.clear()
        self.serving = False
        self.counters.clear()


class Sessions:
    """Numbers servers and starts as events go by, in order."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str | None, ...], _Server] = {}

    def state(self) -> list[dict[str, Any]]:
        """What is known of the servers, as JSON holds it."""
        return [
            {
                "key": list(key),
                "index": server.index,
                "run": server.run,
                "serving": server.serving,
                "seen": {rank: sorted(who, key=str) for rank, who in server.seen.items()},
                "counters": [[*who, count] for who, count in server.counters.items()],
            }
            for key, server in self._servers.items()
        ]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> Sessions:
        """The sessions that `state` described."""
        sessions = cls()
        for known in state:
            sessions._servers[tuple(known["key"])] = _Server(
                known["index"],
                known["run"],
                {rank: set(who) for rank, who in known["seen"].items()},
                known["serving"],
                {(process, pid): count for process, pid, count in known["counters"]},
            )
        return sessions

    def reserve(self, other: Sessions) -> None:
        """Give the servers that only `other`, which went on from here, has met the numbers that they have there."""
        for key, server in other._servers.items():
            if key not in self._servers:
                self._servers[key] = _Server(server.index)

    def place(self, group: str, record: Record, family: str, variant: str, fields: dict[str, Any]) -> Place:
        """Assign the event of `record`; `group` names the stream (a file, a rotated set, standard input)."""
        key = _key(group, record)
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = _Server(len(self._servers))
        if family == "startup":
            self._start(server, record, variant, fields)
        elif family in ("stats", "iteration", "request") and variant not in OF_A_START:
            server.serving = True
        elif family == "preemption":
            self._counter(server, record, fields)
        elif family == "http" and fields.get("event") == "server_started" and server.serving and not server.seen:
            server.restart()
        return Place(server.index, server.run)

    def _start(self, server: _Server, record: Record, variant: str, fields: dict[str, Any]) -> None:
        rank = _rank(variant, fields)
        if rank is None:
            return
        seen = server.seen.setdefault(rank, set())
        later = any(server.seen.get(r) for r in _MARKERS[_MARKERS.index(rank) + 1 :])
        # Each API server and each engine of one start prints its marker once, under a name of its own.
        if record.process in seen or (server.serving and (not seen or later)):
            server.restart()
            seen = server.seen.setdefault(rank, set())
        seen.add(record.process)

    def _counter(self, server: _Server, record: Record, fields: dict[str, Any]) -> None:
        """V0's counter is cumulative per process: where it goes back the process is a new one."""
        count = fields.get("total_num_cumulative_preemption")
        if not isinstance(count, int):
            return
        who = (record.process, record.pid)
        if count < server.counters.get(who, 0):
            server.restart()
        server.counters[who] = count


def _rank(variant: str, fields: dict[str, Any]) -> str | None:
    if variant.startswith("init"):
        return "init"
    if "args" in fields:
        return None
    if variant.startswith(("api_version", "version_model")) and "version" in fields:
        return variant[:11] if variant.startswith("api_version") else "version_model"
    return None


def _key(group: str, record: Record) -> tuple[str | None, ...]:
    outer = record.outer
    replica = next((a for a in record.actors if _REPLICA.match(a)), None)
    if outer is None:
        return (group, None, None, None, replica)
    place = (outer.host, outer.unit, outer.pod or outer.container)
    return (group if place == (None, None, None) else None, *place, replica)


def engine_index(record: Record, family: str, fields: dict[str, Any]) -> int | None:
    """The data-parallel engine an event speaks of: named in the message, else in the process's name, else 0 for engine records."""
    if fields.get("aggregated") or "num_engines" in fields:
        return None
    if isinstance(fields.get("engine"), int):
        return int(fields["engine"])
    match = _ENGINE_IN_NAME.search(record.process or "")
    if match is not None:
        return int(match["index"])
    return 0 if family in ("stats", "iteration", "preemption") or (record.process or "") == "EngineCore" else None
