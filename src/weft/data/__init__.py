"""Tokens into batches: shards on disk, rows, masks, and an order that is arithmetic."""
