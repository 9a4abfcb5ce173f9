"""What differs between vLLM's V1 schedulers, as data: one `SemanticsProfile` per range of versions.

`profile_of(version)` picks the profile of the newest range that starts at or before a version. The schedulers never
compare versions themselves. `DraftRules` are what a version makes of a configuration with speculative decoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from reference_engine.model.config import EngineConfig

__all__ = ["PROFILES", "DraftRules", "SemanticsProfile", "counts_hits", "profile_of", "release_numbers"]


@dataclass(frozen=True, slots=True)
class SemanticsProfile:
    """The rules of one range of V1 releases, named after what the scheduler does, with the release that changed it.

    Attributes:
        since: first release of the range.
        priority_policy: `policy="priority"` is obeyed (0.9.2); before, it is silently ignored.
        victim_rollback: what happens to a priority victim that was already given tokens in this step: "kept" (nothing
            is undone, 0.9.2), "unlisted" (dropped from the scheduled list, tokens stay, 0.10.2), "full" (0.11.1).
        cursor: how the walk over the running list goes on after a victim before it was removed: "fixed" (the next
            request is skipped), "scheduled" (moved back if the victim had been scheduled, 0.11.1), "position" (0.28.0).
        unchunked_prompt: a prompt over the left budget without chunked prefill: "chunked" (the switch is ignored),
            "skipped" (later ones may pass, 0.9.2), "stops" (admission ends, 0.12.0).
        tie_order: equal (priority, arrival): "error" (the queue raises) or "id" (string order of ids, 0.12.0).
        async_tail: the step after a request's last token under asynchronous scheduling: "extra" (is run),
            "capped" (suppressed by a cap on the length, 0.11.1), "skipped" (0.12.0).
        full_sequence_gate: admission wants the blocks of the whole sequence to be free (default on since 0.19.0).
        unhashed_first: freed blocks without a hash are reused first (0.23.0).
        watermark: the watermark setting exists (0.24.0).
        live_threshold: the long-prefill threshold is waived for a lone request, may adapt to the number of live
            requests, and `max_num_active_seqs` exists (0.31.0).
        window_of_processed: tokens of the batches in flight keep the window's blocks, and count in what a request may hold
            (0.28.0); before, computed tokens are taken as processed.
        junction_stops: a prompt's chunk stops where its prefix was shared (0.28.0); before, only the first chunk is cut.
        sparse_retention: window and state groups register only what a resend or a sibling can use (default since 0.32.0),
            and state layers' chunks stop at the last block end below the known tokens, not at it.
        reregisters_states: a state that a step holds counts as written in it, though it was registered before (0.32.0).
        hash_lookahead: a block's hash covers the drafting head's next tokens too, and no block of a hit is dropped (0.33.0).
        draft_slots: a separate draft model's input tokens: "seqs" (the whole budget is lowered by `max_num_seqs`),
            "request" (one for each scheduled request, 0.28.0).
        draft_padding: a waiting request with one token left to compute gets padding drafts beside running decodes: "none",
            "waits" (0.28.0; where the model's length does not hold them it waits), "hit" (0.32.0; also alone after a
            cache hit; where the model's length does not hold them there are none).
        mtp_modules: several MTP modules keep their distance from the end of a prompt's chunk (0.28.0).
        caches_in_update: accepted drafts are made findable when they are delivered, also without asynchronous
            scheduling (0.33.0).
        passes_over: a waiting request that gets no token is passed over instead of ending admission (0.33.0).
        goes_on_after_self: under `priority` the walk goes on after a request that had to preempt itself (0.33.0).
        prefill_interval: `prefill_schedule_interval` acts without data parallelism (0.33.0).
        usage_counts_null_block: the usage figure counts the null block as used (until 0.10.2).
    """

    since: str = "0.0.0"
    priority_policy: bool = False
    victim_rollback: str = "kept"
    cursor: str = "fixed"
    unchunked_prompt: str = "chunked"
    tie_order: str = "error"
    async_tail: str = "extra"
    full_sequence_gate: bool = False
    unhashed_first: bool = False
    watermark: bool = False
    live_threshold: bool = False
    draft_slots: str = "seqs"
    draft_padding: str = "none"
    mtp_modules: bool = False
    caches_in_update: bool = False
    passes_over: bool = False
    goes_on_after_self: bool = False
    prefill_interval: bool = False
    usage_counts_null_block: bool = True
    window_of_processed: bool = False
    junction_stops: bool = False
    sparse_retention: bool = False
    reregisters_states: bool = False
    hash_lookahead: bool = False

    def max_num_running_reqs(self, config: EngineConfig) -> int:
        """How many requests run at once at most; `max_num_active_seqs` counts from 0.31 on."""
        return config.max_num_running_reqs if self.live_threshold else config.max_num_seqs


def _history() -> tuple[SemanticsProfile, ...]:
    """All profiles, oldest first: each is its predecessor with what the release changed."""
    changes: tuple[tuple[str, dict[str, str | bool]], ...] = (
        ("0.9.2", {"priority_policy": True, "unchunked_prompt": "skipped"}),
        ("0.10.2", {"victim_rollback": "unlisted", "usage_counts_null_block": False}),
        ("0.11.1", {"victim_rollback": "full", "cursor": "scheduled", "async_tail": "capped"}),
        ("0.12.0", {"unchunked_prompt": "stops", "tie_order": "id", "async_tail": "skipped"}),
        ("0.19.0", {"full_sequence_gate": True}),
        ("0.23.0", {"unhashed_first": True}),
        ("0.24.0", {"watermark": True}),
        (
            "0.28.0",
            {
                "cursor": "position",
                "window_of_processed": True,
                "junction_stops": True,
                "draft_slots": "request",
                "draft_padding": "waits",
                "mtp_modules": True,
            },
        ),
        ("0.31.0", {"live_threshold": True}),
        ("0.32.0", {"sparse_retention": True, "reregisters_states": True, "draft_padding": "hit"}),
        (
            "0.33.0",
            {
                "reregisters_states": False,
                "hash_lookahead": True,
                "caches_in_update": True,
                "passes_over": True,
                "goes_on_after_self": True,
                "prefill_interval": True,
            },
        ),
    )
    profiles = [SemanticsProfile()]
    for since, change in changes:
        profiles.append(replace(profiles[-1], since=since, **change))  # type: ignore[arg-type]
    return tuple(profiles)


PROFILES: tuple[SemanticsProfile, ...] = _history()

_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")  # 0.11.2, v0.12.0rc1, 0.11.1.dev3+g1a2b


def release_numbers(version: str) -> tuple[int, int, int] | None:
    """(major, minor, patch) of a version text; None when it does not start with numbers ("dev")."""
    match = _RELEASE.match(version)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache(maxsize=256)
def profile_of(version: str) -> SemanticsProfile:
    """The profile of a version. A version that cannot be read is taken as newer than all known ones."""
    key = release_numbers(version)
    if key is None:
        return PROFILES[-1]
    return [p for p in PROFILES if (release_numbers(p.since) or (0, 0, 0)) <= key][-1]


_DRAFTING_HEADS = ("eagle", "eagle3", "mtp")


@dataclass(frozen=True, slots=True)
class DraftRules:
    """What the drafts of a configuration ask of the scheduler (`v1/core/sched/scheduler.py`). All in tokens.

    Before 0.24.0 drafts are taken as those of 0.24.0.

    `num_spec_tokens`: drafts of a step. `num_lookahead_tokens`: places for the next drafts beyond the scheduled tokens.
    `budget_slots`: what each scheduled request takes from the token budget beside its tokens; `budget_share`: what the
    whole budget is lowered by. `hash_lookahead`: tokens after a block that its hash covers; `drops_block`: the last block
    of a cache hit is computed again. `prompt_tail`: a chunk that does not end the known tokens leaves at least so many;
    `uncached_tail`: newest computed tokens that are not made findable.
    """

    num_spec_tokens: int = 0
    num_lookahead_tokens: int = 0
    budget_slots: int = 0
    budget_share: int = 0
    hash_lookahead: int = 0
    drops_block: bool = False
    prompt_tail: int = 0
    uncached_tail: int = 0

    @classmethod
    def of(cls, config: EngineConfig, profile: SemanticsProfile) -> DraftRules:
        """Derive the rules of an engine's version."""
        drafts = config.num_spec_tokens
        if drafts == 0:
            return cls()
        head = config.spec_method in _DRAFTING_HEADS
        separate = config.spec_method == "draft_model"
        modules = profile.mtp_modules and config.spec_method == "mtp" and config.mtp_layers > 1
        hashes = head and profile.hash_lookahead and not config.disable_lookahead_block_hashes
        if config.disable_eagle_block_drop:
            hashes = False
        by_request = profile.draft_slots == "request"
        return cls(
            num_spec_tokens=drafts,
            num_lookahead_tokens=drafts if head or separate else 0,
            budget_slots=int(separate and by_request),
            budget_share=config.max_num_seqs if separate and not by_request else 0,
            hash_lookahead=(drafts if modules else 1) if hashes else 0,
            drops_block=head and not hashes and not config.disable_eagle_block_drop,
            prompt_tail=drafts if modules else 0,
            uncached_tail=drafts - 1 if modules else 0,
        )


def counts_hits(version: str) -> bool:
    """Until 0.15 the prompt throughput counts whole prompts, later only what was computed."""
    release = release_numbers(version)
    return release is not None and release < (0, 16, 0)
