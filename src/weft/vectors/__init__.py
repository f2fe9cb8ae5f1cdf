"""Word vectors: how they are learned, queried, evaluated and mapped from one language to another."""
