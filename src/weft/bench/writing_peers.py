"""Other libraries that generate text with the same weights, from tokens to tokens, called as their users do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from weft.backends.opening import opened as open_exported
from weft.bench.peers import folder_for, installed_peers, published, transformers
from weft.bench.writing_agreement import Score, Write, WritingSettings, logprobs_of, sources_of
from weft.errors import UserError
from weft.exporters.export import write_ct2
from weft.generation.search import Beam
from weft.generation.text import Prompt
from weft.nn.halved import kind_of
from weft.progress import Log
from weft.tasks.model import Model


@dataclass(frozen=True)
class WritingPeer:
    """One way to generate with another library; end tokens are ignored."""

    name: str
    call: Write
    greedy: Callable[[int], Write]  # greedy search for so many tokens
    score: Score | None = None
    int8: bool = False
    refused: str | None = None


def writers_of(model: Model, writing: WritingSettings, names: Sequence[str], log: Log) -> list[WritingPeer]:
    """The peers of these libraries, as far as they are installed; one that cannot run this model is refused."""

    def write_nothing(prompts: Sequence[Prompt]) -> list[list[int]]:
        return []

    def refused(name: str, reason: str) -> WritingPeer:
        return WritingPeer(name, write_nothing, lambda count: write_nothing, refused=reason)

    return installed_peers(names, lambda name: WRITERS[name](model, writing), refused, log)


def _width(writing: WritingSettings) -> int:
    return writing.choice.width if isinstance(writing.choice, Beam) else 1


def _transformers(model: Model, writing: WritingSettings) -> list[WritingPeer]:
    """Its method `generate`, with prompts padded on the left and sources on the right."""
    library, reads = transformers(), model.opened.family.reads
    kind = library.AutoModelForSeq2SeqLM if reads else library.AutoModelForCausalLM
    dtype = kind_of(model.network, model.opened.precision, generates=True) or torch.float32  # as ours answers
    options = {"local_files_only": True, "trust_remote_code": False, "dtype": dtype}
    network = kind.from_pretrained(published(model), **options).eval().to(model.opened.device)
    network.generation_config = library.GenerationConfig(pad_token_id=0)
    if reads:
        network.generation_config.decoder_start_token_id = model.config.begin

    def write(max_tokens: int, width: int) -> Write:
        fixed: dict[str, Any] = {"max_new_tokens": max_tokens, "do_sample": False, "num_beams": width}
        if model.opened.never:
            fixed["bad_words_ids"] = [[token] for token in model.opened.never]
        if width > 1:
            fixed |= {"early_stopping": "never", "length_penalty": 1.0}

        @torch.inference_mode()
        def run(prompts: Sequence[Prompt]) -> list[list[int]]:
            texts = sources_of(prompts) if reads else [list(prompt.tokens) for prompt in prompts]
            assert texts is not None
            longest = max(map(len, texts))
            gaps = [longest - len(text) for text in texts]
            if reads:
                rows = [[*text, *[0] * gap] for text, gap in zip(texts, gaps, strict=True)]
                mask = [[1] * len(text) + [0] * gap for text, gap in zip(texts, gaps, strict=True)]
            else:
                rows = [[0] * gap + list(text) for text, gap in zip(texts, gaps, strict=True)]
                mask = [[0] * gap + [1] * len(text) for text, gap in zip(texts, gaps, strict=True)]
            device = model.opened.device
            fed = {"input_ids": torch.tensor(rows, device=device), "attention_mask": torch.tensor(mask, device=device)}
            written = network.generate(**fed, **fixed)[:, 1 if reads else longest :]
            return [list(row) for row in written.tolist()]

        return run

    return [WritingPeer("transformers", write(writing.max_tokens, _width(writing)), lambda count: write(count, 1))]


def _ctranslate2(model: Model, writing: WritingSettings) -> list[WritingPeer]:
    """Its generator or translator in fp32 and in int8, on lists of tokens."""
    if model.opened.device.type != "cpu":
        raise UserError("it is compared on a CPU")
    peers = []
    for precision in ("fp32", "int8"):
        folder = folder_for("ctranslate2") / "model"
        folder.mkdir()
        write_ct2(folder, model.opened, model.task, precision)
        network: Any = open_exported(folder).network

        def write(max_tokens: int, width: int, network: Any = network) -> Write:
            name = "decoding_length" if network.reads else "length"
            # An id that no token has, so that nothing ends early.
            fixed: dict[str, Any] = {"end_token": [len(network.target_words)], "beam_size": width}
            fixed[f"max_{name}"] = max_tokens
            never = [[network.target_words[token]] for token in model.opened.never]
            fixed |= {"suppress_sequences": never} if never else {}

            def run(prompts: Sequence[Prompt]) -> list[list[int]]:
                if network.reads:
                    sources: Any = sources_of(prompts)
                    words = [[network.source_words[token] for token in source] for source in sources]
                    results = network.engine.translate_batch(words, max_input_length=0, **fixed)
                    return [[network.numbers[word] for word in each.hypotheses[0]] for each in results]
                words = [[network.target_words[token] for token in prompt.tokens] for prompt in prompts]
                results = network.engine.generate_batch(words, include_prompt_in_result=False, **fixed)
                return [list(each.sequences_ids[0]) for each in results]

            return run

        peer = WritingPeer(
            f"ctranslate2 {precision}",
            write(writing.max_tokens, _width(writing)),
            partial(write, width=1),
            partial(logprobs_of, network),
            precision == "int8",
        )
        peers.append(peer)
    return peers


WRITERS: dict[str, Callable[[Model, WritingSettings], list[WritingPeer]]] = {
    "transformers": _transformers,
    "ctranslate2": _ctranslate2,
}
