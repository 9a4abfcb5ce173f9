"""Speculative decoding in V1's scheduler: what drafts cost, how many are proposed, and how many are accepted.

The drafts' tokens are not known; a request says in turn how many of them are accepted, or the configuration's
`acceptance` does. Rules of `v1/core/sched/scheduler.py`; before 0.24.0 they are taken as those of 0.24.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.model.config import EngineConfig
from reference_engine.model.request import RequestState
from reference_engine.v1.profile import SemanticsProfile

__all__ = ["DraftRules", "accept_drafts", "propose_drafts"]

_DRAFTING_HEADS = ("eagle", "eagle3", "mtp")


@dataclass(frozen=True, slots=True)
class DraftRules:
    """What the drafts of a configuration ask of the scheduler. All in tokens.

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
        modules = config.spec_method == "mtp" and config.mtp_layers > 1
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


def propose_drafts(state: RequestState, most: int) -> int:
    """How many drafts are proposed for a request that has caught up; the next of its `drafts`, or `most`."""
    proposals = state.request.drafts
    number = min(proposals[state.proposals % len(proposals)], most) if proposals else most
    state.proposals += 1
    return number


def accept_drafts(state: RequestState, scheduled: int, acceptance: float) -> int:
    """How many of the scheduled drafts are accepted: the next of the request's `accept`, else so that the share of all
    its drafts so far comes as near to `acceptance` as whole drafts can from below.
    """
    accept = state.request.accept
    state.drafted += scheduled
    if accept:
        accepted = min(accept[state.verifications % len(accept)], scheduled)
    else:
        accepted = min(scheduled, int(state.drafted * acceptance + 1e-9) - state.accepted)
    state.verifications += 1
    state.accepted += accepted
    return accepted
