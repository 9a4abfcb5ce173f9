"""A request inside the sketch, and a step on its device.

What the sketch needs of a configuration, and the lengths that it assumes of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.model.config import EngineConfig
from reference_engine.replay.clock import kv_usage
from reference_engine.v0.blocks import WATERMARK
from reference_engine.v1.profile import DraftRules, counts_hits, profile_of

__all__ = ["Lengths", "SketchBatch", "SketchRequest", "SketchRules"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A request's latent lengths in tokens: prompt, output, and the head of the prompt that group `group` shares."""

    prompt: int
    output: int
    shared: int = 0
    group: int = -1


@dataclass(frozen=True, slots=True)
class SketchRules:
    """What the sketch needs of a configuration; blocks are usable ones (without V1's null block).

    `chunk`: the longest part of a prompt in a step; since 0.31 (`chunk_needs_company`) only while others are there.
    `drafts`: tokens that a decoding request verifies in a step; `spare`: places that it holds for them; `step_tokens`:
    tokens that it gets in a step on average. `padding`: when a request with one token left to compute is admitted with
    padding drafts (`SemanticsProfile.draft_padding`).
    """

    config: EngineConfig
    blocks: int
    block_size: int
    token_budget: int
    max_num_running_reqs: int
    watermark_blocks: int
    gate: bool
    chunk: int
    chunk_needs_company: bool
    whole_prompts: bool
    v0: bool
    credits_hits: bool
    drafts: int
    spare: int
    step_tokens: float
    padding: str

    @classmethod
    def of(cls, config: EngineConfig) -> SketchRules:
        """Derive the rules of an engine's version."""
        v0 = config.engine == "vllm-v0"
        profile = profile_of(config.version)
        drafts = DraftRules.of(config, profile)
        share = WATERMARK if v0 else (config.watermark or 0.0) if profile.watermark else 0.0
        gate = v0 or (profile.full_sequence_gate and config.reserve_full_isl is not False)
        return cls(
            config=config,
            blocks=config.num_blocks if v0 else config.num_blocks - 1,
            block_size=config.block_size,
            token_budget=config.max_num_batched_tokens - drafts.budget_share,
            max_num_running_reqs=config.max_num_seqs if v0 else profile.max_num_running_reqs(config),
            watermark_blocks=int(share * config.num_blocks),
            gate=gate,
            chunk=config.long_prefill_token_threshold or config.max_num_batched_tokens,
            chunk_needs_company=profile.live_threshold,
            whole_prompts=not config.enable_chunked_prefill,
            v0=v0 and not config.enable_chunked_prefill,
            credits_hits=counts_hits(config.version),
            drafts=drafts.num_spec_tokens,
            spare=drafts.num_spec_tokens + drafts.num_lookahead_tokens,
            step_tokens=1.0 + config.acceptance * drafts.num_spec_tokens,
            padding=profile.draft_padding if drafts.num_spec_tokens and not v0 else "none",
        )

    def mean_tokens(self, blocks: float) -> float:
        """Tokens of a request that holds so many blocks: on average half of a group's last one is free.

        A state takes its block whatever the length; a window is taken as not yet full.
        """
        states = [g for g in self.config.kv_groups or () if g.is_state and g.mode != "all"]
        growing = max(1, len(self.config.kv_groups or (None,)) - len(states))
        blocks -= sum(1 + group.spec_blocks for group in states)
        return max(blocks, 0.0) / growing * self.block_size - self.block_size / 2

    def usage(self, num_free_blocks: int) -> float:
        """The usage figure that this version prints, 0..1."""
        return kv_usage(self.config, num_free_blocks)


class SketchRequest:
    """One request inside the sketch; lengths in tokens, times in seconds, `num_blocks` in blocks of its own.

    `given`: prompt tokens that the cache had kept of a talk before. While it is `decoding`, `num_computed_tokens` and `output` are old: they are `base` and `output_base` plus the
    engine's `decode_step`.
    """

    __slots__ = (
        "arrival",
        "base",
        "credit",
        "decoding",
        "end",
        "first",
        "given",
        "group",
        "id",
        "limit",
        "num_blocks",
        "num_computed_tokens",
        "output",
        "output_base",
        "preemptions",
        "prompt",
        "shared",
        "started",
        "tried",
    )

    def __init__(self, request_id: int, lengths: Lengths, arrival: float) -> None:
        self.id = request_id
        self.arrival = arrival
        self.num_computed_tokens = 0
        self.output = 0
        self.num_blocks = 0
        self.preemptions = 0
        self.credit = 0
        self.given = 0
        self.first: float | None = None
        self.end: float | None = None
        self.started: float | None = None
        self.tried = False
        self.decoding = False
        self.base = 0
        self.output_base = 0
        self.resize(lengths)

    def resize(self, lengths: Lengths) -> None:
        """Take other lengths, before the first step."""
        self.prompt = lengths.prompt
        self.limit = lengths.output
        self.shared = lengths.shared
        self.group = lengths.group

    @property
    def lengths(self) -> Lengths:
        """The lengths as they are assumed."""
        return Lengths(self.prompt, self.limit, self.shared, self.group)

    def copy(self) -> SketchRequest:
        """An independent copy."""
        new = SketchRequest.__new__(SketchRequest)
        new.id = self.id
        new.arrival = self.arrival
        new.num_computed_tokens = self.num_computed_tokens
        new.output = self.output
        new.num_blocks = self.num_blocks
        new.preemptions = self.preemptions
        new.credit = self.credit
        new.given = self.given
        new.first = self.first
        new.end = self.end
        new.started = self.started
        new.prompt = self.prompt
        new.limit = self.limit
        new.shared = self.shared
        new.group = self.group
        new.tried = self.tried
        new.decoding = self.decoding
        new.base = self.base
        new.output_base = self.output_base
        return new


class SketchBatch:
    """A step on the device; `prefill` counts drafts too, `gain` the tokens that a decoding request gets.

    `drafted`: those of `chunks` that decode; the others get a single token. `in_prompt`: a scheduled request is inside its prompt.
    """

    __slots__ = ("chunks", "decodes", "drafted", "gain", "in_prompt", "kv_tokens", "num_decoding", "prefill", "seconds")

    def __init__(self) -> None:
        self.chunks: list[SketchRequest] = []
        self.drafted: set[int] = set()
        self.gain = 1
        self.in_prompt = False
        self.num_decoding = 0
        self.prefill = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.seconds = 0.0
