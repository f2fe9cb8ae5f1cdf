"""The pass of windows of tokens through a network, in batches of bounded size: the middle step of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.budget import BUDGET, by_budget
from weft.checkpoint.card import Window
from weft.errors import NotFinite, UserError, shown
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import Framing, TextWindow, framing_of, left_out, pieces, segments_of, special_tokens

if TYPE_CHECKING:  # an exported model answers without torch
    import torch
    from torch import Tensor

    from weft.checkpoint.folder import LoadedModel
    from weft.nn.rows import Batch


def check_finite(model: LoadedModel, values: Tensor, infinite: bool = False) -> Tensor:
    """The values themselves, if none of them is NaN or infinite; `infinite`: a model may rule a token out."""
    if not bool((~values.isnan() if infinite else values.isfinite()).all()):
        raise NotFinite(model.folder)
    return values


@contextmanager
def unseen_in_words(model: LoadedModel, prompts: Sequence[str] = ()) -> Iterator[None]:
    """An error about tokens becomes one about words: those of the prompt, also where the vocabulary lacks them."""
    from weft.models.ngram import UNSEEN, UnseenContext

    try:
        yield
    except UnseenContext as error:
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise
        words = " ".join(tokenizer.token(token) or "?" for token in error.tokens)
        for prompt in prompts:
            encoded = tokenizer.encode(prompt)
            tokens = zip(encoded.ids, encoded.offsets, encoded.sequences, strict=True)
            own = [(token, start) for token, (start, _), side in tokens if side is not None][-len(error.tokens) :]
            if own and [token for token, _ in own] == error.tokens[-len(own) :]:
                words = prompt[own[0][1] :]
        raise UserError(f"the context {shown(words, 200)!r} {UNSEEN}") from None


T = TypeVar("T")
TRAINING_OF, CHILDREN_OF = attrgetter("training"), attrgetter("_modules")
CHUNK = 256  # examples that are held at a time
CHARACTERS = 1 << 19  # of texts that are held at a time
TOKENIZED = 1 << 22  # characters that are tokenized at a time
ON_GPU = 8 * BUDGET  # tokens in one pass there: launching kernels takes longer than the work of a small one


def budget_on(device: torch.device) -> int:
    """Tokens of one pass on a device."""
    return ON_GPU if device.type == "cuda" else BUDGET


def chunked(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in order, so many at a time as can be held in any memory."""
    return by_budget(items, lambda item: max(size(item), CHARACTERS // CHUNK), CHARACTERS)


def in_training(module: Any) -> bool:
    """Whether a module, or any inside it, is in training mode."""
    level = [module]
    while level:  # a whole level at a time: every call asks, and a loop over modules takes as long as a short text
        if any(map(TRAINING_OF, level)):
            return True
        level = [child for child in chain.from_iterable(map(dict.values, map(CHILDREN_OF, level))) if child is not None]
    return False


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Without dropout, also in the middle of training."""
    if not in_training(network):  # setting it again in every module takes as long as a short text in a small model
        yield
        return
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


def tokenizer_of(model: LoadedModel) -> Tokenizer:
    if model.tokenizer is None:
        raise UserError("this model folder has no tokenizer, so it reads no text")
    return model.tokenizer


def window_for(model: LoadedModel, length: int | None, stride: int | None, long: str, overlap: float) -> Window:
    """The window asked for, or all that the model can read, with this share of it in common with the next."""
    context = model.config.context
    if length is not None and length > context:
        raise UserError(f"windows of {length} tokens are longer than the model's context of {context}")
    length = length or min(context, model.family.row if model.config.heads and model.family.row else 1 << 16)
    stride = stride or max(1, round((1 - overlap) * length))
    return Window(length=length, stride=min(stride, length), long="truncate" if long == "truncate" else "windows")


def framing_for(model: LoadedModel, window: Window | None = None) -> Framing:
    """How this model reads texts; its card says in which windows."""
    window = window or model.card.window or window_for(model, None, None, "windows", 0.25)
    length = min(window.length, model.config.context)
    if model.family.series:
        return Framing((), (), None, False, length, window.stride)
    causal = model.family.one_way
    return framing_of(tokenizer_of(model), causal, length, window.stride, not causal, window.long == "truncate")


def pieces_in(
    framing: Framing, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]
) -> Iterator[tuple[list[TextWindow], tuple[int, ...]]]:
    """The windows of each text or pair, and how many tokens its texts have; some texts are held at a time."""
    for some in by_budget(texts, lambda each: max(1, sum(map(len, each))), TOKENIZED):
        firsts = tokenizer.ids([each[0] for each in some], specials=False)
        seconds = iter(tokenizer.ids([each[1] for each in some if len(each) > 1], specials=False))
        for each, first in zip(some, firsts, strict=True):
            second = next(seconds) if len(each) > 1 else None
            lengths = (len(first),) if second is None else (len(first), len(second))
            if not sum(lengths) and not framing.before and not framing.after and not framing.nothing:
                raise UserError("a text is empty, and this model puts no tokens around a text")
            yield pieces(framing, first, second), lengths


def batches(pieces: Sequence[TextWindow], device: torch.device, segments: int) -> Iterator[tuple[list[int], Batch]]:
    """Windows in batches of a size that suits the device, those of similar length together; with each, which they are.

    They are still in the memory of the CPU.
    """
    import torch

    from weft.nn.rows import Batch, Rows

    order = sorted(range(len(pieces)), key=lambda number: len(pieces[number].tokens))
    begins = [
        not number or not piece.cut.start for number, piece in enumerate(pieces)
    ]  # the first may be a later window
    texts = list(accumulate(begins, initial=-1))[1:]  # of which each is a window
    for some in by_budget(order, lambda number: len(pieces[number].tokens), budget_on(device)):
        rows = [pieces[number] for number in some]
        tokens = torch.from_numpy(np.array([token for piece in rows for token in piece.tokens], np.int64))
        lengths = [len(piece.tokens) for piece in rows]
        marks = None
        if segments:
            borders = np.array([piece.border for piece in rows])
            marks = torch.from_numpy(segments_of(borders, np.array(lengths), segments))
        windows = [(texts[number], pieces[number].cut.start) for number in some]
        yield some, Batch(tokens, Rows.of(lengths, windows=windows), marks)


class InputWindows(NamedTuple):
    """Some inputs as windows of tokens: what one pass reads, and what decoding its outputs needs."""

    framing: Framing
    pieces: list[list[TextWindow]]  # by input
    lengths: list[tuple[int, ...]]  # tokens of the texts of each input
    places: list[Any]  # by input: where its words or tokens stand, for tasks that answer by place

    def read(self, number: int) -> tuple[int, int, bool]:
        """Of one input the tokens, special ones counted once, the windows, and whether anything was left out."""
        lengths, pieces = self.lengths[number], self.pieces[number]
        tokens = sum(lengths) + special_tokens(self.framing, len(lengths))
        return tokens, len(pieces), left_out(self.framing, pieces, *lengths)


def head_outputs(
    model: LoadedModel,
    windows: InputWindows,
    head: str,
    by_token: bool,
    allowed: Callable[[TextWindow], NDArray[np.bool_]] | None = None,
) -> list[list[NDArray[Any]]]:
    """The logits of a head for every window of every input: for each token (n C), or for the window (C).

    `allowed`: which tokens of a window an answer may consist of, for a head that has to know it.
    """
    flat = [piece for pieces in windows.pieces for piece in pieces]
    graph = graph_of(model, head) if allowed is None else None
    if graph is not None:
        rest = iter(graph_outputs(graph, model, flat, windows.framing, by_token))
        return [[next(rest) for _ in pieces] for pieces in windows.pieces]
    import torch

    from weft.backends.passes import finite_outputs, running

    network: Any = running(model, head)
    by_window: list[NDArray[Any]] = [np.empty(0)] * len(flat)

    def work(network: Any, batch: Batch) -> Tensor:
        return network.logits(head, network(batch.tokens, batch.rows, batch.segments), batch.rows)

    segments = windows.framing.marks(any(piece.border < len(piece.tokens) for piece in flat))
    with torch.inference_mode():
        for numbers, batch in batches(flat, model.device, segments):
            if allowed is None:
                logits = finite_outputs(model, batch, work, head)
            else:
                batch = batch.to(model.device)
                hidden = network(batch.tokens, batch.rows, batch.segments)
                mask = torch.from_numpy(np.concatenate([allowed(flat[number]) for number in numbers]))
                logits = network.span_logits(hidden, batch.rows, mask.to(hidden.device))
            logits = check_finite(model, logits.float().cpu())
            sizes = [len(flat[number].tokens) for number in numbers]
            parts = torch.split(logits, sizes) if by_token else logits.unbind()
            for number, part in zip(numbers, parts, strict=True):
                by_window[number] = part.clone().numpy()
    rest = iter(by_window)
    return [[next(rest) for _ in pieces] for pieces in windows.pieces]


def graph_of(model: LoadedModel, head: str | None) -> Any:
    """What gives the output of a head, or hidden states, on arrays; None: the network does, on tensors."""
    if model.graph is not None:
        return model.graph
    if head == "words" or (model.predictor is not None and not model.predictor.on_arrays):
        return None
    return model.answering(head).on_arrays


def graph_outputs(
    graph: Any, model: LoadedModel, pieces: Sequence[TextWindow], framing: Framing, by_token: bool
) -> list[NDArray[Any]]:
    """What a graph gives for each window without torch: for each token (n C), or for the window (C)."""
    marks = framing.marks(any(piece.border < len(piece.tokens) for piece in pieces))
    outputs: list[NDArray[Any]] = [np.empty(0)] * len(pieces)
    order = sorted(range(len(pieces)), key=lambda number: len(pieces[number].tokens))
    for some in by_budget(order, lambda number: len(pieces[number].tokens), BUDGET):
        rows = [pieces[number] for number in some]
        lengths = np.array([len(piece.tokens) for piece in rows])
        starts = [0, *np.cumsum(lengths).tolist()]
        tokens = np.array([token for piece in rows for token in piece.tokens], np.int64)
        segments = segments_of(np.array([piece.border for piece in rows]), lengths, marks) if marks else None
        logits = graph.computed(tokens, starts, segments)
        if not np.isfinite(logits).all():
            raise NotFinite(model.folder)
        for place, number in enumerate(some):
            outputs[number] = logits[starts[place] : starts[place + 1]] if by_token else logits[place]
    return outputs


def stacked(outputs: Sequence[Mapping[str, NDArray[Any]]], name: str) -> NDArray[Any]:
    """E ...: the outputs of a teacher for every example under one name, where all have the same shape."""
    first = np.asarray(outputs[0][name])
    kind = np.dtype((first.dtype, first.shape))
    return np.fromiter((outputs[number][name] for number in range(len(outputs))), kind, len(outputs))


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Probabilities along the last dimension."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the space around it."""
    start = end - len(text[start:end].lstrip())
    return start, start + len(text[start:end].rstrip())
