"""logscope: reads a vLLM server's log and says what is behind its slow requests.

As a library: `read_log(expand(["server.log"]), Span())` gives frames, `analyze` an answer, `analysis_document` its JSON. Every name
is loaded when it is first asked for, so that importing logscope costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logscope.analysis import Analysis, EngineResult, analyze
    from logscope.analysis_json import analysis_document
    from logscope.comparison import compare
    from logscope.errors import LogscopeError, NothingToWorkOn
    from logscope.finding import Finding
    from logscope.log_frames import LogFrames, read_log
    from logscope.report.html import write_html
    from logscope.times import Span
    from parsers.events import Coverage, Event
    from parsers.reader import read_events
    from parsers.sources import expand
    from reference_engine.config import EngineConfig
    from reference_engine.results import ReplayResult, replay
    from reference_engine.step_time import LinearStepTime
    from reference_engine.workload import Request

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Coverage",
    "EngineConfig",
    "EngineResult",
    "Event",
    "Finding",
    "LinearStepTime",
    "LogFrames",
    "LogscopeError",
    "NothingToWorkOn",
    "ReplayResult",
    "Request",
    "Span",
    "__version__",
    "analysis_document",
    "analyze",
    "compare",
    "expand",
    "read_events",
    "read_log",
    "replay",
    "write_html",
]

_HOMES = {
    "logscope.analysis": ("Analysis", "EngineResult", "analyze"),
    "logscope.analysis_json": ("analysis_document",),
    "logscope.comparison": ("compare",),
    "logscope.errors": ("LogscopeError", "NothingToWorkOn"),
    "logscope.finding": ("Finding",),
    "logscope.log_frames": ("LogFrames", "read_log"),
    "logscope.report.html": ("write_html",),
    "logscope.times": ("Span",),
    "parsers.events": ("Coverage", "Event"),
    "parsers.reader": ("read_events",),
    "parsers.sources": ("expand",),
    "reference_engine.config": ("EngineConfig",),
    "reference_engine.results": ("ReplayResult", "replay"),
    "reference_engine.step_time": ("LinearStepTime",),
    "reference_engine.workload": ("Request",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'logscope' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
