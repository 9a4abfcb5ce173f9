"""The inference from logs with one line a step: an exact account."""
