"""vLLM's schedulers, step by step, and a clock: a workload and a configuration in, decisions and latencies out."""
