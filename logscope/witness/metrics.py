"""What a server's own metrics prove: preemptions by difference of the counter, gauges' heights, latencies from histograms.

They come from a file or an address, within limits. What is fetched is only read: never run, never followed anywhere but http(s).
"""

from __future__ import annotations

import base64
import http.client
import itertools
import math
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import unquote, urlsplit

from logscope.errors import LogscopeError
from logscope.sanitize import believed_number, visible
from logscope.witness.samples import Point, Samples, looks_like_exposition, read_exposition, read_json
from parsers.sources.compression import DamagedError, compression_of, decoded
from parsers.sources.object_stores import without_secrets
from parsers.sources.source import open_file, pushed_back

__all__ = ["Growth", "MetricsWitness", "WitnessError", "read_metrics", "text_of"]
MAX_BYTES = 1 << 28
MAX_FETCHED = 1 << 25
PATIENCE_S = 15.0
LONGEST_S = 60.0


class WitnessError(LogscopeError):
    """A second witness could not be read."""

    status = 3


def text_of(name: str) -> str:
    """The text of a file (also compressed) or of an http(s) address; a server's bare address means its /metrics.

    Raises WitnessError where it cannot be had.
    """
    scheme = name.partition("://")[0].lower() if "://" in name else ""
    if scheme in ("http", "https"):
        return _fetched(name)
    if scheme:
        raise WitnessError(f"{without_secrets(name)}: only files, http and https addresses are read")
    return _read(name)


def _read(name: str) -> str:
    try:
        file, head = open_file(Path(name))
        with file:
            while len(head) < 16 and (more := file.read(16 - len(head))):
                head += more
            kind = compression_of(head)
            rest = pushed_back(head, lambda: file.read(1 << 20) or b"")
            blocks = decoded(kind, rest) if kind else iter(rest, b"")
            parts, size = [], 0
            for block in blocks:
                parts.append(block)
                size += len(block)
                if size > MAX_BYTES:
                    raise WitnessError(f"{name}: more than {MAX_BYTES >> 20} MiB; give a shorter stretch")
    except OSError as error:
        raise WitnessError(f"{name}: {error.strerror or error}") from None
    except ValueError:
        raise WitnessError(f"{visible(name)}: no valid file name") from None
    except DamagedError as error:
        raise WitnessError(f"{name}: {error.reason}") from None
    return b"".join(parts).decode("utf-8-sig", "replace")


class _OnlyWeb(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http(s) and to nothing else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"redirected to {without_secrets(newurl)[:80]}, which is not read")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str) -> str:
    """The text at an address, in `LONGEST_S` seconds in all: a server may hang up, stutter or talk for ever at any point of its answer."""
    shown = without_secrets(address)
    answers: Queue[str | Exception] = Queue(1)

    def ask() -> None:
        try:
            answers.put(_asked(address, shown))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="fetch", daemon=True).start()  # a thread that hangs must not hold up the end
    try:
        found = answers.get(timeout=LONGEST_S)
    except Empty:
        raise WitnessError(f"{shown}: not read to its end in {LONGEST_S:.0f} s") from None
    if isinstance(found, WitnessError):
        raise found
    if isinstance(found, urllib.error.HTTPError):
        raise WitnessError(f"{shown}: the server answers {found.code} {visible(str(found.reason))[:80]}")
    if isinstance(found, (OSError, ValueError, http.client.HTTPException)):
        raise WitnessError(f"{shown}: {_reason(found)}")
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: Exception) -> str:
    """Why nothing was had of a server, without an address that may hold a password."""
    if isinstance(error, http.client.InvalidURL) or (isinstance(error, ValueError) and not isinstance(error, OSError)):
        return "not an address that can be asked"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "the server's answer is not HTTP, or is broken off"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    if isinstance(reason, TimeoutError):
        return f"no answer in {PATIENCE_S:.0f} s"
    return without_secrets(visible(str(getattr(reason, "strerror", None) or reason)))[:200]


_LENGTH = re.compile(r"[0-9]{1,18}")


def _asked(address: str, shown: str) -> str:
    parts = urlsplit(address)
    if parts.path in ("", "/") and not parts.query:
        address = address.rstrip("/") + "/metrics"
    headers = {"User-Agent": "logscope", "Accept": "text/plain"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        address = address.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _OnlyWeb(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (http or https, see text_of)
    with opener.open(request, timeout=PATIENCE_S) as answer:
        data, announced = b"", {length.strip() for length in answer.headers.get_all("Content-Length", [])}
        if len(announced) > 1 or not all(_LENGTH.fullmatch(length) for length in announced):
            raise WitnessError(f"{shown}: the server's answer is not HTTP, or is broken off")
        while block := answer.read1(1 << 16):
            data += block
            if len(data) > MAX_FETCHED:
                raise WitnessError(f"{shown}: more than {MAX_FETCHED >> 20} MiB, which is no scrape")
    if any(len(data) < int(length) for length in announced):
        raise WitnessError(f"{shown}: the answer is cut off before its end")
    return data.decode("utf-8", "replace")


PREEMPTIONS = "vllm:num_preemptions_total"
_LATENCIES = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
    # Before 0.11 the gaps between tokens bear the second name.
    "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
}
_POINTS = {"ttft_s": ("p50", "p90", "p99"), "e2e_s": ("p50", "p90", "p99"), "itl_s": ("p50", "p99")}


@dataclass(frozen=True, slots=True)
class Growth:
    """How a counter grew: `first` is what it stood at in the first scrape, `lives` the growth of each life of the process.

    `steps` are (start, end, growth) between scrapes with a time, in seconds since the epoch.
    """

    first: float
    lives: tuple[float, ...]
    scrapes: int
    steps: tuple[tuple[float, float, float], ...] = ()

    @property
    def seen(self) -> float:
        """The growth between the first scrape and the last."""
        return sum(self.lives)

    @property
    def from_zero(self) -> float:
        """The growth since the first process began."""
        return self.first + self.seen


def growth_of(points: Sequence[Point]) -> Growth:
    """The growth of one counter's points, in order; where it goes back the process began anew, from zero."""
    lives, steps = [0.0], []
    for (t0, before), (t1, after) in itertools.pairwise(points):
        if after < before:
            lives.append(0.0)
            more = after
        else:
            more = after - before
        lives[-1] += more
        if more and t0 is not None and t1 is not None:
            steps.append((t0, t1, more))
    return Growth(points[0][1], tuple(lives), len(points), tuple(steps))


def _together(parts: Sequence[Growth]) -> Growth:
    """Several counters of one server (engines, API servers) as one; their processes live and die together."""
    most = max(len(p.lives) for p in parts)
    lives = [0.0] * most
    for part in parts:
        for i, life in enumerate(part.lives):
            lives[most - len(part.lives) + i] += life
    steps = sorted(s for p in parts for s in p.steps)
    return Growth(sum(p.first for p in parts), tuple(lives), max(p.scrapes for p in parts), tuple(steps))


@dataclass(frozen=True, slots=True)
class MetricsWitness:
    """Metrics of one server, read from one or several sources."""

    samples: Samples = field(default_factory=Samples)

    def preemptions(self, engine: int | None = None) -> Growth | None:
        """The growth of the preemption counter, of one engine or of all; None where there is none."""
        parts = [
            growth_of(points)
            for labels, points in self.samples.of(PREEMPTIONS)
            if engine is None or labels.get("engine") == str(engine)
        ]
        return _together(parts) if parts else None

    @property
    def engines(self) -> frozenset[str]:
        """The engines that the labels tell apart; empty where they do not, or where several servers are mixed."""
        found = [labels for labels, _ in self.samples.of(PREEMPTIONS)]
        names = [labels.get("engine") for labels in found]
        if None in names or len(set(names)) != len(names):
            return frozenset()
        return frozenset(n for n in names if n is not None)

    @property
    def span(self) -> tuple[float, float] | None:
        """The first and last time of a scrape, in seconds since the epoch."""
        times = [t for points in self.samples.series.values() for t, _ in points if t is not None]
        return (min(times), max(times)) if times else None

    def latency(self, *, from_zero: bool) -> dict[str, Any] | None:
        """Percentiles in seconds, read from the histograms by linear interpolation within a bucket; None without histograms.

        `from_zero`: all requests of the process, else those between the first scrape and the last (all of a single scrape).
        """
        found: dict[str, Any] = {}
        for key, names in _LATENCIES.items():
            buckets = next((b for n in names if (b := self._buckets(n, from_zero=from_zero))), None)
            found[key] = {p: _quantile(buckets, float(p[1:]) / 100) if buckets else None for p in _POINTS[key]}
        return found if any(v["p50"] is not None for v in found.values()) else None

    def document(self) -> dict[str, Any]:
        """What the metrics say, as a block of `analyze --json`."""
        span, growth = self.span, self.preemptions()
        queue = self._mean("vllm:request_queue_time_seconds")
        return {
            "sources": list(self.samples.sources),
            "samples": self.samples.vllm,
            "unread": self.samples.bad,
            "scrapes": growth.scrapes if growth else None,
            "start": _iso(span[0]) if span else None,
            "end": _iso(span[1]) if span else None,
            "preemptions": growth.from_zero if growth else None,
            "preemptions_between_scrapes": growth.seen if growth else None,
            "restarts": len(growth.lives) - 1 if growth else None,
            "running_max": self._highest("vllm:num_requests_running"),
            "waiting_max": self._highest("vllm:num_requests_waiting"),
            "kv_usage_max": self._highest("vllm:kv_cache_usage_perc"),
            "queue_time_mean_s": queue,
            "latency_from_zero": self.latency(from_zero=True),
        }

    def _highest(self, name: str) -> float | None:
        values = [value for _, points in self.samples.of(name) for _, value in points]
        return max(values) if values else None

    def _mean(self, name: str) -> float | None:
        total, count = (
            sum(growth_of(points).from_zero for _, points in self.samples.of(f"{name}_{part}"))
            for part in ("sum", "count")
        )
        return total / count if count else None

    def _buckets(self, name: str, *, from_zero: bool) -> list[tuple[float, float]]:
        """Upper bounds and cumulative counts, over all series of a histogram."""
        counts: dict[float, float] = {}
        for labels, points in self.samples.of(f"{name}_bucket"):
            bound = math.inf if labels.get("le") in ("+Inf", "Inf", "inf") else believed_number(labels.get("le"))
            if bound is None:
                continue
            growth = growth_of(points)
            whole = from_zero or growth.scrapes == 1
            counts[bound] = counts.get(bound, 0.0) + (growth.from_zero if whole else growth.seen)
        found = sorted(counts.items())
        return found if found and found[-1][1] > 0 else []


def read_metrics(names: Iterable[str]) -> MetricsWitness:
    """Read the metrics of files and addresses, in their order. Raises WitnessError where one cannot be read or holds no vLLM metric."""
    samples = Samples()
    for name in names:
        text = text_of(name)
        before = samples.vllm
        name = without_secrets(name)
        samples.sources.append(name)
        if text.lstrip()[:1] in ("{", "["):
            read_json(text, samples)
        elif looks_like_exposition(text):
            read_exposition(text, samples)
        if samples.vllm == before:
            raise WitnessError(
                f"{name}: no vLLM metric in it; give the text of /metrics, an answer of Prometheus' query_range, or one JSON scrape a line"
            )
    return MetricsWitness(samples)


def _quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """As Prometheus does it: linear within the bucket; beyond the last bound nothing more is known than that bound."""
    rank = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == math.inf:
                return low
            return low + (bound - low) * ((rank - below) / (count - below) if count > below else 1)
        low, below = bound, count
    return low


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, timezone.utc).isoformat().replace("+00:00", "Z")
