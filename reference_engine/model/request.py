"""A request inside the scheduler: what it has computed, what it was given, the blocks that it holds, and where its time went.

The latency ledger is kept in whole nanoseconds so that its parts add up: `LABELS` are its parts, `RequestRecord` what a replay
remembers of one request, `chunk_kind` what a scheduled chunk of tokens is.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BUDGET",
    "DECODE",
    "INTERFERENCE",
    "KV",
    "LABELS",
    "PREEMPTED_WAIT",
    "PREFILL",
    "QUEUED",
    "RECOMPUTE",
    "SEAT",
    "Request",
    "RequestRecord",
    "RequestState",
    "chunk_kind",
    "nanoseconds",
]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths in tokens, times in seconds on the replay's clock.

    `prompt` is the concatenation of stream prefixes: ("u0", 40) stands for tokens 0..39 of stream u0, and two tokens
    are equal when stream and index are equal; None means a prompt that shares nothing with any other. Output token k is
    token k of the stream `o<id>`. `output_tokens` is what the request will generate if nothing stops it. `arrival_step`
    (golden traces) adds the request before that step; otherwise it is added before the first step that starts at or
    after `arrival_s`. `arrival_time` is what the priority policy compares (default: `arrival_s`).
    With speculative decoding `accept` says in turn how many drafts are accepted in each verification (at most those that
    were scheduled; none given: by `EngineConfig.acceptance`), `drafts` how many are proposed (none given: all).
    """

    id: int | str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    arrival_step: int | None = None
    arrival_time: float | None = None
    priority: int = 0
    prompt: tuple[tuple[str, int], ...] | None = None
    abort_s: float | None = None
    accept: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()


class RequestState:
    """The mutable side of one request. All lengths in tokens, `num_blocks` in blocks.

    `num_computed_tokens`: tokens whose keys and values are in blocks (0 after a preemption); `num_output_tokens`:
    tokens delivered so far; `max_output_tokens`: where its output ends, by its own limit or the model's length;
    `num_output_placeholders`: tokens scheduled but not delivered yet (asynchronous scheduling only); `status`:
    "waiting", "running", "preempted" or "finished"; `blocks`: ids of the held blocks where the pool knows them;
    `registered`: how many of them carry a hash; `hashes`: content hashes of the request's full blocks so far;
    `num_drafts`: drafts that wait to be verified; `proposals`, `verifications`, `drafted` and `accepted`: how often drafts
    were proposed and verified, and how many so far. `segment`: where `UnsharedPool` keeps the blocks of a preempted request.
    """

    __slots__ = (
        "accepted",
        "arrival",
        "blocks",
        "drafted",
        "hashes",
        "id",
        "max_output_tokens",
        "num_blocks",
        "num_computed_tokens",
        "num_drafts",
        "num_output_placeholders",
        "num_output_tokens",
        "num_prompt_tokens",
        "priority",
        "proposals",
        "registered",
        "request",
        "segment",
        "status",
        "verifications",
    )

    def __init__(self, request: Request, max_model_len: int) -> None:
        self.request = request
        self.id = request.id
        self.priority = request.priority
        self.arrival = request.arrival_s if request.arrival_time is None else request.arrival_time
        self.num_prompt_tokens = request.prompt_tokens
        self.max_output_tokens = min(request.output_tokens, max(1, max_model_len - request.prompt_tokens))
        self.num_output_tokens = 0
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_drafts = self.proposals = self.verifications = self.drafted = self.accepted = 0
        self.status = "waiting"
        self.num_blocks = 0
        self.blocks: list[int] = []
        self.registered = 0
        self.hashes: list[int] = []
        self.segment: list[int] | None = None

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was delivered."""
        return self.num_prompt_tokens + self.num_output_tokens

    def propose_drafts(self, most: int) -> int:
        """How many drafts are proposed now that the request has caught up: the next of its `drafts`, or `most`."""
        proposals = self.request.drafts
        number = min(proposals[self.proposals % len(proposals)], most) if proposals else most
        self.proposals += 1
        return number

    def accept_drafts(self, scheduled: int, acceptance: float) -> int:
        """How many of the scheduled drafts are accepted: the next of the request's `accept`.

        Without such a list the share of all its drafts so far comes as near to `acceptance` as whole drafts can from
        below.
        """
        accept = self.request.accept
        self.drafted += scheduled
        if accept:
            accepted = min(accept[self.verifications % len(accept)], scheduled)
        else:
            accepted = min(scheduled, int(self.drafted * acceptance + 1e-9) - self.accepted)
        self.verifications += 1
        self.accepted += accepted
        return accepted


LABELS = (
    "queued_for_kv",
    "queued_for_seat",
    "queued_for_budget",
    "prefill",
    "decode",
    "interference",
    "preempted_wait",
    "recompute",
)
KV, SEAT, BUDGET, PREFILL, DECODE, INTERFERENCE, PREEMPTED_WAIT, RECOMPUTE = range(8)

QUEUED = {"kv": KV, "seat": SEAT, "budget": BUDGET, None: BUDGET}


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * 1e9)


def chunk_kind(start: int, prompt: int, reached: int) -> int:
    """The label of a chunk that starts at a position: RECOMPUTE, PREFILL or DECODE.

    Args:
        start: first position that the chunk computes, in tokens.
        prompt: prompt length in tokens.
        reached: positions that the request had computed at its best, before a preemption took them.
    """
    if start < reached:
        return RECOMPUTE
    return PREFILL if start < prompt else DECODE


class RequestRecord:
    """One request's story. Times are nanoseconds on the replay's clock, None where it did not come to that.

    `status`: "waiting" (also: arrived, still running), "finished", "aborted" or "ignored" (V0: too long to ever run).
    `end`: when it left the engine. `cached`: prompt tokens found in the prefix cache at the first admission.
    `recomputed`: tokens that were computed again. `reached`: highest computed position so far. `ledger` is parallel to
    `LABELS`.
    """

    __slots__ = (
        "arrival",
        "cached",
        "end",
        "first_token",
        "last_token",
        "ledger",
        "output",
        "preemptions",
        "reached",
        "recomputed",
        "request",
        "started",
        "status",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.status = "waiting"
        self.started = False
        self.first_token: int | None = None
        self.last_token = 0
        self.end: int | None = None
        self.output = 0
        self.preemptions = 0
        self.recomputed = 0
        self.cached = 0
        self.reached = 0
        self.ledger = [0] * len(LABELS)
