"""What every family's config and network can be asked for, with defaults: a family declares what it has.

N: tokens; n: the places asked for; B: rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from weft.errors import UserError
from weft.models.shared import check_sizes, head_width, start_weights
from weft.nn.heads import LabelHead, TableHead, WordHead
from weft.nn.rows import Rows
from weft.nn.word_loss import cross_entropy, fits_whole, word_loss

States = list[Tensor] | None  # where given, gets the embeddings and the output of each layer
Started = tuple[Tensor, Any]  # B vocabulary, float32: logits of each row's next word; and the state to go on from


class ModelConfig:
    """Sizes of a model, for a frozen dataclass to inherit from: the values of the fields that it does not have."""

    vocabulary: int
    source_vocabulary: int | None = None  # of an encoder-decoder that reads with another vocabulary than it writes with
    context: int  # the longest text, in tokens
    segment: int | None = None  # tokens that are read at once, where a longer text is read in segments
    width: int = 0
    embedding_width: int | None = None
    layers: int = 0
    decoder_layers: int | None = None
    heads: int = 0  # of an attention layer; 0: the family has no attention
    decoder_heads: int | None = None
    head_width: int | None = None
    layer_heads: tuple[int, ...] | None = None
    inner: int | None = None
    decoder_inner: int | None = None
    inner_dropout: float = 0.0
    attention: str = "none"  # of a recurrent decoder
    feeding: bool = False
    positions: str | None = None
    buckets: int = 0  # of relative distances
    segments: int = 1  # 0: no table of them
    padding: int | None = None  # the token whose id positions are counted from
    pooler: bool = False
    mix: bool = False
    head_layers: str = "last"
    tied: bool | str = False
    word_bias: bool = False
    begin: int | None = None  # the token that an encoder-decoder begins to write from
    languages: tuple[str, ...] = ()  # by id, of a model that is told the language of a text
    language: int = 0  # the one that it takes a text for
    entries: tuple[int, ...] = ()  # of tables that are counted
    weight_scale: float | None = None  # None: from the width

    norm_epsilon: float = 1e-5

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ()  # sizes of which there may be none
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        check_sizes(self)

    @classmethod
    def has(cls, name: str) -> bool:
        """Whether the family has a field of this name."""
        return name in cls.__dataclass_fields__

    def with_heads(self, heads: Mapping[str, int]) -> Any:
        """The config of the same network with these heads alone."""
        return self

    @property
    def reach(self) -> int | None:
        """How many tokens back a language model looks; None: to the beginning of its context."""
        return None


class Network(nn.Module):
    """A family's network: a subclass makes `tokens`, `heads` and its layers, and has `forward`.

    `forward(tokens, rows, segments=None, states=None)` gives N width. One that generates has `start` and `step` too.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("words",)  # the heads that it can have
    BY_TOKEN: ClassVar[tuple[str, ...]] = ("words", "tag", "answer", "spans")  # heads that read every token
    POOLED: ClassVar[tuple[str, ...]] = ()  # heads that read the pooler
    TOP: ClassVar[tuple[str, ...]] = ("heads", "pooler", "mix", "final_norm")  # what stands above the highest layer
    STACK: ClassVar[bool] = False  # its layers are a stack with attention, each of which can be recorded
    CARRIES: ClassVar[bool] = False  # its state can be carried from one row to the next: `beginning`, `carried=`
    UNROLLS: ClassVar[bool] = False  # `unrolled`: by the equations, place by place
    SCORES_TARGETS: ClassVar[bool] = False  # `target_logprobs`: one word's probability without those of all others
    SCORES_TEXTS: ClassVar[bool] = False  # `text_logprobs`: an engine that scores whole texts and has no states
    SEARCHES: ClassVar[bool] = False  # `search`: an engine that generates by itself
    RESETS: ClassVar[bool] = False  # `forward(positions=)`: each text of a pair can be counted from 0
    READS_OWN: ClassVar[bool] = False  # `forward(own=)`: the chance that a place reads the network's own best guess
    on_arrays: ClassVar[Any] = None  # an engine's graph in its place, which needs no tensors: `backends.onnx`
    COMPILES: ClassVar[bool] = True  # what it computes depends on shapes alone, not on which tokens there are
    CONTINUES: ClassVar[range] = range(0)  # tokens that go on with a word, and have no vector of their own

    # Read the prompts (and a source); `room`: how many tokens a row may grow to, the prompt included, before a cache is
    # laid out anew; `attention`: whether the state keeps what was attended to in the source.
    start: Callable[..., Started]
    step: Callable[..., Tensor]  # (tokens B, state): reads one token per row; logits of the next one
    beginning: Callable[[int], Any]  # the state of so many rows that have read nothing
    # (tokens, rows, begin=None): hidden states by the equations, without dropout, and what each layer carried on.
    unrolled: Callable[..., tuple[Tensor, list[list[Any]]]]
    target_logprobs: Callable[[Tensor, Tensor], Tensor]  # n width, n words -> n
    text_logprobs: Callable[..., list[list[float]]]  # (texts): of every token but the first, after those before it
    search: Callable[..., Any]  # (request): generates for all prompts, as `generation.search`
    operations: Callable[[Rows, Rows], float]  # products and sums of a forward pass over a source and a target

    in_slots: Callable[..., Any] | None = None  # (state, slots, copies, room, source room): a state as in `nn.fixed`
    open_rows: Callable[..., Any] | None = None  # (network, device): rows that come and go, as in `nn.open_rows`
    further: Callable[..., Tensor]  # (tokens N, cache): hidden states of tokens after those in the cache: N width
    read_sources: Callable[..., Any]  # (sources): what an encoder with a cache has made of them
    tokens: Any  # the table of token vectors
    heads: Any

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        # In place of those that a family may have.
        self.layers: Any = ()
        self.encoder: Any = None
        self.decoder: Any = None
        self.source_tokens: Any = None
        self.segments: Any = None
        self.languages: Any = None
        self.embedding_norm: Any = None
        self.widened: Any = None  # from the width of the embeddings to that of the layers
        self.mix: Any = None
        self.pooler: Any = None
        self.memory: Any = None  # how many tokens that are carried from row to row
        self.final_norm: Any = None  # after the highest layer
        self.looking: Any = None  # how a decoder without attention heads looks at its source
        self.looking_layers = 1  # how many layers of it do
        self.narrow: Any = None  # to the width of the table of tokens, by which words are scored

    @property
    def features(self) -> int:
        """Width of what `forward` gives and the heads read."""
        return head_width(self.config)

    @property
    def state_widths(self) -> list[int]:
        """Widths of the embeddings and of what each layer gives, as `states` gets them."""
        return [self.config.width] * (self.config.layers + 1)

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """Multiples of the learning rate, by the beginnings of the names of weights."""
        return {}

    @property
    def products(self) -> float | None:
        """Products that one token costs in a forward pass; None: to be counted from the layers and the attention."""
        return None

    def layer_names(self) -> list[tuple[str, ...]]:
        """The layers from the input to the output, each as the beginnings of the names of its weights."""
        return [(f"layers.{number}",) for number in range(len(self.layers))]

    def stacks(self) -> dict[str, list[Any]]:
        """The layers that can be watched, in the order in which they are read, by stack; "" is the only one.

        A stack of recurrent layers in one module has that module once for each layer.
        """
        return {"": list(self.layers)} if len(self.layers) else {}

    def lens(self, hidden: Tensor) -> Tensor:
        """Logits of words from the output of any layer, as if it were the highest: n width -> n vocabulary."""
        self.check_lens()
        return self.words(hidden if self.final_norm is None else self.final_norm(hidden))

    def check_lens(self) -> None:
        """Refuse a logit lens where the word head reads something else than the output of one layer."""
        if "words" not in self.heads:
            raise UserError("this model has no word head, so its layers predict no words")
        if self.mix is not None:
            raise UserError("the word head of this model reads a mix of layers, so no layer alone predicts words")

    def pooled(self, hidden: Tensor, rows: Rows) -> Tensor:
        """B width: the vector of each row that heads of whole texts read."""
        return hidden[rows.firsts()]

    def next_states(self, tokens: Tensor, rows: Rows, **more: Any) -> Tensor:
        """N width: what the word head reads to predict the token after each; of a family that generates."""
        return self(tokens, rows, **more)

    def words(self, hidden: Tensor) -> Tensor:
        """Logits of all words at the places asked for: n width -> n vocabulary."""
        return self.heads["words"](*self.word_inputs(hidden))

    def word_inputs(self, hidden: Tensor) -> tuple[Tensor, Any]:
        """What the word head reads: n width, and the table of tokens."""
        return hidden if self.narrow is None else self.narrow(hidden), self.tokens.weight

    def word_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed cross-entropy of words; a chunk at a time where there are many.

        A family that has `words` of its own, or a head that is more than a product with a table, has all its logits at
        once.
        """
        head, own = self.heads["words"], type(self).words is not Network.words
        if own or not isinstance(head, TableHead) or fits_whole(hidden.shape[0], self.config.vocabulary):
            return cross_entropy(self.words(hidden), labels, smoothing)
        return word_loss(*head.operands(*self.word_inputs(hidden)), labels, smoothing)

    def logits(self, head: str, hidden: Tensor, rows: Rows) -> Tensor:
        """Output of a head: N rows for the heads in `BY_TOKEN`, else B rows."""
        if head == "words":
            return self.words(hidden)
        if head == "spans":
            return self.span_logits(hidden, rows)
        if head in self.POOLED:
            return self.heads[head](self.pooler(hidden[rows.firsts()]))
        return self.heads[head](hidden if head in self.BY_TOKEN else self.pooled(hidden, rows))

    def span_logits(self, hidden: Tensor, rows: Rows, allowed: Tensor | None = None) -> Tensor:
        """Output of the head `spans` (see `SpanHead`) for answers that consist of `allowed` tokens: N 2+K."""
        return self.heads["spans"](hidden, rows, self.pooled(hidden, rows), allowed)

    def make_heads(self, heads: Mapping[str, int]) -> nn.ModuleDict:
        """The heads asked for, with how many outputs each has."""
        return nn.ModuleDict({name: self.make_head(name, outputs) for name, outputs in heads.items()})

    def make_head(self, name: str, outputs: int) -> nn.Module:
        """One head: words by the table of tokens or one of its own, labels by dropout and a linear map."""
        if name == "words":
            return WordHead(self.features, outputs, self.config.tied not in (False, "none"), self.config.word_bias)
        return LabelHead(self.features, outputs, self.config.dropout)

    def remember(self, tokens: int) -> int:
        """Carry a memory of so many tokens from row to row, in place of as many as before, which are returned."""
        raise UserError("only transformer-xl and xlnet have a memory")

    def unsound(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Of tensors to be loaded, the names of tables of whole numbers that lead nowhere."""
        return []

    def read_vocabulary(self, tokens: Mapping[str, int]) -> None:  # noqa: B027
        """What a network has to know of its tokens beside their ids: nothing, but for the spelling of words."""

    def initialize(self) -> None:
        """Draw fresh weights: normal with `weight_scale`, biases 0, norms 1."""
        start_weights(self, self.config.weight_scale)
