"""Requests that are longer than the model's context, as the family `runtime` names them (variant `ctxlen`)."""

from __future__ import annotations

from parsers.families.formats_part import Format

__all__ = ["FORMATS"]

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

FORMATS = tuple(
    Format(
        "runtime",
        "ctxlen",
        "any",
        versions,
        "raise ValueError",
        _CONTEXT + rest,
        _CONTEXT_SEEN + seen,
    )
    for versions, rest, seen in _TOO_LONG
)
