"""Training models: what is done to pictures, and the run."""
