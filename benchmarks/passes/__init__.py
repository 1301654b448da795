"""The passes of a benchmark: what is run, in which order, and how often."""
