"""Smaller models: distilled, quantised, pruned, exported, and what each of them has kept."""
