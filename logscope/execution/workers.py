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
from typing import Any, Generic, ParamSpec, TypeVar

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
            others = min(self._others, len(ahead))
            yield from _Shared(function, ahead).results(self._pool, others)

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


class _Shared(Generic[T, R]):
    """Items that several take from, and what came of them."""

    def __init__(self, function: Callable[[T], R], items: Sequence[T]) -> None:
        self._function, self._items = function, items
        self._left = list(range(len(items)))[::-1]
        self._done: dict[int, tuple[Any, BaseException | None]] = {}
        self._changed = threading.Condition()

    def results(self, pool: ProcessPoolExecutor, others: int) -> Iterator[R]:
        """All results in order; works on what nobody has taken while one is missing."""
        threads = [threading.Thread(target=self._send, args=(pool,), daemon=True) for _ in range(others)]
        for thread in threads:
            thread.start()
        try:
            for wanted in range(len(self._items)):
                yield self._result(wanted)
        finally:
            with self._changed:
                self._left.clear()

    def _take(self) -> int | None:
        with self._changed:
            return self._left.pop() if self._left else None

    def _result(self, wanted: int) -> R:
        while wanted not in self._done:
            mine = self._take()
            if mine is not None:
                self._note(mine, *_outcome(self._function, self._items[mine]))
                continue
            with self._changed:
                self._changed.wait_for(lambda: wanted in self._done or self._left)
        result, error = self._done.pop(wanted)
        if error is not None:
            raise error
        found: R = result
        return found

    def _note(self, index: int, result: Any, error: BaseException | None) -> None:
        with self._changed:
            self._done[index] = result, error
            self._changed.notify_all()

    def _send(self, pool: ProcessPoolExecutor) -> None:
        """Keep one process at work."""
        while (index := self._take()) is not None:
            try:
                future = pool.submit(self._function, self._items[index])
            except (RuntimeError, OSError):  # broken, or no more processes are to be had
                self._give_back(index)
                return
            try:
                self._note(index, future.result(), None)
            except (BrokenProcessPool, CancelledError):
                self._give_back(index)
                return
            except Exception as error:
                self._note(index, None, error)

    def _give_back(self, index: int) -> None:
        with self._changed:
            self._left.append(index)
            self._changed.notify_all()


def _outcome(function: Callable[[T], R], item: T) -> tuple[R | None, Exception | None]:
    try:
        return function(item), None
    except Exception as error:
        return None, error
