"""One run in a process of its own, and what watches it."""
