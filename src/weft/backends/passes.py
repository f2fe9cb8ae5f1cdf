"""Forward passes over windows of tokens: on a GPU in half precision, with small passes replayed from CUDA graphs.

Launching the kernels of a small pass takes longer than running them on a GPU. So a pass is padded with unused rows to
one of a few sizes, captured when its size occurs for the second time, and replayed from then on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.checkpoint.folder import LoadedModel
from weft.nn.graphs import captured, casts_to, on_device, tried_out
from weft.nn.halved import halved, inventory_of, is_watched, kind_of, places_of
from weft.nn.heads import follow_tables
from weft.nn.rows import Batch, Rows

Work = Callable[[Any, Batch], Tensor]  # computes a row for each token or each text of a batch with a network
LARGEST = 8192  # tokens of a captured pass at most: larger ones keep the GPU busy without it
GRAPHS = 64  # sizes that are captured at most


def halved_network(model: LoadedModel) -> Any:
    """The network that answers: on a GPU a copy in half precision."""
    return halved(model.network, kind_of(model.network, model.precision, model.family.generates))


def running(model: LoadedModel, head: str | None = None) -> Any:
    """What computes the output of a head, or the hidden states: the chosen backend, or the network."""
    return halved_network(model) if model.predictor is None else model.answering(head)


def outputs(model: LoadedModel, batch: Batch, work: Work, head: str | None, full: bool = False) -> Tensor:
    """The result of `work` for a batch, in float32 at least.

    `full`: not in half precision, for a batch whose output has overflowed there.
    """
    network, device = model.network if full else running(model, head), model.device
    if device.type != "cuda" or not network.COMPILES or (network is model.network and is_watched(network)):
        return in_full(work(network, batch if batch.tokens.device == device else batch.to(device)))
    return graphs_of(network).run(network, batch, work, head)


def finite_outputs(model: LoadedModel, batch: Batch, work: Work, head: str | None) -> Tensor:
    """The same on the CPU; if half precision has given NaN or infinity, computed again in full precision."""
    result = outputs(model, batch, work, head).cpu()
    if model.predictor is None and halved_network(model) is not model.network and not bool(result.isfinite().all()):
        result = outputs(model, batch, work, head, full=True).cpu()
    return result


def in_full(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def bucket(count: int, step: int = 16) -> int:
    """The next of the sizes that passes are padded to: eight per power of two."""
    step = max(step, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def filled_up(batch: Batch, context: int) -> Batch:
    """The batch, padded with rows of zeros to one of a few sizes; no row is longer than the context."""
    rows, total = batch.rows, len(batch.tokens)
    longest = max(rows.longest, min(bucket(rows.longest), context))
    count = 1 << (rows.count - 1).bit_length()
    if total == rows.count * rows.longest and (total, count, longest) == (bucket(total), rows.count, rows.longest):
        return batch  # kernels are fastest for rows of equal length
    size = bucket(total + count - rows.count)
    while size - total > (count - rows.count) * longest:  # one more row, which has one token at least
        count += 1
        size = max(size, bucket(total + count - rows.count))
    spare, more = size - total, count - rows.count
    ends = total + (torch.arange(1, more + 1) * spare) // max(1, more)
    starts = torch.cat([rows.starts, ends.to(rows.starts)])
    tokens, segments = (
        None if x is None else torch.cat([x, x.new_zeros(spare)]) for x in (batch.tokens, batch.segments)
    )
    assert tokens is not None
    return Batch(tokens, Rows(starts, longest), segments)


class PassGraphs:
    """The captured passes of one network, by their sizes."""

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self.seen = Counter[Hashable]()
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self.pool: Any = None
        self.lock = threading.Lock()  # all threads share the input and output tensors of a graph

    def run(self, network: Any, batch: Batch, work: Work, name: Hashable) -> Tensor:
        """The output of a pass, replayed if its size was captured; the batch may be on the CPU."""
        device = inventory_of(network).tensors[0].device
        if len(batch.tokens) > LARGEST:
            return in_full(work(network, batch.to(device)))
        with self.lock, on_device(device):
            return self._played(network, batch, work, name, device)

    def _played(self, network: Any, batch: Batch, work: Work, name: Hashable, device: torch.device) -> Tensor:
        filled = filled_up(batch, network.config.context)
        sizes = (len(filled.tokens), filled.rows.count, filled.rows.longest)
        shape = (*sizes, filled.segments is None, name, casts_to(device))
        if shape not in self.graphs:
            self.seen[shape] += 1
            if self.seen[shape] == 2 and len(self.graphs) < GRAPHS:
                with suppress(
                    RuntimeError
                ):  # it waits for a number from the GPU, or memory runs out: run it uncaptured
                    self.graphs[shape] = self._captured(network, filled.to(device), work, device)
            if shape not in self.graphs:
                return in_full(work(network, batch.to(device)))
        graph, read, written = self.graphs[shape]
        even = len(filled.tokens) == filled.rows.count * filled.rows.longest
        for ours, theirs in zip(_tensors(read, even), _tensors(filled, even), strict=True):
            ours.copy_(theirs, non_blocking=True)
        follow_tables()
        graph.replay()
        size = len(batch.tokens) if len(written) == len(filled.tokens) else batch.rows.count
        return written[:size].clone()

    def _captured(
        self, network: nn.Module, batch: Batch, work: Work, device: torch.device
    ) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        batch = batch.map(Tensor.clone)
        even = len(batch.tokens) == batch.rows.count * batch.rows.longest  # then rows always start at the same places

        def run() -> Tensor:  # with new `Rows`: cached values of another batch must not be used
            rows = batch.rows if even else Rows(batch.rows.starts, batch.rows.longest)
            return in_full(work(network, Batch(batch.tokens, rows, batch.segments)))

        with tried_out(device):
            for _ in range(2):
                run()
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        with captured(graph, device, self.pool):
            written = run()
        return graph, batch, written


def _tensors(batch: Batch, even: bool) -> list[Tensor]:
    """The tensors that differ between batches of one size."""
    starts, segments = [] if even else [batch.rows.starts], [] if batch.segments is None else [batch.segments]
    return [batch.tokens, *starts, *segments]


KEPT: WeakKeyDictionary[nn.Module, PassGraphs] = WeakKeyDictionary()


def graphs_of(network: nn.Module) -> PassGraphs:
    """The captured passes of a network, as long as its weights stay where they are."""
    kept, places = KEPT.get(network), places_of(network)
    if kept is None or kept.places != places:
        kept = KEPT[network] = PassGraphs(places)
    return kept
