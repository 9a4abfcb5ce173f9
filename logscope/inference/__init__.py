"""From a log alone to the workload behind it: latencies, preemptions, the ledger, and what a change would do."""
