"""Figures of results. They need matplotlib: pip install "torchvars[figures]"."""
