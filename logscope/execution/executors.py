"""Where tasks run: in this process, in several processes of this machine, or on a Ray cluster.

An `Executor` maps a function of a module over items and gives the results in the order of the items, whatever order they
are done in: who runs them does not change an answer. Few items more than can run are under way at a time. Several threads may map at once.
`Beside` is the default: this process works, and where that takes long others work beside it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from logscope import __version__
from logscope.errors import LogscopeError

__all__ = [
    "Beside",
    "Executor",
    "ExecutorError",
    "Processes",
    "RayCluster",
    "Serial",
    "executor_for",
    "processors",
    "worker_pool",
]

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_CONNECT_S = 10.0
_LOOK_S = 5.0  # between two looks at whether the cluster can still run anything


class ExecutorError(LogscopeError):
    """The processes or the cluster cannot be used."""

    status = 3


class Executor(AbstractContextManager["Executor"], Protocol):
    """Maps a function over items; used as a context, which ends what it started."""

    @property
    def width(self) -> int:
        """How many items run at a time."""

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, in the order of `items`; an exception of the function is raised here."""


class Serial:
    """One item after the other, in this process."""

    width = 1

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, each when it is asked for."""
        return map(function, items)


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
    """End the pool, whatever its processes are doing.

    What nobody has begun is dropped first: the pool's thread fails on what is cancelled when its processes die. Nor is it to wait
    until tasks are written to processes that read no more, which would be for ever.
    """
    processes = list((getattr(pool, "_processes", None) or {}).values())
    thread: threading.Thread | None = getattr(pool, "_executor_manager_thread", None)
    with suppress(AttributeError):
        pool._call_queue.cancel_join_thread()  # type: ignore[attr-defined]
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        with suppress(OSError, ValueError):
            process.terminate()
    if thread is not None:
        thread.join()


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


PATIENCE_S = 1.5
"""Seconds of work after which others are started: half a second of a processor goes into each before it begins, which only long work gains."""

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


class Processes:
    """Fresh processes of this machine."""

    def __init__(self, jobs: int) -> None:
        self.width = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        self._pool = worker_pool(self.width)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None and kind is not None:
            stop_at_once(self._pool)
        elif self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results; raises ExecutorError where a process was killed (no memory left, mostly)."""
        if self._pool is None:
            raise ValueError("the processes are started by `with`")
        pool, pending = self._pool, deque[Future[R]]()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > self.width:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise ExecutorError("a worker process was killed, perhaps for want of memory; use fewer --jobs") from error
        finally:
            for future in pending:
                future.cancel()


class RayCluster:
    """An existing Ray cluster (`address="auto"`: the one that this machine belongs to); `logscope` must be installed on its nodes."""

    def __init__(self, address: str = "auto", patience_s: float = 30.0) -> None:
        self.patience_s = patience_s
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ExecutorError("Ray is not installed; install it with: pip install 'logscope[ray]'") from None
        self._own = not self._ray.is_initialized()
        if self._own:
            _check_reachable(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ExecutorError(
                    f"no Ray cluster answers ({_first_line(error)}); start one (ray start --head) or leave --on out"
                ) from error
        self.width = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self._ray.shutdown()

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results; raises ExecutorError where the cluster lost a task for good, or cannot run any."""
        task = self._ray.remote(max_retries=3)(_call)
        shared = self._ray.put(function)  # sent to each node once
        pending: deque[Any] = deque()
        for item in items:
            pending.append(task.remote(__version__, shared, item))
            if len(pending) > self.width:
                yield self._result(pending.popleft())
        while pending:
            yield self._result(pending.popleft())

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            self._wait(reference)
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, (ImportError, errors.RaySystemError)):  # not even unpacked
                raise _not_on_all_nodes(error.cause) from error
            raise error.cause from error
        except errors.RayError as error:
            raise ExecutorError(f"the Ray cluster lost a task: {_first_line(error)}") from error

    def _wait(self, reference: Any) -> None:
        """Until the task is done; a cluster without a processor would be waited for in vain."""
        empty_since = None
        while not self._ray.wait([reference], timeout=_LOOK_S)[0]:
            if self._ray.cluster_resources().get("CPU", 0) >= 1:
                empty_since = None
                continue
            empty_since = empty_since or time.monotonic()
            if time.monotonic() - empty_since > self.patience_s:
                raise ExecutorError(
                    "no node of the Ray cluster is left that can run tasks; start one, or use --jobs here"
                )


def _check_reachable(address: str) -> None:
    """Ray asks an address at which nobody listens for minutes. Raises ExecutorError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():  # `auto`, `local`, and addresses of other kinds
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ExecutorError(
            f"no Ray cluster answers at {address} ({_first_line(error)}); start one (ray start --head) or leave --on out"
        ) from None


def _call(version: str, function: Callable[[T], R], item: T) -> R:
    if version != __version__:
        raise ExecutorError(
            f"a node of the Ray cluster has logscope {__version__}, this one {version}; install the same on all"
        )
    return function(item)


def _not_on_all_nodes(error: BaseException) -> ExecutorError:
    return ExecutorError(
        f"a node of the Ray cluster cannot run logscope ({_first_line(error)}); install logscope there, in this version"
    )


def executor_for(jobs: int | None = None, on: str | None = None) -> Executor:
    """The executor of `--jobs N` and `--on ray`; with neither this process, with others beside it where that pays.

    Raises ExecutorError where there is none.
    """
    if on == "ray":
        return RayCluster()
    if jobs is None:
        return Beside()
    return Processes(jobs) if jobs > 1 else Serial()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
