"""The commands: each reads its options and calls the library."""
