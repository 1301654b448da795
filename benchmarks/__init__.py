"""Measurements: on a GPU native PyTorch against ours, without one replay of recorded runs."""
