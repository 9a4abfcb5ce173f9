"""How long a step takes: the interface, and the models behind it.

`StepTime` is what every model offers, `LinearStepTime` its calibrated form, `RooflineStepTime` follows from the device,
the model and how it is split; `Efficiency` holds what real kernels reach of the datasheet's peaks. `StepCost` is what a
log can tell, with a term for the square of a step's prefill tokens: attention over long prompts, which a window's sums
show where prompts are long; `CostFit` is that with its uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reference_engine.cost.hardware import Gpu, ModelShape, Parallel

__all__ = ["CostFit", "Efficiency", "Floats", "LinearStepTime", "RooflineStepTime", "StepCost", "StepTime"]

# Bytes of one activation value on the links (fp16 or bf16), whatever the weights are stored in.
_ACTIVATION_BYTES = 2
# Partial sums are exchanged after attention and after the feed-forward part.
_ALL_REDUCES_PER_LAYER = 2


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What a serving engine gets out of the hardware. Shares of the peak (0..1) and seconds.

    `memory` 0.8: measured copy rates are 0.77 (T4) to 0.83 (A100 PCIe) of the datasheet's bandwidth, and a lone decode of
    an 8-billion model under vLLM 0.23 on an A100 reaches 0.77 of the bound that reading the weights sets.
    `compute` 0.6: large fp16 matrix products reach 0.6 to 0.75 of the dense peak, those of a prefill, with their norms
    and activations between, stay at the lower end. `link` 0.75: bus bandwidth of large all-reduces in NCCL's own tests
    against the links' one-direction peak. `collective_s`: start-up of one small all-reduce or hand-over within a node.
    `layer_s`: what a layer costs beside its traffic (some ten short kernels of a captured graph, about 1 microsecond of
    gap each). `host_step_s` and `host_request_s`: scheduler and input preparation on the CPU; V1's scheduler alone
    takes 0.9 to 2.9 ms a step with 256 running requests (releases 0.8.5 to 0.32.0), which is 4 to 11 microseconds a
    request. With asynchronous scheduling the host works behind the device and only the longer of the two counts.
    """

    memory: float = 0.8
    compute: float = 0.6
    link: float = 0.75
    collective_s: float = 12e-6
    layer_s: float = 10e-6
    host_step_s: float = 0.7e-3
    host_request_s: float = 8e-6


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Seconds of a step: matrix products, attention, links, host.

    Matrix products take the longer of reading the weights and of 2 operations a parameter and token. Attention reads the
    KV cache of all scheduled requests and, for prefill tokens, computes 4 x hidden size operations a layer and token of
    context. Tensor parallelism divides all of that and adds two all-reduces a layer (ring: 2(t-1)/t of the activations
    over one link). Pipeline parallelism is modelled as vLLM runs it when it is busy: as many batches in flight as there
    are stages, each with its share of the requests, bubbles left out; so weights are read once a round as without it,
    while arithmetic, KV reads and link volumes are divided by the batches that the requests can fill.
    `async_scheduling`: the host's part hides behind the device.
    """

    gpu: Gpu
    model: ModelShape
    parallel: Parallel = field(default_factory=Parallel)
    efficiency: Efficiency = field(default_factory=Efficiency)
    async_scheduling: bool = False
    _weights_s: float = field(init=False, repr=False)
    _token_s: float = field(init=False, repr=False)
    _attention_s: float = field(init=False, repr=False)
    _kv_token_s: float = field(init=False, repr=False)
    _fixed_s: float = field(init=False, repr=False)
    _link_token_s: float = field(init=False, repr=False)
    _host_step_s: float = field(init=False, repr=False)
    _host_request_s: float = field(init=False, repr=False)
    _inactive: float = field(init=False, repr=False)
    _stages: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gpu, model, eff = self.gpu, self.model, self.efficiency
        tensor, stages = self.parallel.tensor, self.parallel.pipeline
        rate = (gpu.fp8_flops if model.fp8_compute else None) or gpu.fp16_flops
        flops = rate * eff.compute * tensor
        bandwidth = gpu.bandwidth_bytes_per_s * eff.memory
        link = gpu.link_bytes_per_s * eff.link
        reduces = _ALL_REDUCES_PER_LAYER * model.layers if tensor > 1 else 0
        activation = model.width * _ACTIVATION_BYTES
        ring = 2 * (tensor - 1) / tensor
        derived = {
            "_weights_s": model.weight_bytes / tensor / bandwidth,
            "_token_s": 2 * model.parameter_count * model.active_share / flops,
            "_attention_s": 4 * model.width * model.layers / flops,
            # The stages' own layers add up to all layers: only the tensor split shortens the read of a whole round.
            "_kv_token_s": model.kv_bytes_per_token_per_device(Parallel(tensor)) / bandwidth,
            "_fixed_s": model.layers * eff.layer_s + reduces * eff.collective_s + (stages - 1) * eff.collective_s,
            "_link_token_s": (reduces * ring + stages - 1) * activation / link,
            "_host_step_s": eff.host_step_s,
            "_host_request_s": eff.host_request_s,
            "_inactive": 1 - model.active_share,
            "_stages": stages,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        """Duration of the step in seconds; an empty step costs nothing but the host's part."""
        # Asked once a step of a replay, so: no calls where they can be had without.
        host = self._host_step_s + self._host_request_s * requests
        tokens = prefill_tokens + decode_requests
        if tokens <= 0:
            return host
        weights = self._weights_s
        if self._inactive:  # few tokens meet only some of the experts
            weights *= 1 - self._inactive**tokens
        products = self._token_s * tokens
        attention = self._kv_token_s * kv_tokens
        if prefill_tokens > 0:
            context = _prefill_context(prefill_tokens, kv_tokens, requests, requests - decode_requests)
            arithmetic = self._attention_s * prefill_tokens * context
            if arithmetic > attention:
                attention = arithmetic
        shared = attention + self._link_token_s * tokens
        if self._stages > 1:
            in_flight = min(self._stages, max(1, requests))
            products /= in_flight
            shared /= in_flight
        device = self._fixed_s + (weights if weights > products else products) + shared
        if self.async_scheduling:
            return device if device > host else host
        return device + host


def _prefill_context(prefill_tokens: int, kv_tokens: int, requests: int, prefills: int) -> float:
    """Tokens that a prefill token looks back at, on average.

    A chunk of n tokens that ends at context c sees c - n/2 each; c is taken as the mean context of all scheduled
    requests, because the step's sums tell no more.
    """
    chunk = prefill_tokens / max(1, prefills)
    context = kv_tokens / max(1, requests)
    return max(context, chunk) - chunk / 2


class StepTime(Protocol):
    """Seconds of one step from what it computes.

    `prefill_tokens`: tokens of all chunks that are prefill or recompute; `decode_requests`: requests that compute one
    new token; `kv_tokens`: context lengths after the step, summed over all scheduled requests; `requests`: how many
    requests are scheduled.
    """

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        """Duration of the step in seconds, not negative."""


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """base + per prefill token + per decode request + per KV token read, all in seconds."""

    base_s: float
    per_prefill_token_s: float
    per_decode_s: float
    per_kv_token_s: float

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        """The linear sum; `requests` has no term of its own."""
        return (
            self.base_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_s * decode_requests
            + self.per_kv_token_s * kv_tokens
        )


Floats = npt.NDArray[np.float64]

_WIDEST = 0.5  # of a coefficient's logarithm, when costs are drawn
_KEPT = 0.9  # of a particle's own deviation from one window to the next


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step; a `StepTime` of the reference engine. `scale` multiplies the whole."""

    base: float
    per_prefill: float
    per_decode: float
    per_kv: float
    per_prefill_squared: float = 0.0
    scale: float = 1.0

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        """Seconds of a step; `requests` has no term of its own."""
        return self.scale * (
            self.base
            + prefill_tokens * (self.per_prefill + self.per_prefill_squared * prefill_tokens)
            + self.per_decode * decode_requests
            + self.per_kv * kv_tokens
        )

    def decode(self, requests: int, kv_tokens: int) -> float:
        """Seconds of a step that only decodes."""
        return self.scale * (self.base + self.per_decode * requests + self.per_kv * kv_tokens)

    def growth(self, requests: int) -> float:
        """What each further decode step takes longer: the context grows by a token a request."""
        return self.scale * self.per_kv * requests

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """The five coefficients, without the scale."""
        return (self.base, self.per_prefill, self.per_decode, self.per_kv, self.per_prefill_squared)

    def scaled(self, scale: float) -> StepCost:
        """The same with another speed."""
        return StepCost(*self.coefficients, scale)


@dataclass(frozen=True, slots=True)
class CostFit:
    """Step costs with their uncertainty.

    `logs` and `covariance`: of the coefficients' logarithms; `error`: relative misfit of the windows' times; `windows`:
    sum of the windows' weights, 0 where nothing but the prior and the mean concurrency speaks.
    """

    logs: Floats
    covariance: Floats
    error: float
    windows: float

    @property
    def cost(self) -> StepCost:
        """The costs at the centre."""
        return StepCost(*map(float, np.exp(self.logs)))

    def draw(self, rng: np.random.Generator, least: float) -> StepCost:
        """Costs as they may be. `least`: smallest spread of the whole, as a logarithm."""
        return StepCost(*map(float, np.exp(self.logs + self._deviation(rng, least))))

    def drift(self, cost: StepCost, rng: np.random.Generator, least: float) -> StepCost:
        """Costs a little further on, so that nobody is bound to what was drawn first; the spread stays that of `draw`."""
        away = np.log(np.maximum(cost.coefficients, 1e-15)) - self.logs
        fresh = self._deviation(rng, least)
        moved = _KEPT * away + np.sqrt(1.0 - _KEPT**2) * fresh
        return StepCost(*map(float, np.exp(self.logs + moved)))

    def _deviation(self, rng: np.random.Generator, least: float) -> Floats:
        values, vectors = np.linalg.eigh(self.covariance)
        noise = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(5))
        own = least * (rng.standard_normal(5) + rng.standard_normal()) / 2
        return np.asarray(np.clip(noise, -2 * _WIDEST, 2 * _WIDEST) + own, dtype=np.float64)
