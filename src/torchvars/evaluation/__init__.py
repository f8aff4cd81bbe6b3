"""How robust a model is: benchmarks, corruptions, attacks, and numbers that can be trusted."""
