"""What the log itself proves: statistics windows, preemptions, findings and the lines that show them."""
