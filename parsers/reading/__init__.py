"""From sources to events and frames: line by line (the reference) and in bulk (the same result, fast)."""
