"""vLLM's V1 scheduler."""
