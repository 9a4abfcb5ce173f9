"""A second witness beside the log: the server's own metrics, and the latencies that clients measured."""
