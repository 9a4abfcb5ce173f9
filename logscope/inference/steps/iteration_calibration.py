"""Step times measured step by step: a robust linear fit over the observed steps, and how far it is off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logscope.inference.steps.clock import Floats
from reference_engine.cost.step_time_part import LinearStepTime
from reference_engine.sketch.step_cost import StepCost

__all__ = ["Calibration", "calibrate"]

_ROUNDS = 12
_TUNING = 1.345  # Huber's constant: 95 % efficient where the noise is normal


@dataclass(frozen=True, slots=True)
class Calibration:
    """`model` and `linear` (without the square) include the mean time between two steps; `error`: median relative error of single steps, 0..1; `steps` used."""

    model: StepCost
    linear: LinearStepTime
    error: float
    steps: int


def calibrate(
    elapsed: Floats, prefill: Floats, decodes: Floats, kv_tokens: Floats, between_s: float
) -> Calibration:
    """Fit base, per prefill token (and its square), per decode request and per KV token, none negative, to steps of `elapsed` seconds.

    Errors count in proportion to a step's length, beyond the usual size only linearly, so that a stalled or a cold step bends nothing.
    """
    columns = np.column_stack([np.ones(len(elapsed)), prefill, decodes, kv_tokens, prefill**2])
    if len(elapsed) < 4:
        mean = (float(elapsed.mean()) if len(elapsed) else 0.0) + between_s
        linear = LinearStepTime(mean, 0.0, 0.0, 0.0)
        return Calibration(StepCost(mean, 0.0, 0.0, 0.0), linear, 1.0, len(elapsed))
    found = _robust(columns, elapsed)
    found[0] += between_s
    linear_found = _robust(columns[:, :4], elapsed)
    linear_found[0] += between_s
    off = np.abs(columns @ found - between_s - elapsed)
    error = float(np.median(off / _scale(elapsed)))
    return Calibration(
        StepCost(*found.tolist()), LinearStepTime(*linear_found.tolist()), error, len(elapsed)
    )


def _scale(elapsed: Floats) -> Floats:
    """What an error is compared with: the step's length, but not that of the shortest."""
    return np.maximum(elapsed, 0.2 * float(np.median(elapsed)))


def _robust(columns: Floats, elapsed: Floats) -> Floats:
    """Least squares with Huber's weights, coefficients not negative."""
    scale = _scale(elapsed)
    scaled, target = columns / scale[:, None], elapsed / scale
    weights = np.ones(len(elapsed))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = _not_negative(scaled * root[:, None], target * root)
        off = np.abs(scaled @ found - target)
        spread = max(1.4826 * float(np.median(off)), 1e-6)
        weights = np.minimum(1.0, _TUNING * spread / np.maximum(off, 1e-12))
    return found


def _not_negative(columns: Floats, target: Floats) -> Floats:
    """Least squares with coefficients that are not negative: columns that would be are left out, the worst first."""
    kept = [i for i in range(columns.shape[1]) if np.any(columns[:, i])]
    found = np.zeros(columns.shape[1])
    while kept:
        scale = np.sqrt((columns[:, kept] ** 2).sum(axis=0))
        some = np.linalg.lstsq(columns[:, kept] / scale, target, rcond=None)[0]
        if some.min() >= 0:
            found[kept] = some / scale
            break
        kept.pop(int(some.argmin()))
    return found
