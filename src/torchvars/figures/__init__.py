"""Plots of what was measured. They need matplotlib: pip install "torchvars[figures]"."""
