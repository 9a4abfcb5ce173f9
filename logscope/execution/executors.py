"""Where tasks run: in this process, in several processes of this machine, or on a Ray cluster.

An `Executor` maps a function of a module over items and gives the results in the order of the items, whatever order they
are done in: who runs them does not change an answer. Few items more than can run are under way at a time. Several threads may map at once.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from logscope import __version__
from logscope.errors import LogscopeError
from logscope.execution.workers import Beside, stop_at_once, worker_pool

__all__ = ["Beside", "Executor", "ExecutorError", "Processes", "RayCluster", "Serial", "executor_for"]

T = TypeVar("T")
R = TypeVar("R")

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
