"""Words out: token for token as transformers' generate when greedy, in distribution when sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch
import transformers

from tests.parity.test_heads import peer_of
from tests.table import CASES, SPEAKERS
from weft.checkpoint.folder import open_folder
from weft.errors import UserError
from weft.generation.sampling import Sampling, choose, likely
from weft.generation.search import speak

PROMPTS = [[5, 9, 2, 31, 7], [8], [3, 3, 4, 12, 30, 11, 6, 9, 1], [6, 2]]
CONTEXT = 40


@pytest.fixture(scope="module", params=SPEAKERS)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """A peer and ours with equal weights, large enough to say something."""
    case = CASES[request.param]
    architecture = next(name for name, heads in case.heads.items() if heads == ("words",))
    peer = peer_of(case, architecture, "usual", 0.3, torch.float64)
    folder = tmp_path_factory.mktemp("peer")
    peer.save_pretrained(folder)
    return peer, open_folder(Path(folder)).network


def test_greedy_equals_generate(pair: tuple[Any, Any]) -> None:
    peer, network = pair
    found = speak(network, PROMPTS, sampling=Sampling(), seeds=[0] * 4, context=CONTEXT, most=20)
    for prompt, spoken in zip(PROMPTS, found, strict=True):
        expected = peer.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert spoken.tokens == expected[0, len(prompt) :].tolist()
        assert spoken.finish_reason == "length"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 7},
        {"top_p": 0.6},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.8},
    ],
)
def test_sampling_has_the_peers_distribution(options: dict[str, Any]) -> None:
    """What may be drawn is exactly what transformers would draw from; and draws fall as these chances say."""
    torch.manual_seed(0)
    scores = torch.randn(1, 60) * 2
    expected = scores.clone()
    warpers = {
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
    }
    for name, value in options.items():
        expected = warpers[name](value)(torch.zeros(1, 1).long(), expected)
    sampling = Sampling(**{"temperature": 1.0, **options})
    chances = expected.softmax(-1)[0]
    assert torch.allclose(likely(scores, sampling).float().softmax(-1)[0], chances, atol=1e-6)
    many = 4000
    draws = choose(scores.expand(many, -1), sampling, [torch.Generator().manual_seed(seed) for seed in range(many)])
    counts = torch.bincount(draws, minlength=60)
    assert counts[chances == 0].sum() == 0
    kept = chances * many >= 5  # the chi-square test wants five expected in each bin; the rest make one bin
    observed = [*counts[kept].tolist(), int(counts[~kept].sum())]
    wanted = [*(chances[kept].double() * many).tolist(), float(chances[~kept].double().sum() * many)]
    if wanted[-1] < 1e-9:
        observed, wanted = observed[:-1], wanted[:-1]
    scale = sum(observed) / sum(wanted)
    assert scipy.stats.chisquare(observed, [value * scale for value in wanted]).pvalue > 1e-3


def test_sampled_text_has_the_peers_distribution(pair: tuple[Any, Any]) -> None:
    """Two tokens drawn by us and by transformers' generate, as one two-sample chi-square test."""
    peer, network = pair
    many, options = 1500, {"temperature": 0.6, "top_k": 4}
    prompts = [[5, 9, 2]] * many
    ours = speak(network, prompts, sampling=Sampling(**options), seeds=range(many), context=CONTEXT, most=2)
    torch.manual_seed(5)
    theirs = peer.generate(
        torch.tensor(prompts), max_new_tokens=2, do_sample=True, pad_token_id=0, top_p=1.0, **options
    )
    counts: dict[tuple[int, ...], list[int]] = {}
    for side, rows in enumerate(([spoken.tokens for spoken in ours], theirs[:, 3:].tolist())):
        for row in rows:
            counts.setdefault(tuple(row), [0, 0])[side] += 1
    common = [pair for pair in counts.values() if sum(pair) >= 10]
    assert len(common) > 3, "one text only: equality would prove nothing"
    assert scipy.stats.chi2_contingency(list(zip(*common, strict=True))).pvalue > 1e-3


def test_batch_equals_single_and_seeds_belong_to_rows(pair: tuple[Any, Any]) -> None:
    _, network = pair
    sampling = Sampling(temperature=0.9, top_p=0.95)
    seeds = [11, 12, 13, 14]
    together = speak(network, PROMPTS, sampling=sampling, seeds=seeds, context=CONTEXT, most=15)
    again = speak(network, PROMPTS[::-1], sampling=sampling, seeds=seeds[::-1], context=CONTEXT, most=15)
    assert [spoken.tokens for spoken in together] == [spoken.tokens for spoken in again[::-1]]
    for prompt, seed, spoken in zip(PROMPTS, seeds, together, strict=True):
        alone = speak(network, [prompt], sampling=sampling, seeds=[seed], context=CONTEXT, most=15)[0]
        assert alone == spoken
    other = speak(network, PROMPTS, sampling=sampling, seeds=[1, 2, 3, 4], context=CONTEXT, most=15)
    assert [spoken.tokens for spoken in other] != [spoken.tokens for spoken in together]


def test_every_end_has_its_reason(pair: tuple[Any, Any]) -> None:
    _, network = pair
    greedy: dict[str, Any] = {"sampling": Sampling(), "seeds": [0] * 4, "context": CONTEXT}
    whole = speak(network, PROMPTS, **greedy)
    for prompt, spoken in zip(PROMPTS, whole, strict=True):  # nothing but the context ends it: no hidden limit
        assert spoken.finish_reason == "context" and len(prompt) + len(spoken.tokens) == CONTEXT
    end = whole[0].tokens[3]
    ended = speak(network, PROMPTS, **greedy, ends=[end])
    for spoken, full in zip(ended, whole, strict=True):
        stop = full.tokens.index(end) + 1 if end in full.tokens else len(full.tokens)
        assert spoken.tokens == full.tokens[:stop]
        assert spoken.finish_reason == ("end" if end in full.tokens else "context")
    stopped = speak(network, PROMPTS, **greedy, stopped=lambda row, said: len(said) == 2)
    assert all(spoken.finish_reason == "stop" and len(spoken.tokens) == 2 for spoken in stopped)
    assert [spoken.tokens for spoken in speak(network, PROMPTS, **greedy, most=0)] == [[]] * 4
    with pytest.raises(UserError, match="prompt 2 has 41 tokens, more than the model's context of 40"):
        speak(network, [[1], [1] * 41], sampling=Sampling(), seeds=[0, 0], context=CONTEXT)
    with pytest.raises(UserError, match="prompt 1 is empty"):
        speak(network, [[]], sampling=Sampling(), seeds=[0], context=CONTEXT)


def test_a_prompt_that_fills_the_context_says_one_more_token(pair: tuple[Any, Any]) -> None:
    _, network = pair
    spoken = speak(network, [[1] * CONTEXT], sampling=Sampling(), seeds=[0], context=CONTEXT)[0]
    assert len(spoken.tokens) == 1 and spoken.finish_reason == "context"


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "at most 1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        Sampling(**options)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-9])
def test_near_zero_the_best_token_is_taken(temperature: float) -> None:
    scores = torch.tensor([[5.0, 1.0, -3.0, 2.0]])
    for top_p in (None, 0.9):
        sampling = Sampling(temperature=temperature, top_p=top_p)
        assert choose(scores, sampling, [torch.Generator().manual_seed(0)]).tolist() == [0]
