"""Token for token and score for score as transformers' generate: greedy and beam, on random folders of every family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch

from tests.parity.test_heads import peer_of
from tests.table import CASES, PEERED
from tests.table import SPEAKERS as ALL
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder
from weft.generation.generate import generate
from weft.generation.sampling import Sampling
from weft.generation.search import Beam

PROMPTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1], [6, 2]]
CONTEXT, MOST = 40, 10


@dataclass(frozen=True)
class Pair:
    """A peer and ours with equal weights, large enough to say something."""

    peer: Any
    network: Any
    begin: int | None  # an encoder-decoder: what it begins to write from
    end: int = -1

    def expected(self, prompt: list[int], **options: Any) -> list[tuple[list[int], float]]:
        """What transformers says: the tokens and the score of each answer."""
        more = {} if self.begin is None else {"decoder_start_token_id": self.begin}
        found = self.peer.generate(
            torch.tensor([prompt]), max_new_tokens=MOST, do_sample=False, eos_token_id=self.end, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True, **more, **options,
        )  # fmt: skip
        rows = found.sequences[:, len(prompt) if self.begin is None else 1 :].tolist()
        rows = [row[: row.index(self.end) + 1] if self.end in row else row for row in rows]
        scores = found.get("sequences_scores")
        return list(zip(rows, [0.0] * len(rows) if scores is None else scores.tolist(), strict=True))

    def said(self, prompts: list[list[int]], choice: Sampling | Beam, **options: Any) -> Any:
        reads = {} if self.begin is None else {"sources": prompts}
        starts = prompts if self.begin is None else [[self.begin]] * len(prompts)
        options = {"context": CONTEXT, "max_tokens": MOST, "ends": [self.end], **reads, **options}
        return generate(self.network, starts, choice=choice, **options)


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 60, "d_model": 48, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 3}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))


def marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
             (("layers", 2), ("attention_heads", 3), ("ffn_dim", 96))}  # fmt: skip
    ids = {"decoder_start_token_id": 59, "pad_token_id": 59, "eos_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=60, d_model=48, max_position_embeddings=CONTEXT, **sides, **ids)
    return MarianMTModel(config)


READERS: dict[str, Callable[[], Any]] = {"t5": t5, "marian": marian}
# XLNet's own generation reads a prompt both ways, and so cannot keep what it has read: see parity/test_xlnet.py. That
# of XLM appends a mask to the text and asks what stands there, also where the model looks back only.
SPEAKERS = [name for name in ALL if name in PEERED and FAMILIES[name].one_way and name != "xlm-clm"]
NAMES = [*SPEAKERS, *READERS]


def lengths(pair: Pair) -> int:
    """How many different lengths the answers have that end by themselves."""
    found = [each for spoken in pair.said(PROMPTS, Beam(width=5, n=5)) for each in spoken]
    return len({len(each.tokens) for each in found if each.finish_reason == "end"})


@pytest.fixture(scope="module", params=NAMES)
def pair(request: Any, tmp_path_factory: Any) -> Pair:
    folder = tmp_path_factory.mktemp("peer")
    if request.param in READERS:
        torch.manual_seed(4)
        peer = READERS[request.param]().double().eval()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():
                if parameter.dim() > 1 and "embed_positions" not in name:  # sinusoids stay what they are
                    parameter.normal_(0.0, 0.3)
    else:
        case = CASES[request.param]
        architecture = next(name for name, heads in case.heads.items() if heads == ("words",))
        peer = peer_of(case, architecture, "usual", 0.3, torch.float64)
    peer.save_pretrained(folder)
    network = open_folder(Path(folder)).network.double().eval()
    pair = Pair(peer, network, peer.config.decoder_start_token_id if request.param in READERS else None)
    # The end is a token that the model likes to say, but not at once: answers of many lengths come up.
    free = pair.said(PROMPTS, Beam(width=5, n=5))
    liked = Counter(token for spoken in free for each in spoken for token in each.tokens[2:6])
    pair = max((replace(pair, end=end) for end, _ in liked.most_common(8)), key=lengths)
    assert lengths(pair) > 2
    return pair


def test_greedy_equals_generate(pair: Pair) -> None:
    for prompt, spoken in zip(PROMPTS, pair.said(PROMPTS, Sampling()), strict=True):
        assert [spoken[0].tokens] == [tokens for tokens, _ in pair.expected(prompt)]
        assert spoken[0].finish_reason == ("end" if spoken[0].tokens[-1] == pair.end else "length")


@pytest.mark.parametrize(
    "width, n, penalty", [(2, 1, 1.0), (4, 3, -0.5), (4, 3, 0.0), (4, 3, 1.0), (5, 5, 0.6), (5, 5, 2.0)]
)
def test_beam_equals_generate(pair: Pair, width: int, n: int, penalty: float) -> None:
    found = pair.said(PROMPTS, Beam(width=width, n=n, length_penalty=penalty))
    for prompt, spoken in zip(PROMPTS, found, strict=True):
        expected = pair.expected(
            prompt, num_beams=width, num_return_sequences=n, length_penalty=penalty, early_stopping="never"
        )
        assert [each.tokens for each in spoken] == [tokens for tokens, _ in expected]
        assert [each.score for each in spoken] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("pair", SPEAKERS, indirect=True)  # the draws are made from scores alone
def test_sampled_text_has_the_peers_distribution(pair: Pair) -> None:
    """Two tokens drawn by us and by transformers' generate, as one two-sample chi-square test."""
    many, options = 1500, {"temperature": 0.6, "top_k": 4}
    ours = pair.said([[5, 9, 2]], Sampling(**options, n=many), max_tokens=2, ends=[])[0]
    torch.manual_seed(5)
    theirs = pair.peer.generate(
        torch.tensor([[5, 9, 2]] * many), max_new_tokens=2, do_sample=True, pad_token_id=0, top_p=1.0, **options
    )
    counts: dict[tuple[int, ...], list[int]] = {}
    for side, rows in enumerate(([spoken.tokens for spoken in ours], theirs[:, 3:].tolist())):
        for row in rows:
            counts.setdefault(tuple(row), [0, 0])[side] += 1
    common = [pair for pair in counts.values() if sum(pair) >= 10]
    assert len(common) > 3, "one text only: equality would prove nothing"
    # What is drawn hangs on the last digits of the scores, so any sample may come up on another processor.
    assert scipy.stats.chi2_contingency(list(zip(*common, strict=True))).pvalue > 1e-6
