"""A log of any size as frames: read once, on a fleet, or again and again."""
