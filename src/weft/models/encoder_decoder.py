"""What encoder-decoders share: the pass from source to target, and the two stacks of Transformer layers.

N: tokens written; M: tokens read; B: rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from weft.models.base import Network, Started, States
from weft.models.shared import matrices
from weft.nn.attention import Cache, Memory, Sources
from weft.nn.fixed import FixedCache
from weft.nn.heads import step_scores
from weft.nn.open_rows import CachedRows
from weft.nn.rows import Ragged, Rows

Embedded = tuple[Tensor, Tensor | None, Tensor | None]  # N width; a bias on the scores, and turns, where there are


def numbered(prefix: str, count: int, directions: int = 1) -> list[tuple[str, ...]]:
    """The names of the layers of a stack; a layer that reads both ways is two modules."""
    return [tuple(f"{prefix}.{directions * layer + way}" for way in range(directions)) for layer in range(count)]


def sides_of(
    encoder: list[tuple[str, ...]], decoder: list[tuple[str, ...]], leave: str = "encoder_norm"
) -> list[tuple[str, ...]]:
    """The names of an encoder's layers, then of a decoder's, with what belongs to the lowest and to the highest."""
    encoder[0] += ("encoder_positions",)
    encoder[-1] += (leave,)
    decoder[0] += ("decoder_positions", "bridge", "looking")
    return encoder + decoder


class EncoderDecoder(Network):
    """A network that generates from a source: `encode(source)`, then `decode(tokens, rows, encoded)`."""

    encode: Callable[..., Any]
    decode: Callable[..., Tensor]  # N tokens, each read before the one that follows it -> N width

    def forward(
        self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None, *, source: Ragged, **more: Any
    ) -> Tensor:
        """N tokens of the target -> N width; `states`, where given, gets their embeddings and the result."""
        hidden = self.decode(tokens, rows, self.encode(source), **more)
        if states is not None:
            states += [self.tokens(tokens), hidden]
        return hidden


class TransformerSides(EncoderDecoder):
    """Stacks of Transformer layers that read and write: `encoder`, `decoder` and their norms."""

    in_slots = FixedCache
    open_rows = CachedRows
    TOP = (*Network.TOP, "decoder_norm")
    encoder_norm: nn.Module
    decoder_norm: nn.Module

    def layer_names(self) -> list[tuple[str, ...]]:
        return sides_of(numbered("encoder", len(self.encoder)), numbered("decoder", len(self.decoder)))

    def forward(
        self, tokens: Tensor, rows: Rows, segments: None = None, states: States = None, *, source: Ragged, **more: Any
    ) -> Tensor:
        """N tokens of the target -> N width; `states`, where given, gets their embeddings and each layer's output."""
        return self.decode(tokens, rows, self.encode(source), states=states)

    def stacks(self) -> dict[str, list[Any]]:
        return {"encoder": list(self.encoder), "decoder": list(self.decoder)}

    def lens(self, hidden: Tensor) -> Tensor:
        self.check_lens()
        return self.words(self.leave(self.decoder_norm(hidden)))

    def embedded(self, tokens: Tensor, rows: Rows, cache: Cache | None = None, read: bool = False) -> Embedded:
        """The vectors of tokens that are written, or `read`, with what tells layers their places."""
        raise NotImplementedError

    def leave(self, x: Tensor) -> Tensor:
        """What follows the norm of a stack."""
        return x

    def encode(self, source: Ragged) -> Sources:
        """M tokens -> M width"""
        x, bias, turns = self.embedded(source.tokens, source.rows, read=True)
        for layer in self.encoder:
            x = layer(x, source.rows, bias, turns)
        return Sources(self.leave(self.encoder_norm(x)), source.rows)

    def decode(
        self, tokens: Tensor, rows: Rows, encoded: Sources | None, cache: Cache | None = None, states: States = None
    ) -> Tensor:
        """N tokens -> N width; with a cache, what is read is laid out in it."""
        x, bias, turns = self.embedded(tokens, rows, cache)
        seen = [x]
        for number, layer in enumerate(self.decoder):
            known = None if cache is None else cache.layers[number]
            read = encoded if cache is None or cache.memory is None else cache.memory.layers[number]
            x = layer(x, rows, bias, turns, known, read)
            seen = [x] if states is None else [*seen, x]
        x = self.leave(self.decoder_norm(x))
        if states is not None:
            states += [*seen[:-1], x]
        return x

    def start(self, prompt: Ragged, source: Ragged | None = None, room: int = 0, attention: bool = False) -> Started:
        assert source is not None, "an encoder-decoder needs something to read"
        memory = self.read_sources(source, attention)
        cache = Cache(len(self.decoder), prompt.rows, room, memory)
        lasts = prompt.rows.lasts()
        hidden = self.decode(prompt.tokens, prompt.rows, None, cache=cache)
        memory.settle(lasts)
        return step_scores(self.words(hidden[lasts])), cache

    def step(self, tokens: Tensor, state: Cache) -> Tensor:
        hidden = self.further(tokens, state)
        state.advance()
        assert state.memory is not None
        state.memory.settle()
        return step_scores(self.words(hidden))

    def further(self, tokens: Tensor, cache: Any) -> Tensor:
        """N tokens that come after what is in the cache -> N width"""
        return self.decode(tokens, Rows.single(len(tokens), tokens.device), None, cache=cache)

    def read_sources(self, source: Ragged, attention: bool = False) -> Memory:
        """What the layers of the decoder look at."""
        read = self.encode(source)
        memory = Memory(read.rows, read.hidden.shape[0], read.hidden.dtype, attention)
        for layer in self.decoder:
            memory.add(*layer.cross.keys_and_values(read.hidden))
        return memory

    def operations(self, source: Rows, rows: Rows) -> float:
        c = self.config
        read, written = source.lengths().double(), rows.lengths().double()
        weights = [matrices(self.encoder), matrices(self.decoder)]
        cross = sum(p.numel() for name, p in self.decoder.named_parameters() if name.endswith("key_value.weight"))
        products = weights[0] * read.sum() + (weights[1] - cross) * written.sum() + cross * read.sum()
        products += c.vocabulary * c.width * written.sum()
        both = written.square().sum() / 2 + (written * read).sum()
        for layer, scores in [*((x, read.square().sum()) for x in self.encoder), *((x, both) for x in self.decoder)]:
            products += 2.0 * layer.attention.heads * layer.attention.head_width * scores  # and the values they mix
        return float(2.0 * products)
