"""logscope: reads a vLLM server's log and says what is behind its slow requests."""

__version__ = "0.1.0"
