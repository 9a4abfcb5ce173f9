"""A request's own lines: received, added, finished, aborted, failed, rejected, its output.

`prompt` and `output` are users' text (`Match.prompt_fields`). `num_prompt_token_ids` counts the printed ids; with
`--max-log-len` it is a lower bound. `max_tokens` is the output limit in tokens. `params` is the repr as printed.
The prompt is printed as a repr and may hold anything, also `, params: SamplingParams(`: the last one counts.
"""

from __future__ import annotations

from functools import partial

import regex

from parsers.families.formats import Fields, Format, Kind, compile_template
from parsers.families.literals import end_of_call, iter_pairs, parse_literal, unquote
from parsers.lines import later_regex

__all__ = ["FORMATS", "PARAMS", "PROMPT", "PROMPT_IDS", "SCHEMA"]

SCHEMA: dict[str, Kind] = {
    "request_id": Kind.TEXT,
    "request_ids": Kind.TEXTS,
    "prompt": Kind.TEXT,
    "prompt_chars": Kind.WHOLE,
    "num_prompt_token_ids": Kind.WHOLE,
    "params": Kind.TEXT,
    "max_tokens": Kind.WHOLE,
    "min_tokens": Kind.WHOLE,
    "n": Kind.WHOLE,
    "ignore_eos": Kind.FLAG,
    "lora_request": Kind.TEXT,
    "output": Kind.TEXT,
    "num_output_token_ids": Kind.WHOLE,
    "finish_reason": Kind.TEXT,
    "reason": Kind.TEXT,
    "error": Kind.TEXT,
    "current": Kind.WHOLE,
    "current_tokens": Kind.WHOLE,
    "max": Kind.WHOLE,
}


PROMPT = "prompt: "
PROMPT_IDS = ", prompt_token_ids: "
_RECEIVED = later_regex(r"\s*+Received request (?P<id>\S+?): (?=prompt: |params: )")
PARAMS = ("params: SamplingParams(", "params: PoolingParams(", "params: BeamSearchParams(")
# What stands between a prompt and "params: " (0.3.0 has no blank before "sampling").
_BEFORE_PARAMS = later_regex(r"(?:, prefix_pos: \S{1,20})?,\s?(?:sampling[ _])?\Z")
_LIMIT = later_regex(r"\b(max_tokens|min_tokens|n|best_of|ignore_eos)=(\d{1,18}|None|True|False)\b")
_LIMITS = ("max_tokens", "min_tokens", "n", "best_of", "ignore_eos")
_IDS = later_regex(r", prompt[_ ]token[_ ]ids: ")
_LORA = later_regex(r", lora_request: (?P<lora>.*?)(?:, prompt_adapter_request: .*)?\Z", regex.DOTALL)
_DETAILS = later_regex(r"\s*+Request (?P<id>\S+?) details: prompt: ")
_GENERATED = later_regex(r"\s*+Generated response (?P<id>\S+?)(?: \((?P<stream>[^)\n]*+)\))?(?P<details> details)?: ")
_OUTPUT_IDS = ", output_token_ids: "
_FINISH = ", finish_reason: "


def _count_ids(text: str, at: int) -> int | None:
    """How many ids the printed list at `at` holds; None for `None` (chat requests, or ids that were not logged)."""
    if not text.startswith("[", at):
        return None
    end = text.find("]", at)
    end = len(text) if end < 0 else end
    return text.count(",", at, end) + 1 if end > at + 1 else 0


def _prompt(fields: Fields, raw: str) -> None:
    # `None` where the request came as token ids or embeddings.
    prompt = None if raw == "None" else unquote(raw)
    fields["prompt"] = prompt
    fields["prompt_chars"] = None if prompt is None else len(prompt)


def _limits(params: str) -> Fields:
    fields: Fields = dict.fromkeys(("max_tokens", "min_tokens", "n"))
    if params.count("max_tokens=") > 1:  # also inside a stop string: take the pair, not the text
        pairs = iter_pairs(params[params.find("(") + 1 : -1])
        fields.update((key, parse_literal(value)) for key, value in pairs if key in _LIMITS)
    else:
        fields.update((key, parse_literal(value)) for key, value in _LIMIT.findall(params))
    return fields


def _received(text: str) -> Fields | None:
    found = _RECEIVED.match(text)
    at = max(map(text.rfind, PARAMS)) if found else -1
    if found is None:
        return None
    start = found.end()
    at = at if at >= start else text.rfind("params: ", start)
    if at < 0:
        return None
    fields: Fields = {"request_id": found["id"]}
    if text.startswith(PROMPT, start):
        before = _BEFORE_PARAMS.search(text[max(start, at - 64) : at])
        _prompt(fields, text[start + len(PROMPT) : at - (len(before[0]) if before else 0)].strip())
    value = at + len("params: ")
    end = end_of_call(text, value)
    fields["params"] = text[value:end]
    fields.update(_limits(text[value:end]))
    ids = _IDS.match(text, end)
    fields["num_prompt_token_ids"] = _count_ids(text, ids.end()) if ids else None
    lora = _LORA.search(text, max(end, text.rfind("]", end) if ids else end))
    adapter = parse_literal(lora["lora"].strip().removesuffix(".")) if lora else None
    fields["lora_request"] = None if adapter is None else str(adapter)
    return fields


def _details(text: str) -> Fields | None:
    found = _DETAILS.match(text)
    if found is None:
        return None
    fields: Fields = {"request_id": found["id"]}
    at = text.rfind(PROMPT_IDS)
    _prompt(fields, text[found.end() : at if at >= 0 else len(text)].strip())
    fields["num_prompt_token_ids"] = _count_ids(text, at + len(PROMPT_IDS)) if at >= 0 else None
    return fields


def _generated(text: str) -> Fields | None:
    found = _GENERATED.match(text)
    if found is None:
        return None
    fields: Fields = {"request_id": found["id"], "stream_info": found["stream"]}
    if found["details"] is not None:
        ids = text.find("output_token_ids: ", found.end())
        fields["num_output_token_ids"] = _count_ids(text, ids + 18) if ids >= 0 else None
        return fields
    finish = text.rfind(_FINISH)
    if finish < 0 or not text.startswith("output: ", found.end()):
        return None
    fields["finish_reason"] = parse_literal(text[finish + len(_FINISH) :])
    ids = text.rfind(_OUTPUT_IDS, found.end(), finish)
    fields["num_output_token_ids"] = _count_ids(text, ids + len(_OUTPUT_IDS)) if ids >= 0 else None
    output = text[found.end() + 8 : ids if ids >= 0 else finish].strip()
    fields["output"] = None if output == "None" else unquote(output)
    return fields


_format = partial(Format, "request")
_ID = "chatcmpl-5f0c7d9e2b6a4c0d9a1e83b7c4d2f610"
_SEEN_PARAMS = "SamplingParams(n=1, temperature=0.7, seed=None, stop=[], max_tokens=512, min_tokens=0)"
_TEXT = frozenset({"prompt", "output"})

# The forms of "Received request" by version; all are read by the same function, which knows each spelling.
_RECEIVED_FORMS = (
    ("V0", "0.1.0..0.2.7", "prompt: {prompt}, sampling params: {params}, prompt token ids: {num_prompt_token_ids}."),
    (
        "V0",
        "0.3.0",
        "prompt: {prompt}, prefix_pos: {prefix_pos},sampling params: {params}, prompt token ids: {num_prompt_token_ids}, lora_request: {lora_request}.",
    ),
    (
        "V0",
        "0.3.1..0.3.3",
        "prompt: {prompt}, prefix_pos: {prefix_pos},sampling_params: {params}, prompt_token_ids: {num_prompt_token_ids}, lora_request: {lora_request}.",
    ),
    (
        "V0",
        "0.4.0..0.4.2",
        "prompt: {prompt}, sampling_params: {params}, prompt_token_ids: {num_prompt_token_ids}, lora_request: {lora_request}.",
    ),
    (
        "V0",
        "0.4.3..0.5.2",
        "prompt: {prompt}, params: {params}, prompt_token_ids: {num_prompt_token_ids}, lora_request: {lora_request}.",
    ),
    (
        "any",
        "0.5.3..0.8.5.post1",
        "prompt: {prompt}, params: {params}, prompt_token_ids: {num_prompt_token_ids}, lora_request: {lora_request}, prompt_adapter_request: {prompt_adapter_request}.",
    ),
    (
        "any",
        "0.9.0..0.9.2",
        "prompt: {prompt}, params: {params}, prompt_token_ids: {num_prompt_token_ids}, prompt_embeds shape: {prompt_embeds_shape}, lora_request: {lora_request}, prompt_adapter_request: {prompt_adapter_request}.",
    ),
    (
        "any",
        "0.10.0..0.11.0",
        "prompt: {prompt}, params: {params}, prompt_token_ids: {num_prompt_token_ids}, prompt_embeds shape: {prompt_embeds_shape}, lora_request: {lora_request}.",
    ),
    ("any", "0.11.1..0.33.0", "params: {params}, lora_request: {lora_request}."),
)


def _example(form: str) -> str:
    values = {
        "{prompt}": repr("Write a haiku about autumn.\n"),
        "{params}": _SEEN_PARAMS,
        "{num_prompt_token_ids}": "[1, 9842, 264, 6520, 39342, 922, 42774, 13]",
    }
    for name, value in values.items():
        form = form.replace(name, value)
    return f"Received request {_ID}: " + regex.sub(r"\{\w+\}", "None", form)


# Each failure text with its reason, so that no text has to be guessed from brackets.
_FAILURES = (
    ("bad request", "0.8.5..0.33.0", "Request {request_id} failed (bad request)"),
    ("engine dead", "0.8.5..0.33.0", "Request {request_id} failed (engine dead)"),
    (None, "0.8.5..0.33.0", "Request {request_id} failed"),
    ("bad request", "0.14.0..0.33.0", "Request {request_id} failed (bad request): {error:v}"),
    ("input error", "0.15.0..0.33.0", "Request {request_id} failed (input error): {error:v}"),
    (None, "0.14.0..0.33.0", "Request {request_id} failed due to {error:v}"),
    ("validation", "0.33.0", "Request {request_id} failed validation: {error:v}"),
)


def _with_reason(template: str, reason: str | None) -> partial[Fields | None]:
    return partial(_failure, template, reason)


def _failure(template: str, reason: str | None, text: str) -> Fields | None:
    fields = compile_template(template).read(text)
    if fields is not None:
        fields["reason"] = reason
    return fields


def _aborted_many(text: str) -> Fields | None:
    fields = compile_template("Aborted request(s) {request_ids:s}").read(text)
    if fields is None:
        return None
    ids = [part.strip() for part in str(fields["request_ids"]).split(",") if part.strip()]
    return {"request_ids": ids, "request_id": ids[0] if len(ids) == 1 else None}


FORMATS = (
    *(
        _format(
            "received",
            engine,
            versions,
            "INFO",
            "Received request {request_id}: " + form,
            _example(form),
            read=_received,
            anchor="Received request ",
            prompt_fields=_TEXT,
        )
        for engine, versions, form in _RECEIVED_FORMS
    ),
    _format(
        "details",
        "any",
        "0.11.1..0.33.0",
        "DEBUG",
        "Request {request_id} details: prompt: {prompt}, prompt_token_ids: {num_prompt_token_ids}, prompt_embeds shape: {prompt_embeds_shape}.",
        f"Request {_ID} details: prompt: 'Write a haiku about autumn.', prompt_token_ids: [1, 9842, 264], prompt_embeds shape: None.",
        read=_details,
        anchor=" details: prompt: ",
        prompt_fields=_TEXT,
    ),
    _format("added", "V0", "0.5.3..0.10.2", "INFO", "Added request {request_id}.", f"Added request {_ID}."),
    _format("added", "V1", "0.6.4..0.33.0", "INFO", "Added request {request_id}.", f"Added request {_ID}."),
    _format("aborted", "any", "0.1.0..0.10.2", "INFO", "Aborted request {request_id}.", f"Aborted request {_ID}."),
    _format(
        "aborted",
        "V1",
        "0.10.1..0.33.0",
        "INFO",
        "Aborted request(s) {request_ids:s}.",
        f"Aborted request(s) {_ID},chatcmpl-0b1d77aa90e64f5c8e5f6fd0c1a2b3c4.",
        read=_aborted_many,
    ),
    _format("finished", "V0", "0.1.0..0.10.2", "INFO", "Finished request {request_id}.", f"Finished request {_ID}."),
    _format("finished", "V1", "0.6.4..0.6.6", "INFO", "Finished request {request_id}.", f"Finished request {_ID}."),
    _format("req_aborted", "V1", "0.8.5..0.33.0", "INFO", "Request {request_id} aborted.", f"Request {_ID} aborted."),
    *(
        _format(
            "req_failed",
            "V1",
            versions,
            "INFO",
            template + ".",
            template.replace("{request_id}", _ID).replace("{error:v}", "ValueError: prompt is empty") + ".",
            read=_with_reason(template, reason),
        )
        for reason, versions, template in _FAILURES
    ),
    _format(
        "queue_full",
        "V1",
        "0.29.0..0.33.0",
        "DEBUG, INFO",
        "Max queued tokens reached - rejecting request {request_id} (current_tokens={current_tokens:d}, max={max:d}).",
        f"Max queued tokens reached - rejecting request {_ID} (current_tokens=2097152, max=2000000).",
    ),
    _format(
        "queue_full",
        "V1",
        "0.29.0..0.33.0",
        "DEBUG, INFO",
        "Request queue full - rejecting request {request_id} (current={current:d}, n={n:d}, max={max:d}).",
        f"Request queue full - rejecting request {_ID} (current=512, n=1, max=512).",
    ),
    _format(
        "generated",
        "any",
        "0.10.1..0.27.1",
        "INFO",
        "Generated response {request_id}[[ ({stream_info})]]: output: {output}, output_token_ids: {num_output_token_ids}, finish_reason: {finish_reason}",
        f"Generated response {_ID}: output: 'Crimson leaves drift down', output_token_ids: [34, 71, 220], finish_reason: stop",
        read=_generated,
        anchor="Generated response ",
        prompt_fields=_TEXT,
    ),
    _format(
        "generated",
        "any",
        "0.28.0..0.33.0",
        "INFO",
        "Generated response {request_id}[[ ({stream_info})]]: output: {output}, finish_reason: {finish_reason}",
        f"Generated response {_ID}: output: 'Crimson leaves drift down', finish_reason: stop",
        read=_generated,
        anchor="Generated response ",
        prompt_fields=_TEXT,
    ),
    _format(
        "generated",
        "any",
        "0.28.0..0.33.0",
        "DEBUG",
        "Generated response {request_id}[[ ({stream_info})]] details: output_token_ids: {num_output_token_ids}",
        f"Generated response {_ID} details: output_token_ids: [34, 71, 220]",
        read=_generated,
        anchor="Generated response ",
    ),
)
