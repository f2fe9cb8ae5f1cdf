"""Recurrent networks that nobody publishes in folders: the sizes of their papers, and how they learn."""

from weft.models.recurrent import RecurrentConfig

PAPERS = {
    "rnn": "Elman, 1990; Mikolov et al., 2010",
    "lstm": "Hochreiter and Schmidhuber, 1997; Zaremba et al., 2014",
    "gru": "Cho et al., 2014",
}
RATE = 3e-3  # measured on small texts: recurrent networks take larger steps than Transformers
SIZES = {
    "lstm": {
        # Zaremba et al. (2014), on the Penn Treebank.
        "lstm-zaremba-small": RecurrentConfig(width=200, dropout=0.0, tied=False, weight_scale=0.1),
        "lstm-zaremba-medium": RecurrentConfig(width=650, dropout=0.5, tied=False, weight_scale=0.05),
        "lstm-zaremba-large": RecurrentConfig(width=1500, dropout=0.65, tied=False, weight_scale=0.04),
    },
}
