"""Encoder-decoders that nobody publishes in folders: the sizes of their papers, and the tokens around their texts."""

from weft.models.convolution import ConvSeq2SeqConfig
from weft.models.seq2seq import Seq2SeqConfig
from weft.models.transformer import TransformerConfig
from weft.models.vec2seq import Vec2SeqConfig

SPECIALS = {"padding": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>"}

TRANSFORMER_SIZES = {
    # Vaswani et al. (2017), table 3.
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, heads=16, dropout=0.3, embedding_dropout=0.3),
}
SEQ2SEQ_SIZES = {
    # Sutskever et al. (2014): what is read becomes one vector, and is read from its end.
    "seq2seq-plain": Seq2SeqConfig(
        vocabulary=80000,
        source_vocabulary=160000,
        width=1000,
        layers=4,
        bidirectional=False,
        attention="none",
        dropout=0.0,
        tied="none",
    ),
    # Bahdanau et al. (2015), RNNsearch: 1000 units in each direction.
    "seq2seq-bahdanau": Seq2SeqConfig(
        vocabulary=30000,
        source_vocabulary=30000,
        width=1000,
        embedding_width=620,
        layers=1,
        cell="gru",
        attention="additive",
        dropout=0.0,
        tied="none",
    ),
    # Luong et al. (2015): global attention, general, with input feeding, the source reversed.
    "seq2seq-luong": Seq2SeqConfig(
        vocabulary=50000,
        source_vocabulary=50000,
        width=1000,
        layers=4,
        bidirectional=False,
        feeding=True,
        reverse=True,
        dropout=0.2,
        tied="none",
    ),
}
CONVOLUTION_SIZES = {
    # Gehring et al. (2017): for summaries, and for English to Romanian.
    "conv-seq2seq-summaries": ConvSeq2SeqConfig(),
    "conv-seq2seq-romanian": ConvSeq2SeqConfig(vocabulary=40000, width=512, layers=20),
}
VECTOR_SIZES = {
    # Vinyals et al. (2017), Show and tell: from the 2,048 numbers that Inception v3 makes of an image.
    "show-and-tell": Vec2SeqConfig(vocabulary=12000, features=2048, entrance="input", tied=False),
}
