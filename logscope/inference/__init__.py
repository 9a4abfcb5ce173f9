"""From a log alone to the workload behind it: latencies, preemptions, the ledger, and what a change would do."""

from logscope.inference.prediction import Prediction
from logscope.inference.windows.estimate import Inference, infer, predict

__all__ = ["Inference", "Prediction", "infer", "predict"]
