"""The largest sizes that a model may have. It imports no torch: folders are checked by them before."""

# Far above anything published; a config from outside that asks for more would only exhaust the machine.
LIMITS = {
    **dict.fromkeys(("vocabulary", "source_vocabulary"), 1 << 26),
    **dict.fromkeys(("context", "farthest"), 1 << 24),
    **dict.fromkeys(("layers", "decoder_layers"), 2048),
    **dict.fromkeys(("width", "embedding_width", "maps"), 1 << 18),
    **dict.fromkeys(("inner", "decoder_inner", "features"), 1 << 20),
    **dict.fromkeys(("head_width", "segments", "buckets"), 1 << 16),
    **dict.fromkeys(("heads", "decoder_heads"), 1 << 14),
    **{"kernel": 1 << 10, "window": 1 << 12},
}
