"""Latent lengths: what is believed of each request's prompt and output before the replay is compared with the log.

`LengthModel` holds a log-normal belief for each request's own prompt tokens (its shared head is apart), and either the
certain output length or one of an `OutputShape` under the request's limit. Shapes (narrow, wide, short and long mixed) are
latent themselves: every particle has its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from logscope.inference.windows.observations import Observations
from reference_engine.sketch.request import SketchRules

__all__ = [
    "USUAL_VARIATION",
    "Floats",
    "LengthModel",
    "OutputShape",
    "Sharing",
    "after_a_pass",
    "length_model",
    "scaled_to_total",
]

Floats = npt.NDArray[np.float64]
_NORMAL = NormalDist()
_CANDIDATES = 24
_NEARBY, _SHRINK = 1.5, 3.0  # windows over which growing prompts are averaged, and requests that all others count as
_SUM_TOLERANCE = 0.12  # of a candidate's sum, before it is scaled to the observed one
USUAL_VARIATION = 0.42
"""Variance of output lengths over the square of their mean, as chats usually show."""
_NARROW, _WIDE = 0.06, 1.3  # spreads (log) of output lengths that are thought possible


@dataclass(frozen=True, slots=True)
class Sharing:
    """Prompts begin with one of `groups` heads of `tokens` tokens."""

    groups: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputShape:
    """How long outputs are: `scale` times the model's mean, with a spread `sd` (log); `longs` of them `ratio` times longer than the others.

    `longs` 0: all of one kind.
    """

    scale: float
    sd: float
    longs: float = 0.0
    ratio: float = 1.0

    def kinds(self, mean: float) -> tuple[float, float]:
        """Means of the logarithm of short and long outputs whose common mean is `scale` times `mean`."""
        short = self.scale * mean / (1.0 + self.longs * (self.ratio - 1.0))
        log = math.log(max(short, 1e-3)) - self.sd**2 / 2
        return log, log + math.log(self.ratio)

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm of a log-normal with the same relative variance."""
        mixed = (1.0 + self.longs * (self.ratio**2 - 1.0)) / (1.0 + self.longs * (self.ratio - 1.0)) ** 2
        return math.sqrt(self.sd**2 + math.log(mixed))

    def drawn(self, rng: np.random.Generator, mean: float, count: int) -> Floats:
        """Lengths of `count` outputs, not rounded."""
        short, long = self.kinds(mean)
        logs = short + self.sd * rng.standard_normal(count)
        if self.longs:
            logs = np.where(rng.random(count) < self.longs, logs + long - short, logs)
        return np.asarray(np.exp(logs), dtype=np.float64)

    def goes_on(self, rng: np.random.Generator, mean: float, so_far: int) -> float:
        """The length of an output that is longer than `so_far`."""
        log = math.log(so_far + 1.0)
        means = self.kinds(mean)
        below = [_NORMAL.cdf((log - m) / self.sd) for m in means]
        kind = 0
        if self.longs:
            short, long = (1.0 - self.longs) * (1.0 - below[0]), self.longs * (1.0 - below[1])
            kind = int(float(rng.random()) * (short + long) >= short) if short + long > 0 else 1
        rank = min(below[kind] + (1.0 - below[kind]) * float(rng.random()), 1.0 - 1e-9)
        return math.exp(means[kind] + self.sd * _NORMAL.inv_cdf(max(rank, 1e-9)))

    def near(self, rng: np.random.Generator, step: float) -> OutputShape:
        """One a little different, so that a pass is not bound to what it began with."""
        scale, sd, ratio, longs = np.exp(step * rng.standard_normal(4) * (0.3, 1.0, 1.0, 0.7))
        return OutputShape(
            self.scale * float(scale),
            min(max(self.sd * float(sd), _NARROW), _WIDE),
            min(self.longs * float(longs), 0.5),
            max(1.5, self.ratio * float(ratio)) if self.longs else 1.0,
        )


@dataclass(frozen=True)
class LengthModel:
    """Beliefs by request. `mean_log` and `sd_log` are those of the logarithm of a prompt's own tokens.

    `prompts` and `outputs` hold certain lengths, 0 where they are latent; `limits` is what an output cannot exceed.
    `output_mean`: mean latent output, known to `output_doubt` (log).
    `shapes`: those that meet the log, once it was asked; `prompts_per_output`: prompt tokens to generated ones
    where only what requests hold tells their number: prompts then scale with the outputs.
    """

    mean_log: Floats
    sd_log: Floats
    prompts: Floats
    outputs: Floats
    limits: Floats
    output_mean: float
    output_doubt: float
    longest: int
    sharing: Sharing
    shapes: tuple[OutputShape, ...] = ()
    prompts_per_output: float | None = None

    @property
    def latent_outputs(self) -> bool:
        """Whether any output length has to be drawn."""
        return bool((self.outputs <= 0).any())

    def shape(self, rng: np.random.Generator) -> OutputShape:
        """How long outputs may be in all: one of those that meet the log, or a little beside it."""
        if not self.shapes:
            return OutputShape(1.0, math.sqrt(math.log1p(USUAL_VARIATION)))
        return self.shapes[int(rng.integers(len(self.shapes)))].near(rng, 0.1)

    def draw(self, rng: np.random.Generator, who: npt.NDArray[np.int64], scale: float = 1.0) -> Floats:
        """Own prompt tokens of the requests `who`, `scale` times longer than is believed."""
        drawn = scale * np.exp(self.mean_log[who] + self.sd_log[who] * rng.standard_normal(len(who)))
        return self._own(drawn, who)

    def draw_total(
        self, rng: np.random.Generator, who: npt.NDArray[np.int64], total: float, scale: float = 1.0
    ) -> Floats:
        """Own prompt tokens of the requests `who`, given their sum: the likeliest of several draws, then scaled."""
        known = self.prompts[who]
        if not len(who) or (known > 0).all():
            return self._own(np.zeros(len(who)), who)
        noise = rng.standard_normal((_CANDIDATES, len(who)))
        drawn = np.clip(scale * np.exp(self.mean_log[who] + self.sd_log[who] * noise), 1, self.longest)
        drawn = np.where(known > 0, known, drawn)
        misfit = np.log(drawn.sum(axis=1) / max(total, 1.0)) / _SUM_TOLERANCE
        weights = np.exp(-(misfit**2 - (misfit**2).min()) / 2)
        pick = int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum()))
        chosen = np.asarray(drawn[min(pick, _CANDIDATES - 1)], dtype=np.float64)
        return scaled_to_total(chosen, known, total, self.longest)

    def _own(self, drawn: Floats, who: npt.NDArray[np.int64]) -> Floats:
        known = self.prompts[who]
        own = np.where(known > 0, known, np.clip(np.rint(drawn), 1, self.longest))
        return np.asarray(own, dtype=np.float64)

    def draw_outputs(self, rng: np.random.Generator, who: npt.NDArray[np.int64], shape: OutputShape) -> Floats:
        """Output tokens of the requests `who`."""
        known = self.outputs[who]
        if (known > 0).all():
            return np.asarray(known, dtype=np.float64)
        drawn = np.clip(np.rint(shape.drawn(rng, self.output_mean, len(who))), 1, self.limits[who])
        return np.asarray(np.where(known > 0, known, drawn), dtype=np.float64)

    def redraw_output(self, rng: np.random.Generator, request: int, so_far: int, shape: OutputShape) -> int:
        """An output length of a request that already has `so_far` tokens and goes on."""
        if self.outputs[request] > 0:
            return int(self.outputs[request])
        drawn = shape.goes_on(rng, self.output_mean, so_far)
        return int(max(so_far + 1, min(round(drawn), self.limits[request])))


def after_a_pass(model: LengthModel, own: Mapping[int, float]) -> LengthModel:
    """The beliefs moved to what a pass of the filter found. `own`: mean own prompt tokens by request.

    V0 counts recomputed tokens among the prompts, so that the windows' sums alone say too much.
    """
    if model.prompts_per_output is not None:
        return model
    latent = [i for i in own if model.prompts[i] <= 0]
    if len(latent) < 10:
        return model
    believed = np.exp(model.mean_log[latent] + model.sd_log[latent] ** 2 / 2).mean()
    found = float(np.mean([own[i] for i in latent]))
    shift = math.log(max(found, 1.0) / max(float(believed), 1.0))
    return replace(model, mean_log=model.mean_log + min(max(shift, -0.7), 0.7))


def scaled_to_total(drawn: Floats, known: Floats, total: float, longest: int) -> Floats:
    """Scale latent lengths so that all together make `total` (rounded; the longest takes the rounding)."""
    free = known <= 0
    out = np.asarray(drawn, dtype=np.float64).copy()
    if not free.any():
        return np.asarray(np.rint(out), dtype=np.float64)
    target = max(total - float(out[~free].sum()), float(free.sum()))
    for _ in range(3):
        out[free] = np.clip(out[free] * (target / max(float(out[free].sum()), 1e-9)), 1, longest)
    out = np.asarray(np.rint(out), dtype=np.float64)
    where = np.flatnonzero(free)
    top = where[int(np.argmax(out[where]))]
    fixed = out[top] + round(target - float(out[where].sum()))
    if 1 <= fixed <= longest:
        out[top] = fixed
    return out


def length_model(seen: Observations, longest: int, rules: SketchRules, share: float = 1.0) -> LengthModel:
    """Beliefs from the log alone: what it prints, and the windows' sums for the rest.

    Args:
        seen: windows and arrivals.
        longest: tokens that a prompt may have.
        rules: block size, and whether the prompt throughput counts cached tokens.
        share: the part of the arrivals that comes to this engine.
    """
    arrivals = seen.arrivals
    limits = np.array([float(a.max_tokens or longest) for a in arrivals])
    outputs, mean_output, doubt = _output_belief(seen, share)
    sharing = _sharing(seen, rules, share, mean_output)
    mean, sd = _prompt_belief(seen, share, sharing, rules.credits_hits)
    prompts, spreads = np.full(len(arrivals), mean), np.full(len(arrivals), sd)
    if seen.talks:
        prompts, spreads = _as_talks_grow(seen, share, mean, sd)
    means, sds = _by_text(seen, prompts, spreads)
    return LengthModel(
        mean_log=means,
        sd_log=sds,
        prompts=_printed(seen, sharing),
        outputs=outputs,
        limits=limits,
        output_mean=mean_output,
        output_doubt=doubt,
        longest=max(1, longest - sharing.tokens),
        sharing=sharing,
    )


def _printed(seen: Observations, sharing: Sharing) -> Floats:
    """Own tokens of prompts whose ids the log prints; a length that many share is where printing stopped."""
    printed = np.array([float(a.prompt_tokens or 0) for a in seen.arrivals])
    if not printed.any():
        return printed
    top = printed.max()
    if (printed == top).sum() > max(3.0, 0.05 * (printed > 0).sum()):
        printed = np.where(printed == top, 0.0, printed)
    return np.where(printed > 0, np.maximum(printed - sharing.tokens, 1.0), 0.0)


def _by_text(seen: Observations, means: Floats, sds: Floats) -> tuple[Floats, Floats]:
    """Where prompts are printed as text, tokens go with characters."""
    chars = np.array([float(a.prompt_chars or 0) for a in seen.arrivals])
    told = chars > 0
    if told.sum() < 0.9 * len(chars):
        return means, sds
    cut = (chars == chars.max()).sum() > max(3.0, 0.05 * len(chars))
    mean_tokens = float(np.exp(means + sds**2 / 2).mean())
    by_text = np.log(np.maximum(chars, 1.0) * mean_tokens / max(float(chars.mean()), 1.0))
    whole = told & ~(cut & (chars == chars.max()))
    return np.where(whole, by_text, means), np.where(whole, np.minimum(sds, 0.2), sds)


def _admitted(seen: Observations, share: float) -> Floats:
    """How many requests had been admitted by each window's end: all arrived but those that wait."""
    middles = np.array([(a.low + a.high) / 2 for a in seen.arrivals])
    arrived = np.array([float((middles <= w.end).sum()) for w in seen.windows])
    waiting = np.array([float(w.waiting) for w in seen.windows])
    return np.asarray(np.maximum(share * arrived - waiting, 0.0), dtype=np.float64)


def _prompt_belief(seen: Observations, share: float, sharing: Sharing, credits_hits: bool) -> tuple[float, float]:
    """Mean and spread of the logarithm: from the mean, and from how the windows' sums scatter about n times it."""
    admitted = np.diff(np.concatenate([[0.0], np.maximum.accumulate(_admitted(seen, share))]))
    sums = np.array([w.prompt_tokens or 0.0 for w in seen.windows])
    if credits_hits:
        sums = np.maximum(sums - admitted * sharing.tokens, 0.0)
    else:
        left = float(sharing.groups * sharing.tokens)  # the first of each head computes it
        for k in range(len(sums)):
            paid = min(left, 0.8 * sums[k])
            sums[k] -= paid
            left -= paid
    for k in range(len(sums) - 1):
        # A window in which the engine stood still has old gauges: what it admitted shows in the next one.
        if sums[k] < 5 * admitted[k] or (seen.windows[k].generated_tokens or 0.0) < admitted[k]:
            sums[k + 1] += sums[k]
            admitted[k + 1] += admitted[k]
            sums[k] = admitted[k] = 0.0
    mean = max(float(sums.sum()) / max(float(admitted.sum()), 1.0), 1.0)
    some = admitted > 0
    relative = 1.0
    if some.sum() >= 3:
        misses = (sums[some] - admitted[some] * mean) ** 2 / admitted[some]
        relative = float(misses.mean()) / mean**2
    variance = math.log1p(min(max(relative, 0.15), 8.0))
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _as_talks_grow(seen: Observations, share: float, mean: float, sd: float) -> tuple[Floats, Floats]:
    """Beliefs by arrival: a talk's prompts grow with each turn, so that those of an hour later are of another length."""
    admitted = np.diff(np.concatenate([[0.0], np.maximum.accumulate(_admitted(seen, share))]))
    sums = np.array([w.prompt_tokens or 0.0 for w in seen.windows])
    places = np.arange(len(sums))
    near = np.exp(-0.5 * ((places[:, None] - places[None, :]) / _NEARBY) ** 2)
    usual = math.exp(mean + sd**2 / 2)
    local = (near @ sums + _SHRINK * usual) / (near @ admitted + _SHRINK)
    scatter = float(np.mean((sums - admitted * local) ** 2 / np.maximum(admitted, 1.0) / local**2))
    variance = math.log1p(min(max(scatter, 0.15), 8.0))
    ends = np.array([w.end for w in seen.windows])
    middles = np.array([(a.low + a.high) / 2 for a in seen.arrivals])
    window = np.minimum(np.searchsorted(ends, middles), len(ends) - 1)
    return np.log(np.maximum(local[window], 1.0)) - variance / 2, np.full(len(middles), math.sqrt(variance))


def _output_belief(seen: Observations, engine_share: float) -> tuple[Floats, float, float]:
    """Certain outputs; for the others the mean, and how far it may be off (log).

    Where the requests' limits add up to what was generated, every output is its limit.
    """
    outputs = np.array([float(a.output_tokens or 0) for a in seen.arrivals])
    asked = np.array([float(a.max_tokens or 0) for a in seen.arrivals])
    generated = sum(w.generated_tokens or 0.0 for w in seen.windows)
    last = seen.windows[-1]
    middles = np.array([(a.low + a.high) / 2 for a in seen.arrivals])
    before = middles <= last.end
    going = last.running + last.waiting
    share = max(0.05, 1.0 - going / max(1.0, float(before.sum())))
    if (outputs <= 0).any() and (asked[before] > 0).all() and before.any():
        expected = float(asked[before].sum()) * share
        most = engine_share * float(asked[before].sum())
        if 0.93 * engine_share * expected <= generated <= 1.07 * most or engine_share < 1.0:
            outputs = np.where(outputs > 0, outputs, asked)
    through = max(1.0, engine_share * float(before.sum()) - last.waiting - 0.5 * last.running)
    mean = max(generated / through, 1.0)
    # what still runs at the end was generated in part: nobody knows of how much
    open_share = (last.waiting + last.running) / max(1.0, engine_share * float(before.sum()))
    return outputs, mean, 0.03 + 0.6 * min(open_share, 1.0)


def _sharing(seen: Observations, rules: SketchRules, share: float, output: float) -> Sharing:
    """How many prompt tokens come from the cache, and how many different heads fit the KV usage."""
    rated = [w for w in seen.windows if w.hit_rate is not None]
    rate = rated[-1].hit_rate if rated else None
    if rate is None or rate < 0.05 or rules.v0 or seen.talks:
        return Sharing()
    admitted = max(1.0, float(_admitted(seen, share)[-1]))
    counted = sum(w.prompt_tokens or 0.0 for w in seen.windows)
    asked = counted if rules.credits_hits else counted / max(1.0 - rate, 0.01)
    size = rules.block_size
    own = max(1.0, asked * (1.0 - rate) / admitted)
    tokens = max(size, round(asked * rate / admitted / size) * size)
    heads = _heads(seen, rules, tokens, own + output / 2, admitted)
    # the first request of each head finds nothing
    tokens = max(size, round(asked * rate / max(admitted - heads, 1.0) / size) * size)
    return Sharing(heads, tokens)


def _heads(seen: Observations, rules: SketchRules, tokens: int, own: float, admitted: float) -> int:
    """The number of heads under which the blocks in use come closest: each head in use is held once."""
    best, least = 1, math.inf
    for heads in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128):
        if heads > max(1.0, admitted / 4):
            break
        misses = 0.0
        for window in seen.windows:
            if window.kv_usage is None or not window.running:
                continue
            used = heads * (1.0 - (1.0 - 1.0 / heads) ** window.running)
            told = used * tokens + window.running * (own + rules.block_size / 2)
            misses += (told / (rules.blocks * rules.block_size) - window.kv_usage) ** 2
        if misses < least:
            best, least = heads, misses
    return best
