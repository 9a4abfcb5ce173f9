"""What every scheduler and replay speaks of: requests, steps, configuration, the latency ledger."""
