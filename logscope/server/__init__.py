"""Who the server was: engines, settings, flags, defaults, and what the replay does not model of it."""
