"""From bytes to events: sources, envelopes, vLLM's record prefix, message families."""
