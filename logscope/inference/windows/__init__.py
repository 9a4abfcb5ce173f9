"""The inference from statistics lines: a particle filter over replays."""
