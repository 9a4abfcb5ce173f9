"""Preemption, swap space and cache resets.

V0 (0.4.3 to 0.10.2) warns at the 1st, 51st, 101st … preemption of a scheduler; `total_num_cumulative_preemption` is its
count after this one, since the process began. V1 logs no preemption. Only the variant `v0_preempt_warning` is one;
the others of this family are resets, swap space and recoveries.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind, compile_template

__all__ = ["FORMATS", "SCHEMA"]

SCHEMA: dict[str, Kind] = {
    "request_id": Kind.TEXT,
    "mode": Kind.TEXT,
    "total_num_cumulative_preemption": Kind.WHOLE,
    "num_used_blocks": Kind.WHOLE,
    "num_requests": Kind.WHOLE,
    "num_tokens": Kind.WHOLE,
    "cpu_swap_gib": Kind.NUMBER,
    "cpu_total_gib": Kind.NUMBER,
}

# The documents' older forms: "in" for "by", wrapped or cut after "by", another counter or none.
_WARNED = "Sequence group "
_WARNING = compile_template("is preempted[[ {by|in} PreemptionMode.{mode} mode]]...")
_COUNTER = compile_template("total_{num_|}cumulative_preemption{_cnt|}={total_num_cumulative_preemption:d}...")


def _warning(text: str) -> Fields | None:
    # A client chooses the id, and may write any text into it: what the server says stands last.
    said = text.rfind(" is preempted") + 1
    fields = _WARNING.read(text[said:]) if text.startswith(_WARNED) and said > len(_WARNED) else None
    if fields is None:
        return None
    fields["request_id"] = text[len(_WARNED) : said].split(maxsplit=1)[0]
    at = text.rfind("total_", said)
    counter = _COUNTER.read(text[at:]) if at >= 0 else None
    fields["total_num_cumulative_preemption"] = None
    return {**fields, **(counter or {})}


_format = partial(Format, "preemption")

FORMATS = (
    _format(
        "v0_preempt_warning",
        "V0",
        "0.4.3..0.10.2",
        "WARNING",
        "Sequence group {request_id} is preempted by {mode} mode because there is not enough KV cache space. ... total_num_cumulative_preemption={total_num_cumulative_preemption:d}",
        "Sequence group cmpl-71c6e2c702f07450bb38a3a4971400de-0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption=51",
        read=_warning,
        anchor="is preempted",
    ),
    _format(
        "prefix_reset_fail",
        "V1",
        "0.7.0..0.33.0",
        "WARNING",
        "Failed to reset prefix cache because some blocks ({num_used_blocks:d}) are not freed yet...",
        "Failed to reset prefix cache because some blocks (118) are not freed yet",
    ),
    _format(
        "prefix_reset_ok",
        "V1",
        "0.7.0..0.33.0",
        "INFO",
        "Successfully reset prefix cache",
        "Successfully reset prefix cache",
    ),
    _format(
        "swap_space_large",
        "any",
        "0.1.0..0.17.1",
        "WARNING",
        "Possibly too large swap space. {cpu_swap_gib:gib} out of the {cpu_total_gib:gib} total CPU memory...",
        "Possibly too large swap space. 48.00 GiB out of the 62.80 GiB total CPU memory is allocated for the swap space.",
    ),
    _format(
        "swap_space_too_large",
        "any",
        "0.1.0..0.17.1",
        "raise ValueError",
        "Too large swap space. {cpu_swap_gib:gib} out of the {cpu_total_gib:gib} total CPU memory...",
        "Too large swap space. 48.00 GiB out of the 62.80 GiB total CPU memory is allocated for the swap space.",
    ),
    _format(
        "v0_swap_abort",
        "V0",
        "0.1.0..0.10.2",
        "raise RuntimeError",
        "Aborted due to the lack of CPU swap space...",
        "Aborted due to the lack of CPU swap space. Please increase the swap space to avoid this error.",
    ),
    _format(
        "v1_kv_load_recovered",
        "V1",
        "0.11.1..0.33.0",
        "WARNING",
        "Recovered from KV load failure: {num_requests:d} request(s) rescheduled ({num_tokens:d} tokens affected)...",
        "Recovered from KV load failure: 3 request(s) rescheduled (6144 tokens affected).",
    ),
    _format(
        "v1_reset_prefix_fail",
        "V1",
        "0.12.0..0.33.0",
        "raise RuntimeError",
        "Failed to reset KV cache even when all the running requests are preempted...",
        "Failed to reset KV cache even when all the running requests are preempted and moved to the waiting queue. This is likely due to the presence of running requests waiting for remote KV transfer, which is not supported yet.",
    ),
)
