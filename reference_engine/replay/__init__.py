"""A workload and a configuration in, decisions, latencies and ledgers out."""
