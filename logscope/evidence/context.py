"""What a finding may look at: one engine's log, its windows, and the lines that were kept as evidence."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.evidence.finding import Evidence, seconds
from logscope.evidence.preemptions import Logged, stats_windows, usual_interval
from logscope.evidence.pressure import evicted_share, full_pct
from logscope.sanitize import without_client_text
from logscope.server.engines import EngineLog
from reference_engine.v1.profile import counts_hits

__all__ = ["CLEAN_STOP_S", "Context", "cause_of", "context_of"]

Texts = dict[tuple[str, int], str]
_SOUGHT = (128, 64, 32, 16, 8)  # characters of an error that tell where it stands in its line

CLEAN_STOP_S = 5.0
"""What dies within so many seconds of a word of shutting down was stopped, and did not crash."""

# What only a running engine prints: variants of the family `runtime`, their text, and the methods of a worker that runs.
_RUNNING_VARIANTS = ("dead", "fatal", "dump", "dump_stats", "output_handler", "engine_dead", "jit", "grammar")
_RUNNING_TEXT = re.compile(
    r"EngineCore encountered a fatal error|Engine core proc \S+ died unexpectedly|engine core exited unexpectedly"
    r"|\b(?:run_busy_loop|step_with_batch_queue|run_engine_loop|engine_step|_handle_client_request)\b"
)
_RUNNING_METHODS = (
    *("execute_model", "sample_tokens", "start_worker_execution_loop", "take_draft_token_ids", "get_output"),
    *("run_busy_loop", "run_engine_loop", "engine_step"),
)

# What wraps the cause, or only repeats that there was one.
_WRAPPER = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed|Engine loop (?:has died|is not running)|Engine process failed"
    r"|Background loop (?:is not running|has errored)|Task finished unexpectedly|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError"
    r"|(?:Error|Exception): *cancelled$|See root cause above|See stack trace"
)


_PORT_TAKEN = re.compile(r"OSError: \[Errno \d{1,3}\] Address already in use")


@dataclass(frozen=True, slots=True)
class Context:
    """`texts` maps (source, line) to the line's text; `exceptions` are unrecognised last lines of tracebacks, in order."""

    log: EngineLog
    windows: pl.DataFrame | None
    logged: Logged
    texts: Mapping[tuple[str, int], str]
    exceptions: list[Evidence] = field(default_factory=list)

    @property
    def intervals(self) -> int:
        """How many statistics lines show the queues."""
        return 0 if self.windows is None else self.windows.height

    def span_of(self, rows: pl.DataFrame) -> tuple[datetime | None, datetime | None]:
        """From the interval that ends with the first of these windows to the end of the last, within the log."""
        first, last = seconds(rows["end"].to_list())
        if first is None or self.windows is None:
            return first, last
        first -= timedelta(seconds=usual_interval(self.windows))
        begun = self.log.facts.start
        return (first if begun is None or last is None else min(max(first, begun), last)), last

    @property
    def evicted(self) -> float:
        """Share of the prompt tokens computed that the prefix cache had and lost for lack of room (`evicted_share`)."""
        return evicted_share(self.windows, counts_hits=counts_hits(self.log.facts.version or ""))

    @property
    def served(self) -> bool:
        """Whether the server came up: it printed statistics, took requests, said that it listens, or printed what only a running engine does."""
        if any(self.log.get(f) is not None for f in ("stats", "request", "iteration", "preemption")):
            return True
        runtime = self.log.get("runtime")
        if runtime is not None and (runtime["variant"] == "bind_error").any():
            return False
        if self.log.get("http") is not None:
            return True
        startup = self.log.get("startup")
        if startup is not None and startup["variant"].is_in(("server_start", "routes")).any():
            return not any(_PORT_TAKEN.search(e.text) for e in self.exceptions)
        return runtime is not None and any(self._of_running(row) for row in runtime.iter_rows(named=True))

    def _of_running(self, row: Mapping[str, Any]) -> bool:
        if row["variant"] in _RUNNING_VARIANTS or row.get("method") in _RUNNING_METHODS:
            return True
        if row["variant"] not in ("coredied", "worker_exc", "rpc"):
            return False
        text = f"{row.get('logged_as') or ''}\n{self.texts.get((row['source'], row['line']), '')}"
        return _RUNNING_TEXT.search(text) is not None


def context_of(
    log: EngineLog, logged: Logged, texts: Mapping[tuple[str, int], str], exceptions: list[Evidence]
) -> Context:
    """Prepare an engine's context."""
    context = Context(log, stats_windows(log.get("stats"), full_pct(log.facts)), logged, texts, exceptions)
    if not context.served:
        return context
    told = [replace(e, text=without_client_text(e.text)) for e in exceptions]
    own = _without_errors(log.get("runtime"), texts)
    return replace(context, exceptions=told, texts=ChainMap(own, texts))  # type: ignore[arg-type]  # it is only read


def _without_errors(runtime: pl.DataFrame | None, texts: Mapping[tuple[str, int], str]) -> Texts:
    """The lines of a running engine's errors, without what an exception's text may quote (`parsers.families.CLIENT_TEXT`)."""
    found: Texts = {}
    if runtime is None or "error" not in runtime.columns:
        return found
    for source, line, error in runtime.filter(pl.col("error").is_not_null()).select("source", "line", "error").rows():
        text = texts.get((source, line), "")
        # the line may hold only the beginning of an error that goes on elsewhere
        at = next((at for size in _SOUGHT if (at := text.find(error[:size])) >= 0), -1)
        if at >= 0:
            rest = text[at + len(error) :] if text.startswith(error, at) else ""
            found[source, line] = text[:at] + without_client_text(error) + rest
    return found


def cause_of(texts: Iterable[str]) -> str | None:
    """The first exception that names a cause; wrappers that only say that there was one do not count."""
    return next((t.strip() for t in texts if t.strip() and _WRAPPER.search(t) is None), None)
