"""Many servers at once: their logs read and replayed in parallel, and what is said of them side by side."""
