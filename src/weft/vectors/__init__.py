"""Word vectors: how they are learned, asked, judged and carried from one language to another."""
