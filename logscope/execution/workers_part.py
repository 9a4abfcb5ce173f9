"""The processes that work for this one: fresh ones, quiet at Ctrl-C, with their share of the machine, gone when this one is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

__all__ = ["processors", "stop_at_once", "worker_pool"]

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
    return _Pool(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(str(share),),
    )


def stop_at_once(pool: ProcessPoolExecutor) -> None:
    """End the pool, whatever its processes are doing."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        with suppress(OSError, ValueError):
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def _begin(threads: str) -> None:
    """In a worker, before its first task: libraries read their number of threads when they are imported."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all of them; the first process ends the others
    for name in _THREADS:
        os.environ.setdefault(name, threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A killed parent tells nobody: its workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
