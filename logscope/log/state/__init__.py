"""Logs that grow, read in several runs: each reads what is new, and the answer is that of one run over everything."""
