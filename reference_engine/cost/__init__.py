"""How long a step takes, and how many KV blocks fit."""
