"""`Beside`: this process works, and where it takes long others work beside it.

The processes that work for this one: fresh ones, quiet at Ctrl-C, with their share of the machine, gone when this one is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import ParamSpec, TypeVar

__all__ = ["Beside", "processors", "stop_at_once", "worker_pool"]
P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool(ProcessPoolExecutor):
    """A pool whose processes are deaf to Ctrl-C from their first moment: one that is still importing would answer with a traceback."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A task; this may start a process, which has the signals blocked that this thread has."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(fn, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """So many processes, each started when it is first needed (spawned: a fork would copy the threads' locks)."""
    share = max(1, processors() // jobs)
    return _Pool(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(str(share),))


def stop_at_once(pool: ProcessPoolExecutor) -> None:
    """End the pool, whatever its processes are doing."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        with suppress(OSError, ValueError):
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def _begin(threads: str) -> None:
    """In a worker, before its first task: libraries read their number of threads when they are imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of them; the first process ends the others
    for name in _THREADS:
        os.environ.setdefault(name, threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A killed parent tells nobody: its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


R = TypeVar("R")

PATIENCE_S = 0.4
"""Seconds of work after which others are started: they need as long to begin, and short work is done by then."""

MOST_OTHERS = 3  # each takes memory, and there are a dozen parts at most


class Beside:
    """One item after the other in this process; once that has taken a while, others work beside it.

    One that dies, or cannot be started, leaves its item to this process.
    """

    width = 1  # what is not known to take long stays in this process

    def __init__(self, others: int | None = None, patience_s: float = PATIENCE_S) -> None:
        self._others = min(processors() - 1, MOST_OTHERS) if others is None else others
        self._patience_s = patience_s
        self._worked_s = 0.0
        self._pool: ProcessPoolExecutor | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._others = 0
            if self._pool is not None:
                stop_at_once(self._pool)
                self._pool = None

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, in the order of `items`; an exception of the function is raised here, at its place."""
        ahead = deque(items)
        while ahead and self._pool is None:
            yield self._alone(function, ahead.popleft())
        if self._pool is not None and ahead:
            yield from _shared(self._pool, function, ahead)

    def _alone(self, function: Callable[[T], R], item: T) -> R:
        began = time.monotonic()
        timer = threading.Timer(max(0.0, self._patience_s - self._worked_s), self._start)
        timer.daemon = True
        timer.start()
        try:
            return function(item)
        finally:
            timer.cancel()
            self._worked_s += time.monotonic() - began

    def _start(self) -> None:
        with self._starting, suppress(RuntimeError, OSError):
            if self._others > 0 and self._pool is None:
                pool = worker_pool(self._others)
                for _ in range(self._others):
                    pool.submit(import_module, "logscope.diagnosis.long_logs")  # the long part of beginning
                self._pool = pool


def _shared(pool: ProcessPoolExecutor, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """All results in order; this process does what nobody has begun while the next one is missing, and what a process that died left."""
    asked: list[Future[R]] = []
    with suppress(RuntimeError, OSError):  # broken, or no more processes are to be had
        asked += (pool.submit(function, item) for item in items)
    mine: dict[int, Future[R]] = {}
    try:
        for wanted, item in enumerate(items):
            while wanted not in mine and not (wanted < len(asked) and asked[wanted].done()):
                free = (k for k in range(len(items)) if k >= wanted and k not in mine)
                index = next((k for k in free if k >= len(asked) or asked[k].cancel()), None)
                if index is None:
                    break
                mine[index] = _outcome(function, items[index])
            done = mine.pop(wanted) if wanted in mine else asked[wanted]
            try:
                result = done.result()
            except (BrokenProcessPool, CancelledError):
                result = function(item)
            yield result
    finally:
        for future in asked:
            future.cancel()


def _outcome(function: Callable[[T], R], item: T) -> Future[R]:
    """What the function gives here, or raises, for the place where it is asked for."""
    done: Future[R] = Future()
    try:
        done.set_result(function(item))
    except Exception as error:
        done.set_exception(error)
    return done
