"""Watching a server's log while it is written: follow, judge the pressure with a rule that costs nothing, say what changes."""
