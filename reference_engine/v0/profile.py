"""What changed between V0 releases, as data: the scheduler reads a profile and never a version."""

from __future__ import annotations

from dataclasses import dataclass

from reference_engine.v1.profile import release_numbers

__all__ = ["V0Profile", "profile_for"]


@dataclass(frozen=True, slots=True)
class V0Profile:
    """The rules of one V0 release (component `core/scheduler.py` unless said otherwise).

    `padded_prefill`: a prefill batch costs its longest prompt times its prompts, and may waste 256 tokens on padding.
    `ignored_ends_step`: a step that ignored a prompt schedules nothing else.
    `sorted_by_arrival`: running and swapped are sorted by arrival in each step, and the delay factor looks at the queues
    as they were at its start; later releases work on the queues themselves.
    `first_block_manager`: an append always wants a free block, and swapping in all held blocks and one
    (`core/block_manager_v1.py`).
    `new_prefills_first`: the running queue of chunked mode begins with the new prefills, later it ends with them.
    `chunked`, `priority`, `partial_prefills`: the release has chunked prefill, the priority policy, and several
    partial prefills at once (from then on a step without budget does not look at the waiting queue either).
    `hits_looked_up_anew`: a request that is not admitted looks its hit up again the next time, before, the first
    answer stood until its blocks were freed.
    `mode_selectable`: `preemption_mode` is an option. `hits_cost_nothing`: cached tokens do not count in the budget,
    and a chunk is rounded down to whole blocks with prefix caching.
    """

    padded_prefill: bool = False
    ignored_ends_step: bool = False
    sorted_by_arrival: bool = False
    first_block_manager: bool = False
    new_prefills_first: bool = False
    chunked: bool = True
    priority: bool = True
    partial_prefills: bool = True
    mode_selectable: bool = True
    hits_looked_up_anew: bool = True
    hits_cost_nothing: bool = True


_SINCE: tuple[tuple[tuple[int, int, int], dict[str, bool]], ...] = (
    # seen in 0.2.7, 0.4.2, 0.5.5, 0.6.6, 0.8.5 and 0.9.0 to 0.9.2; the releases in between by their change notes
    ((0, 4, 0), {"padded_prefill": False, "ignored_ends_step": False, "chunked": True}),
    ((0, 5, 5), {"sorted_by_arrival": False, "mode_selectable": True}),
    (
        (0, 6, 4),
        {"first_block_manager": False, "new_prefills_first": False, "priority": True, "hits_cost_nothing": True},
    ),
    ((0, 7, 3), {"partial_prefills": True}),
    ((0, 9, 2), {"hits_looked_up_anew": True}),
)
_OLDEST = {
    "padded_prefill": True,
    "ignored_ends_step": True,
    "sorted_by_arrival": True,
    "first_block_manager": True,
    "new_prefills_first": True,
    "chunked": False,
    "priority": False,
    "partial_prefills": False,
    "mode_selectable": False,
    "hits_looked_up_anew": False,
    "hits_cost_nothing": False,
}


def profile_for(version: str) -> V0Profile:
    """The profile of a release such as "0.8.5.post1"; a text without a release number gets the newest one."""
    release = release_numbers(version)
    if release is None:
        return V0Profile()
    rules = dict(_OLDEST)
    for since, changes in _SINCE:
        if release >= since:
            rules.update(changes)
    return V0Profile(**rules)
