"""Where work runs: in this process, in several, or on a Ray cluster."""
