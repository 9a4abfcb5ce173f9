"""The server's end: vLLM's own lines (uvicorn's stand in `http`). Time-outs are in seconds, also where printed `30s`."""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind, slug
from parsers.families.literals import parse_literal
from parsers.lines import later_regex

__all__ = ["FORMATS", "SCHEMA"]

SCHEMA: dict[str, Kind] = {
    "event": Kind.TEXT,
    "pid": Kind.WHOLE,
    "component": Kind.TEXT,
    "action": Kind.TEXT,
    "num_requests": Kind.WHOLE,
    "timeout_s": Kind.WHOLE,
    "timeout": Kind.TEXT,
    "mode": Kind.TEXT,
    "signal": Kind.TEXT,
    "method": Kind.TEXT,
    "request_id": Kind.TEXT,
}

_COMPONENT = later_regex(r"\s*+\[shutdown\] ([\w. -]{1,60}?): ([^\n]{1,400})")
_PAIR = later_regex(r"\s(\w++)=(\S++)")


def _any_component(text: str) -> Fields | None:
    """A `[shutdown] component: what it does key=value …` line that has no format of its own."""
    found = _COMPONENT.match(text)
    if found is None:
        return None
    fields: Fields = {"component": found[1], "action": _PAIR.split(found[2])[0].strip()}
    for key, value in _PAIR.findall(found[2]):
        if key not in fields:
            fields[slug(key)] = parse_literal(value)
    return fields


_format = partial(Format, "shutdown", "httpstop")
_INFO = "INFO"
_NEW = "0.23.0..0.33.0"

# engine, versions, level, template, example (None: the template itself)
_ROWS: tuple[tuple[str, str, str, str, str | None], ...] = (
    ("V0", "0.5.0..0.10.2", _INFO, "Engine is gracefully shutting down.", None),
    ("any", "0.5.4..0.6.1.post2", _INFO, "Gracefully stopping http server", None),
    ("any", "0.6.2..0.22.1", _INFO, "Shutting down FastAPI HTTP server.", None),
    ("V1", "0.18.0..0.22.1", _INFO, "Aborting {num_requests:d} requests", "Aborting 12 requests"),
    (
        "V1",
        "0.18.0..0.22.1",
        _INFO,
        "Draining {num_requests:d} in-flight requests (timeout={timeout_s:d}s)",
        "Draining 12 in-flight requests (timeout=30s)",
    ),
    ("V1", "0.18.0..0.22.1", _INFO, "Shutdown complete", None),
    ("V1", "0.18.0..0.22.1", _INFO, "Shutdown initiated (timeout={timeout_s:d})", "Shutdown initiated (timeout=30)"),
    (
        "V1",
        _NEW,
        _INFO,
        "[shutdown] EngineCore: aborting in-flight requests count={num_requests:d}",
        "[shutdown] EngineCore: aborting in-flight requests count=12",
    ),
    (
        "V1",
        _NEW,
        _INFO,
        "[shutdown] EngineCore: draining in-flight requests count={num_requests:d} timeout={timeout_s:d}s",
        "[shutdown] EngineCore: draining in-flight requests count=12 timeout=30s",
    ),
    ("V1", _NEW, "INFO (once)", "[shutdown] EngineCore: exiting busy loop", None),
    ("V1", _NEW, "DEBUG", "[shutdown] EngineCore: local resource teardown complete", None),
    (
        "V1",
        _NEW,
        "DEBUG",
        "[shutdown] EngineCore: rejecting new request request_id={request_id}",
        "[shutdown] EngineCore: rejecting new request request_id=chatcmpl-5f0c7d9e",
    ),
    (
        "V1",
        _NEW,
        "WARNING",
        "[shutdown] EngineCore: rejecting utility call method={method}",
        "[shutdown] EngineCore: rejecting utility call method=add_lora",
    ),
    ("V1", _NEW, _INFO, "[shutdown] EngineCore: request processing complete; starting resource teardown", None),
    (
        "V1",
        _NEW,
        _INFO,
        "[shutdown] EngineCore: start mode={mode} timeout={timeout_s:d}s",
        "[shutdown] EngineCore: start mode=drain timeout=30s",
    ),
    ("V1", _NEW, "DEBUG", "[shutdown] EngineCore: tearing down local resources", None),
    (
        "V1",
        _NEW,
        _INFO,
        "[shutdown] EngineCore: trigger received signal={signal}",
        "[shutdown] EngineCore: trigger received signal=SIGTERM",
    ),
    ("V1", _NEW, _INFO, "[shutdown] MPClient: start timeout={timeout}", "[shutdown] MPClient: start timeout=30s"),
    ("any", _NEW, "INFO (once)", "[shutdown] API server: engine client stopped", None),
    ("any", _NEW, "INFO (once)", "[shutdown] API server: shutdown triggered", None),
    ("any", _NEW, "INFO (once)", "[shutdown] API server: shutting down FastAPI HTTP server", None),
    ("any", _NEW, "INFO (once)", "[shutdown] API server: signalling HTTP server shutdown", None),
    (
        "any",
        _NEW,
        _INFO,
        "[shutdown] API server: stopping engine client mode={mode} timeout={timeout_s:d}s",
        "[shutdown] API server: stopping engine client mode=drain timeout=30s",
    ),
    (
        "V1",
        "0.29.0..0.32.0",
        _INFO,
        "[shutdown] EngineCore process manager: using {timeout_s:d}s ROCm cleanup grace after immediate request abort",
        "[shutdown] EngineCore process manager: using 30s ROCm cleanup grace after immediate request abort",
    ),
    (
        "V1",
        "0.33.0",
        _INFO,
        "[shutdown] EngineCore process manager: using {timeout_s:d}s cleanup grace after immediate request abort",
        "[shutdown] EngineCore process manager: using 30s cleanup grace after immediate request abort",
    ),
    ("any", "0.30.0..0.33.0", _INFO, "Shutdown complete", None),
)

FORMATS = (
    *(
        _format(engine, versions, level, template, example or template)
        for engine, versions, level, template, example in _ROWS
    ),
    Format(
        "shutdown",
        "component",
        "any",
        _NEW,
        "INFO, WARNING, DEBUG",
        "[shutdown] {component}: {action:s}",
        "[shutdown] Executor: waiting for worker exit count=1",
        read=_any_component,
        anchor="[shutdown] ",
    ),
)
