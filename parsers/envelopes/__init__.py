"""Envelopes: what carried a log line (journal, container runtime, log shipper), taken off to find vLLM's text.

One small module for each family; `unwrapper` decides which one a line wears.
"""

from parsers.envelopes.form import Clock
from parsers.envelopes.unwrapper import Unwrapper, unwrap

__all__ = ["Clock", "Unwrapper", "unwrap"]
