"""Errors while serving: dead engines and workers, stalls, out of memory, prompts that are too long, crash dumps.

Lengths are tokens, `…_gib` is GiB. `kv_cache_usage_fraction` of a crash dump is 0..1, unlike the statistics' percent.
`error` is the class of a raised error; under a record's own text (`EngineCore encountered a fatal error.`) it is the last line of
the traceback. `logged_as` is the first line of the record whose traceback ended in this error.

Requests that are longer than the model's context, as the family `runtime` names them (variant `ctxlen`).

PyTorch's out-of-memory errors, as the family `runtime` names them (variant `torch_oom`). Sizes are GiB.

PyTorch names each amount in the unit that suits its size, KiB to TiB.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind
from parsers.families.literals import parse_literal
from parsers.lines import later_regex

__all__ = ["FORMATS", "SCHEMA"]
_CONTEXT = "This model's maximum context length is {max_model_len:d} tokens. However, "
_CONTEXT_SEEN = "This model's maximum context length is 16384 tokens. However, "
# versions, what follows, example of what follows
_TOO_LONG = (
    (
        "0.3.0..0.10.0",
        "you requested {total_tokens:d} tokens ({num_tokens:d} in the messages, {max_tokens:d} in the completion)...",
        "you requested 20523 tokens (20011 in the messages, 512 in the completion). Please reduce the length of the messages or completion.",
    ),
    (
        "0.4.1..0.10.0",
        "you requested {num_tokens:d} tokens in the messages...",
        "you requested 20011 tokens in the messages, Please reduce the length of the messages.",
    ),
    (
        "0.4.3..0.19.1",
        "you requested {num_tokens:d} tokens in the input for {operation:s}. Please reduce...",
        "you requested 20011 tokens in the input for embedding generation. Please reduce the length of the input.",
    ),
    (
        "0.10.1..0.19.1",
        "your request has {num_tokens:d} input tokens...",
        "your request has 20011 input tokens. Please reduce the length of the input messages.",
    ),
    (
        "0.18.0..0.19.1",
        "you requested {max_tokens:d} output tokens and your prompt contains {num_tokens:d} input tokens, for a total of {total_tokens:d} tokens...",
        "you requested 512 output tokens and your prompt contains 20011 input tokens, for a total of 20523 tokens (20011 + 512 = 20523 > 16384). Please reduce the length of the input prompt or the number of requested output tokens.",
    ),
    # Whatever a later release says after the limit.
    ("0.3.0..0.33.0", "...", "the prompt is longer."),
)

_CONTEXT_LENGTH_FORMATS = tuple(
    Format("runtime", "ctxlen", "any", versions, "raise ValueError", _CONTEXT + rest, _CONTEXT_SEEN + seen)
    for versions, rest, seen in _TOO_LONG
)

_OOM = later_regex(
    r"\s*+(?:CUDA|HIP|XPU|NPU|MUSA)? ?out of memory\. Tried to allocate (?P<tried>\d{1,12}(?:\.\d{1,6})?) ?(?P<tried_unit>[KMGT])i?B"
)
# "GPU 0 has a total capacity of 79.11 GiB" (torch 2.1 misspells capacty), "(GPU 0; 79.11 GiB total capacity; …" before.
_GPU = later_regex(
    r"GPU (?P<gpu>\d{1,6})(?: has a total capaci?ty of |; )(?P<total>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>[KMGT])i?B"
)
_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0}


def _oom(text: str) -> Fields | None:
    found = _OOM.match(text)
    if found is None:
        return None
    fields: Fields = {"tried_gib": float(found["tried"]) * _GIB[found["tried_unit"]]}
    gpu = _GPU.search(text[:4000])
    fields["gpu"] = int(gpu["gpu"]) if gpu else None
    fields["total_gib"] = float(gpu["total"]) * _GIB[gpu["unit"]] if gpu else None
    return fields


_OUT_OF_MEMORY_FORMATS = tuple(
    Format(
        "runtime",
        "torch_oom",
        "any",
        "0.1.0..0.33.0",
        "raise OutOfMemoryError",
        f"{device} out of memory. Tried to allocate {{tried_gib:gib}}. GPU {{gpu:d}} has a total capacity of {{total_gib:gib}}...",
        f"torch.OutOfMemoryError: {device} out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.11 GiB of which 812.38 MiB is free.",
        read=_oom,
        anchor="out of memory. Tried to allocate",
    )
    for device in ("CUDA", "HIP", "XPU", "NPU")
)

SCHEMA: dict[str, Kind] = {
    "error": Kind.TEXT,
    "logged_as": Kind.TEXT,
    "proc": Kind.TEXT,
    "exit_code": Kind.WHOLE,
    "worker": Kind.TEXT,
    "request_id": Kind.TEXT,
    "compiler": Kind.TEXT,
    "kernel": Kind.TEXT,
    "method": Kind.TEXT,
    "seconds": Kind.WHOLE,
    "num_tokens": Kind.WHOLE,
    "max_tokens": Kind.WHOLE,
    "total_tokens": Kind.WHOLE,
    "max_model_len": Kind.WHOLE,
    "limit": Kind.WHOLE,
    "lookahead_slots": Kind.WHOLE,
    "gpu": Kind.WHOLE,
    "tried_gib": Kind.NUMBER,
    "total_gib": Kind.NUMBER,
    "num_reqs": Kind.WHOLE,
    "running": Kind.WHOLE,
    "waiting": Kind.WHOLE,
    "kv_cache_usage_fraction": Kind.NUMBER,
    "version": Kind.TEXT,
}

_GAUGES = {
    "num_running_reqs": "running",
    "num_waiting_reqs": "waiting",
    "kv_cache_usage": "kv_cache_usage_fraction",
    "gpu_cache_usage": "kv_cache_usage_fraction",
}
_GAUGE = later_regex(r"\b(num_running_reqs|num_waiting_reqs|kv_cache_usage|gpu_cache_usage)=([\d.]++)")


def _dump_stats(text: str) -> Fields | None:
    if not text.startswith("Dumping scheduler stats: SchedulerStats("):
        return None
    gauges = {_GAUGES[name]: parse_literal(value) for name, value in _GAUGE.findall(text[:4000])}
    return {"running": None, "waiting": None, "kv_cache_usage_fraction": None, **gauges}


def _engine_dead(text: str) -> Fields | None:
    return {"error": "EngineDeadError"} if text.startswith("EngineCore encountered an issue") else None


_format = partial(Format, "runtime")
_TRACE = "ERROR + traceback"
_INFO = "INFO"

# variant, engine, versions, level, template, example (None: the template itself)
_ROWS: tuple[tuple[str, str, str, str, str, str | None], ...] = (
    (
        "coredied",
        "V1",
        "0.7.0..0.8.4",
        "ERROR",
        "EngineCore hit an exception: {traceback:s}",
        "EngineCore hit an exception: Traceback (most recent call last): ...",
    ),
    (
        "coredied",
        "V1",
        "0.8.4..0.33.0",
        "raise RuntimeError",
        "Engine core initialization failed. See root cause above.[[ Failed core proc(s): {failed:v}[[, failed frontend proc(s): {failed_frontend_procs:v}]]]]",
        "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    ),
    (
        "coredied",
        "V1",
        "0.8.5..0.33.0",
        _TRACE,
        "EngineCore encountered a fatal error...",
        "EngineCore encountered a fatal error.",
    ),
    ("coredied", "V1", "0.8.5..0.33.0", _TRACE, "EngineCore failed to start...", "EngineCore failed to start."),
    ("coredied", "V1", "0.8.5..0.33.0", _TRACE, "WorkerProc failed to start...", "WorkerProc failed to start."),
    (
        "coredied",
        "V1",
        "0.8.5..0.33.0",
        "ERROR",
        "Worker proc {proc} died unexpectedly[[ (exit code: {exit_code:d})]]...",
        "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
    ),
    (
        "worker_died",
        "V0",
        "0.4.3..0.10.2",
        "ERROR",
        "Worker {worker} pid {pid:d} died, exit code: {exit_code:d}",
        "Worker VllmWorkerProcess pid 1159 died, exit code: -6",
    ),
    (
        "coredied",
        "V1",
        "0.8.5..0.33.0",
        "CRITICAL",
        "vLLM shutdown signal from EngineCore failed to send...",
        "vLLM shutdown signal from EngineCore failed to send. Please report this issue.",
    ),
    (
        "coredied",
        "V1",
        "0.10.1..0.19.1",
        "ERROR",
        "Engine core proc {proc} died unexpectedly...",
        "Engine core proc VllmWorker-1 died unexpectedly, shutting down client.",
    ),
    (
        "coredied",
        "V1",
        "0.20.0..0.33.0",
        "raise RuntimeError",
        "Engine core process {proc} died unexpectedly...",
        "Engine core process VllmWorker-1 died unexpectedly.",
    ),
    (
        "coredied",
        "V1",
        "0.20.0..0.33.0",
        "ERROR",
        "RayWorkerProc rank={ranks:v} died unexpectedly...",
        "RayWorkerProc rank=[1] died unexpectedly, shutting down executor.",
    ),
    (
        "coredied",
        "V1",
        "0.23.0..0.33.0",
        "WARNING (once)",
        "[shutdown] MPClient: engine core exited unexpectedly...",
        "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
    ),
    (
        "dead",
        "V0",
        "0.1.5..0.10.2",
        "raise AsyncEngineDeadError",
        "Background loop is not running...",
        "Background loop is not running. If it was running, inspect the output to find the stacktrace of the error that caused the background loop to stop (AsyncEngineDeadError).",
    ),
    ("dead", "V0", "0.4.0..0.10.2", _TRACE, "Engine background task failed...", "Engine background task failed"),
    ("dead", "V0", "0.4.0..0.6.1", "raise RuntimeError", "Engine is dead.", None),
    ("dead", "V0", "0.4.0..0.10.2", "ERROR", "Engine iteration timed out. This should never happen!", None),
    ("dump", "V1", "0.9.0..0.9.1", "ERROR", "Dumping input data", None),
    (
        "dump",
        "V1",
        "0.9.2..0.33.0",
        "ERROR",
        "Dumping input data for V1 LLM engine (v{version}) with config: ...",
        "Dumping input data for V1 LLM engine (v0.18.0) with config: <...>, ",
    ),
    (
        "dump",
        "V1",
        "0.9.0..0.33.0",
        "ERROR",
        "Dumping scheduler output for model execution: ...",
        "Dumping scheduler output for model execution: <...>",
    ),
    (
        "grammar",
        "V1",
        "0.8.0..0.33.0",
        "ERROR",
        "Failed to advance FSM for request {request_id} for tokens {tokens:v}. Please file an issue.",
        "Failed to advance FSM for request chatcmpl-5f0c7d9e for tokens 271. Please file an issue.",
    ),
    ("fatal", "any", "0.5.5..0.8.4", "CRITICAL", "AsyncLLMEngine has failed, terminating server process", None),
    ("fatal", "any", "0.5.5..0.8.4", "CRITICAL", "AsyncLLMEngine is already dead, terminating server process", None),
    ("fatal", "any", "0.6.2..0.8.4", "CRITICAL", "MQLLMEngine is already dead, terminating server process", None),
    (
        "oom_sampler",
        "V1",
        "0.8.0..0.33.0",
        "raise RuntimeError",
        "CUDA out of memory occurred when warming up sampler with {num_reqs:d} dummy requests...",
        "CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
    ),
    (
        "failed_step",
        "V0",
        "0.5.4..0.10.2",
        _INFO,
        "{Writing|Completed writing} input of failed execution to...",
        "Writing input of failed execution to /tmp/err_execute_model_input_20260509-004933.pkl...",
    ),
    (
        "failed_step",
        "V0",
        "0.6.3..0.10.2",
        "WARNING",
        "Failed to pickle inputs of failed execution: {error:s}",
        "Failed to pickle inputs of failed execution: CUDA error: an illegal memory access was encountered",
    ),
    (
        "output_handler",
        "V1",
        "0.8.5..0.33.0",
        _TRACE,
        "AsyncLLM output_handler failed...",
        "AsyncLLM output_handler failed.",
    ),
    (
        "rpc",
        "V1",
        "0.6.5..0.33.0",
        "raise TimeoutError",
        "RPC call to {method} timed out.",
        "RPC call to execute_model timed out.",
    ),
    (
        "shm",
        "any",
        "0.5.1..0.8.1",
        "DEBUG, WARNING",
        "No available block found in {seconds:d} second{s|}...",
        "No available block found in 60 second. ",
    ),
    (
        "shm",
        "any",
        "0.8.2..0.33.0",
        "DEBUG, INFO",
        "No available shared memory broadcast block found{ in|in} {seconds:d} second{s|}...",
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).",
    ),
    (
        "toolong",
        "V0",
        "0.1.2..0.10.2",
        "WARNING",
        "Input prompt ({num_tokens:d} tokens) is too long and exceeds limit of {limit:d}",
        "Input prompt (20011 tokens) is too long and exceeds limit of 16384",
    ),
    (
        "toolong",
        "V0",
        "0.2.3..0.6.2",
        "WARNING",
        "Input prompt ({num_tokens:d} tokens) is too long and exceeds the capacity of block_manager",
        "Input prompt (20011 tokens) is too long and exceeds the capacity of block_manager",
    ),
    (
        "toolong",
        "V0",
        "0.6.3..0.10.2",
        "WARNING",
        "Input prompt ({num_tokens:d} tokens) + lookahead slots ({lookahead_slots:d}) is too long and exceeds the capacity of block_manager",
        "Input prompt (20011 tokens) + lookahead slots (5) is too long and exceeds the capacity of block_manager",
    ),
    (
        "worker_exc",
        "V0",
        "0.4.2..0.6.3",
        "ERROR",
        "Exception in worker {worker} while processing method {method}: {error:s}, Traceback...",
        "Exception in worker VllmWorkerProcess while processing method execute_model: ValueError: prompt is empty, Traceback ...",
    ),
    (
        "worker_exc",
        "V0",
        "0.6.3.post1..0.10.2",
        _TRACE,
        "Exception in worker {worker} while processing method {method}.",
        "Exception in worker VllmWorkerProcess while processing method execute_model.",
    ),
    ("worker_exc", "V1", "0.7.0..0.33.0", _TRACE, "WorkerProc hit an exception...", "WorkerProc hit an exception."),
)
_JIT = later_regex(
    r"\s*+(?P<compiler>[A-Z][\w-]{1,30})(?: kernel)? (?:JIT )?compilation during inference: (?P<kernel>[\w.<>:-]{1,200}+)"
)


def _jit(text: str) -> Fields | None:
    found = _JIT.match(text)
    return None if found is None else {"compiler": found["compiler"], "kernel": found["kernel"].rstrip(".")}


_WATCHDOG = later_regex(
    r"[^\n]{0,300}?\bWatchdog caught collective operation timeout: WorkNCCL\([^)\n]{0,300}?OpType=(?P<operation>[A-Z_]{1,40})"
    r"[^\n]{0,300}?\bran for (?P<ms>\d{1,9}) milliseconds"
)
_TERMINATED = later_regex(
    r"[^\n]{0,300}?\bProcess group watchdog thread terminated with exception: (?P<error>CUDA error: [\w -]{1,100})"
)
_FATAL = later_regex(r"\s*+Fatal Python error: (?P<error>[A-Za-z][A-Za-z :_.]{0,80})")
_SIGNAL = later_regex(r"\s*+\*\*\* (?P<signal>SIG(?:SEGV|ABRT|BUS|FPE|ILL)) received at time=\d{1,12} ")
_THREAD = later_regex(r"\s*+Exception in thread \S{1,40} \((?P<thread>process_(?:input|output)_sockets)\):?\s*\Z")


def _watchdog(text: str) -> Fields | None:
    found = _WATCHDOG.match(text)
    if found is not None:
        return {"error": f"an NCCL operation ({found['operation']}) timed out after {int(found['ms']) // 1000} s"}
    found = _TERMINATED.match(text)
    return None if found is None else {"error": found["error"].strip()}


def _fatal(text: str) -> Fields | None:
    found = _FATAL.match(text)
    return None if found is None else {"error": found["error"].strip()}


def _signal(text: str) -> Fields | None:
    found = _SIGNAL.match(text)
    return None if found is None else {"error": found["signal"]}


def _thread(text: str) -> Fields | None:
    found = _THREAD.match(text)
    return None if found is None else {"error": f"the engine's thread {found['thread']} ended with an exception"}


# What a process leaves behind that does not end by Python's rules: printed by torch, glog, the interpreter, C++ and the shell.
_NATIVE = tuple(
    Format(
        "runtime",
        "native_fatal",
        "any",
        "0.1.0..0.33.0",
        "ERROR (on standard error)",
        template,
        example or template,
        read=read,
        anchor=anchor,
        foreign=True,
    )
    for template, example, read, anchor in (
        (
            "[rank{rank:d}]:[{place:s}] [Rank {number:d}] Watchdog caught collective operation timeout: {work:s}",
            "[rank0]:[E701 13:53:21.538263561 ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=134217728, NumelOut=134217728, Timeout(ms)=600000) ran for 600059 milliseconds before timing out.",
            _watchdog,
            "Watchdog caught collective operation",
        ),
        (
            "[rank{rank:d}]:[{place:s}] [PG {number} Rank {number:d}] Process group watchdog thread terminated with exception: {error:s}",
            "[rank0]:[E701 13:53:21.538263561 ProcessGroupNCCL.cpp:1414] [PG 2 Rank 0] Process group watchdog thread terminated with exception:"
            " CUDA error: an illegal memory access was encountered",
            _watchdog,
            "Process group watchdog thread",
        ),
        (
            "*** {signal} received at time={time:d} on cpu {cpu:d} ***",
            "*** SIGSEGV received at time=1741079535 on cpu 33 ***",
            _signal,
            " received at time=",
        ),
        ("Fatal Python error: {error:s}", "Fatal Python error: Segmentation fault", _fatal, ""),
        (
            "terminate called after throwing an instance of '{error}'",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            None,
            "",
        ),
        ("!!!!!!! Segfault encountered !!!!!!!", None, None, ""),
        (
            "{Segmentation fault|Aborted|Bus error} (core dumped)",
            "Segmentation fault (core dumped)",
            None,
            "(core dumped)",
        ),
        (
            "Exception in thread {name} ({thread}):",
            "Exception in thread Thread-1 (process_input_sockets):",
            _thread,
            "",
        ),
    )
)

_BIND_ERROR = Format(
    "runtime",
    "bind_error",
    "any",
    "0.1.0..0.33.0",
    "ERROR (uvicorn)",
    "[Errno {errno:d}] error while attempting to bind on address ({address:s}): {error:s}",
    "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
    foreign=True,
)
# argparse's last word on a command line, printed before anything is logged.
_USAGE_ERRORS = tuple(
    Format(
        "runtime",
        "usage_error",
        "any",
        "0.1.0..0.33.0",
        "ERROR (on standard error)",
        f"{program}: error: {{error:s}}",
        f"{program}: error: unrecognized arguments: --max-num-seq",
        foreign=True,
    )
    for program in ("vllm serve", "vllm", "api_server.py", "vllm.entrypoints.openai.api_server")
)

FORMATS = (
    *_NATIVE,
    _BIND_ERROR,
    *_USAGE_ERRORS,
    *(
        _format(variant, engine, versions, level, template, example or template)
        for variant, engine, versions, level, template, example in _ROWS
    ),
    *_CONTEXT_LENGTH_FORMATS,
    _format(
        "dump_stats",
        "V1",
        "0.9.2..0.33.0",
        "ERROR",
        "Dumping scheduler stats: SchedulerStats(num_running_reqs={running:d}, num_waiting_reqs={waiting:d}, kv_cache_usage={kv_cache_usage_fraction:f}, ...",
        "Dumping scheduler stats: SchedulerStats(num_running_reqs=64, num_waiting_reqs=17, step_counter=0, kv_cache_usage=0.974, prefix_cache_stats=PrefixCacheStats(reset=False, requests=0, queries=0, hits=0))",
        read=_dump_stats,
        anchor="Dumping scheduler stats: ",
    ),
    _format("dump", "V1", "0.9.2..0.33.0", "ERROR", "Dumping scheduler stats: ...", "Dumping scheduler stats: <...>"),
    _format(
        "engine_dead",
        "V1",
        "0.8.5..0.33.0",
        "raise EngineDeadError",
        "EngineCore encountered an issue...",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        read=_engine_dead,
    ),
    *_OUT_OF_MEMORY_FORMATS,
    *(
        _format(
            "jit",
            "V1",
            "0.20.0..0.33.0",
            "WARNING",
            f"{compiler} JIT compilation during inference: {{kernel}}. This causes a latency spike...",
            f"{compiler} JIT compilation during inference: _topk_topp_kernel. This causes a latency spike; consider extending warmup to cover this shape/config.",
            read=_jit,
            anchor=" compilation during inference: ",
        )
        for compiler in ("Triton kernel", "TileLang", "CuTeDSL")
    ),
)
