"""The Transformer of 2017: its sizes, and the special tokens of the vocabularies that are learned for it."""

from weft.models.transformer import TransformerConfig

SPECIALS = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>"}

# Table 3 of the paper: base, and big.
SIZES = {
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, heads=16, dropout=0.3, embedding_dropout=0.3),
}
