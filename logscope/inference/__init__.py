"""From a log alone to the workload behind it: latencies, preemptions, the ledger, and what a change would do."""

from logscope.inference.estimate import Inference, infer, predict
from logscope.inference.prediction import Prediction

__all__ = ["Inference", "Prediction", "infer", "predict"]
