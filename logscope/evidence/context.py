"""What a finding may look at: one engine's log, its windows, and the lines that were kept as evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.evidence.finding import Evidence, seconds
from logscope.evidence.preemptions import Logged, stats_windows, usual_interval
from logscope.evidence.pressure import full_pct
from logscope.server.engines import EngineLog

__all__ = ["CLEAN_STOP_S", "Context", "cause_of", "context_of", "without_client_text"]

CLEAN_STOP_S = 5.0
"""What dies within so many seconds of a word of shutting down was stopped, and did not crash."""

# What only a running engine prints: variants of the family `runtime`, their text, and the methods of a worker that runs.
_RUNNING_VARIANTS = ("dead", "fatal", "dump", "dump_stats", "output_handler", "engine_dead", "jit")
_RUNNING_TEXT = re.compile(
    r"EngineCore encountered a fatal error|Engine core proc \S+ died unexpectedly|engine core exited unexpectedly"
    r"|\b(?:run_busy_loop|step_with_batch_queue|run_engine_loop|engine_step|_handle_client_request)\b"
)
_RUNNING_METHODS = (
    *("execute_model", "sample_tokens", "start_worker_execution_loop", "take_draft_token_ids", "get_output"),
    *("run_busy_loop", "run_engine_loop", "engine_step"),
)

# CUDA error: an illegal memory access was encountered; NCCL error in: …; Worker failed with error …; [Errno 28] No space left on device
_FROM_ENGINE = re.compile(
    r"(?:CUDA|HIP|NCCL|RCCL|cuBLAS|CUBLAS|cuDNN|Triton|XPU|EngineCore|Engine core|Worker|Executor|RPC call)\b|\[Errno \d{1,3}\] "
)
# What wraps the cause, or only repeats that there was one.
_WRAPPER = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed|Engine loop (?:has died|is not running)|Engine process failed"
    r"|Background loop (?:is not running|has errored)|Task finished unexpectedly|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipeError"
    r"|(?:Error|Exception): *cancelled$|See root cause above|See stack trace"
)
_WORDS = re.compile(r"[^\W\d_]+(?:_\w+)?")
# Messages of Python, PyTorch and vLLM are made of these words, numbers and names in code's spelling; a client's text hardly is.
_ENGINE_WORDS = frozenset(
    _WORDS.findall("""
    a all allowed already an and are arg args argument arguments array assert assertion at attribute attributes available axis be block
    blocks bool boundary bounds broadcast buffer bytes cache call called can cannot capacity changed class closed code connection contains copy
    count current data deque device devices dict dictionary did dimension dimensions division does done dtype during either element elements
    empty encountered engine error exceeded exception execute execution exist expected failed file first float for forward found from full
    function got graph group had has have id illegal in index indices inf info input inputs int integer invalid is it items iterable iteration
    iterator kernel key kwargs layer layers len length less list load local loop lost max memory method min missing mismatch model module more
    multiplied multiply must mutated nan neither no node none nor not null number object of on one only open operand operands operation or
    order out output pool popped positional probability process processes queue range rank read reached refused remote request requests
    required reset response result returned running same sampled schedule scheduled scheduler sequence sequences set shape shapes shared
    should size slot slots space state step steps stop storage str stream supported task tasks tensor tensors than that the thread timed
    timeout to token tokens too tuple type types unable unexpected unhashable unknown unpack unspecified unsupported up valid value values
    vector view was were when while width with within without work worker workers write wrong zero
""")
)
_PLAIN = re.compile(r"[\w\s()\[\]{}<>=!+*/:;,.'-]{1,200}")
_NAMED = re.compile(r"'(?:NoneType|[a-z]+|[A-Z][A-Za-z]+)'(?= object| and '| for )|'[a-z_]+'$")


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
    def served(self) -> bool:
        """Whether the server came up: it printed statistics, took requests, said that it listens, or printed what only a running engine does."""
        if any(self.log.get(f) is not None for f in ("stats", "request", "iteration", "preemption", "http")):
            return True
        startup = self.log.get("startup")
        if startup is not None and startup["variant"].is_in(("server_start", "routes")).any():
            return True
        runtime = self.log.get("runtime")
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
    return replace(context, exceptions=[replace(e, text=without_client_text(e.text)) for e in exceptions])


def without_client_text(text: str) -> str:
    """Once a server takes requests, an exception's message may quote one; what the engine and its libraries say themselves stays."""
    name, _, message = text.strip().partition(": ")
    if not message or _FROM_ENGINE.match(message) or _of_engine_words(message):
        return text
    return f"{name}: (left out)"


def _of_engine_words(message: str) -> bool:
    plain = (
        _NAMED.sub("", message) if "object has no attribute" in message or "unsupported operand" in message else message
    )
    return _PLAIN.fullmatch(plain) is not None and all(w.lower() in _ENGINE_WORDS for w in _WORDS.findall(plain))


def cause_of(texts: Iterable[str]) -> str | None:
    """The first exception that names a cause; wrappers that only say that there was one do not count."""
    return next((t.strip() for t in texts if t.strip() and _WRAPPER.search(t) is None), None)
