"""logscope: reads a vLLM server's log and says what is behind its slow requests.

As a library: `read_log(expand(["server.log"]), Span())` gives frames, `analyze` an answer, `analysis_document` its JSON. Every name
is loaded when it is first asked for, so that importing logscope costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as `typing` has it, at no cost: what is loaded before Ctrl-C is answered is as little as can be

if TYPE_CHECKING:
    from logscope.analysis import Analysis, EngineResult, analyze
    from logscope.comparison import compare
    from logscope.errors import LogscopeError, NothingToWorkOn
    from logscope.evidence.finding import Finding
    from logscope.inference.result import Effort
    from logscope.log.frames import LogFrames, read_log
    from logscope.log.span import Span
    from logscope.output.json import analysis_document
    from logscope.output.report.page import write_html
    from parsers.reading.by_line import read_events
    from parsers.reading.events import Coverage, Event
    from parsers.sources.source import expand
    from reference_engine.cost.step_time import LinearStepTime
    from reference_engine.model.config import EngineConfig
    from reference_engine.model.request import Request
    from reference_engine.replay.results import ReplayResult, replay

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Coverage",
    "Effort",
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
    "logscope.output.json": ("analysis_document",),
    "logscope.comparison": ("compare",),
    "logscope.errors": ("LogscopeError", "NothingToWorkOn"),
    "logscope.evidence.finding": ("Finding",),
    "logscope.inference.result": ("Effort",),
    "logscope.log.frames": ("LogFrames", "read_log"),
    "logscope.output.report.page": ("write_html",),
    "logscope.log.span": ("Span",),
    "parsers.reading.events": ("Coverage", "Event"),
    "parsers.reading.by_line": ("read_events",),
    "parsers.sources.source": ("expand",),
    "reference_engine.model.config": ("EngineConfig",),
    "reference_engine.replay.results": ("ReplayResult", "replay"),
    "reference_engine.cost.step_time": ("LinearStepTime",),
    "reference_engine.model.request": ("Request",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'logscope' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
