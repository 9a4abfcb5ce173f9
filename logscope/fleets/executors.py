"""Where tasks run: in this process, in several processes of this machine, or on a Ray cluster.

An `Executor` maps a function of a module over items and gives the results in the order of the items, whatever order they
are done in: who runs them does not change an answer. Few items more than can run are under way at a time.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from logscope.errors import LogscopeError

__all__ = ["Executor", "ExecutorError", "Processes", "RayCluster", "Serial", "executor_for"]

T = TypeVar("T")
R = TypeVar("R")

_THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ExecutorError(LogscopeError):
    """The processes or the cluster cannot be used."""

    status = 3


class Executor(AbstractContextManager["Executor"], Protocol):
    """Maps a function over items; used as a context, which ends what it started."""

    @property
    def width(self) -> int:
        """How many items run at a time."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results, in the order of `items`; an exception of the function is raised here."""


class Serial:
    """One item after the other, in this process."""

    width = 1

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results, each when it is asked for."""
        return map(function, items)


class Processes:
    """Fresh processes of this machine (spawned: a fork would copy the threads' locks)."""

    def __init__(self, jobs: int) -> None:
        self.width = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results; raises ExecutorError where a process was killed (no memory left, mostly)."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.width, mp_context=context)
        pool, pending = self._pool, deque[Future[R]]()
        try:
            with _threads_of(self.width):
                for item in items:
                    pending.append(pool.submit(function, item))
                    if len(pending) > self.width:
                        yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise ExecutorError(
                "a worker process was killed, perhaps for want of memory; use fewer --jobs"
            ) from error
        finally:
            for future in pending:
                future.cancel()


class RayCluster:
    """An existing Ray cluster (`address="auto"`: the one that this machine belongs to); `logscope` must be installed on its nodes."""

    def __init__(self, address: str = "auto") -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ExecutorError(
                "Ray is not installed; install it with: pip install 'logscope[ray]'"
            ) from None
        self._own = not self._ray.is_initialized()
        if self._own:
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

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results; raises ExecutorError where the cluster lost a task for good."""
        task = self._ray.remote(max_retries=2)(_call)
        pending: deque[Any] = deque()
        for item in items:
            pending.append(task.remote(function, item))
            if len(pending) > self.width:
                yield self._result(pending.popleft())
        while pending:
            yield self._result(pending.popleft())

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise ExecutorError(f"the Ray cluster lost a task: {_first_line(error)}") from error


def _call(function: Callable[[T], R], item: T) -> R:
    return function(item)


def executor_for(jobs: int = 1, on: str | None = None) -> Executor:
    """The executor of `--jobs N` and `--on ray`; raises ExecutorError where there is none."""
    if on == "ray":
        return RayCluster()
    return Processes(jobs) if jobs > 1 else Serial()


class _threads_of(AbstractContextManager[None]):  # noqa: N801
    """While processes start: each has its share of the machine's threads, not all of them."""

    def __init__(self, jobs: int) -> None:
        self._share = str(max(1, (os.cpu_count() or 1) // jobs))
        self._set: list[str] = []

    def __enter__(self) -> None:
        self._set = [name for name in _THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(self._set, self._share))

    def __exit__(self, *error: object) -> None:
        for name in self._set:
            os.environ.pop(name, None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
