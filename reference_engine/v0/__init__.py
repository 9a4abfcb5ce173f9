"""vLLM's V0 scheduler."""
