"""How an answer ends, what happens at the edge of the context, and what is told on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.generation.toy import Toy
from weft.errors import UserError
from weft.generation.generate import generate, generate_steps
from weft.generation.sampling import Sampling
from weft.generation.search import Beam
from weft.nn.rows import Ragged

PROMPTS = [[5, 9, 2, 11, 7], [8], [3, 3, 4, 12, 10, 11, 6, 9, 1], [6, 2]]
CONTEXT = 40
KINDS: list[Any] = [Sampling(), Beam(width=3, n=2)]


@pytest.fixture(scope="module")
def network() -> Any:
    """A small GPT with weights large enough to say something."""
    sizes = {"vocabulary": 13, "context": CONTEXT, "weight_scale": 0.3}
    return weft.new("gpt2", size="1x64", settings=sizes).network.eval()


@pytest.mark.parametrize("choice", KINDS, ids=["greedy", "beam"])
def test_every_end_has_its_reason(network: Any, choice: Any) -> None:
    whole = generate(network, PROMPTS, choice=choice, context=CONTEXT)
    for prompt, spoken in zip(PROMPTS, whole, strict=True):  # nothing but the context ends it: no hidden limit
        for each in spoken:
            assert each.finish_reason == "context" and len(prompt) + len(each.tokens) == CONTEXT
    for each in (
        each for spoken in generate(network, PROMPTS, choice=choice, context=CONTEXT, max_tokens=4) for each in spoken
    ):
        assert each.finish_reason == "length" and len(each.tokens) == 4
    ended = generate(network, PROMPTS, choice=choice, context=CONTEXT, ends=[whole[0][0].tokens[3]])
    assert {each.finish_reason for spoken in ended for each in spoken} >= {"end"}
    stopped = generate(network, PROMPTS, choice=choice, context=CONTEXT, stopped=lambda row, said: len(said) == row + 2)
    for row, spoken in enumerate(stopped):
        assert all(each.finish_reason == "stop" and len(each.tokens) == row + 2 for each in spoken)
    assert [
        [each.tokens for each in spoken]
        for spoken in generate(network, PROMPTS, choice=choice, context=CONTEXT, max_tokens=0)
    ] == [[[]]] * 4
    with pytest.raises(UserError, match="prompt 2 has 41 tokens, more than the model's context of 40; --slide"):
        generate(network, [[1], [1] * 41], choice=choice, context=CONTEXT)
    with pytest.raises(UserError, match="prompt 1 is empty, and this model has no token to start from"):
        generate(network, [[]], choice=choice, context=CONTEXT)
    full = generate(network, [[1] * CONTEXT], choice=choice, context=CONTEXT)[0]
    assert all(len(each.tokens) == 1 and each.finish_reason == "context" for each in full), "one more token"


def test_greedy_goes_by_what_the_network_says(network: Any) -> None:
    """Read anew at every step, without a memory; log-probabilities and alternatives are the network's own."""
    spoken = generate(network, PROMPTS, choice=Sampling(), context=CONTEXT, max_tokens=12, alternatives=3)
    for prompt, (each,) in zip(PROMPTS, spoken, strict=True):
        assert each.logprobs is not None and each.alternatives is not None
        text = list(prompt)
        for token, logprob, beside in zip(each.tokens, each.logprobs, each.alternatives, strict=True):
            with torch.inference_mode():
                logs = network.start(Ragged.of([text]))[0].log_softmax(-1)[0]
            assert token == int(logs.argmax()) == beside[0][0]
            assert logprob == pytest.approx(float(logs[token]), abs=3e-5)
            values, tokens = logs.topk(3)
            assert [other for other, _ in beside] == tokens.tolist()
            assert [value for _, value in beside] == pytest.approx(values.tolist(), abs=3e-5)
            text.append(token)
        assert each.logprob == pytest.approx(sum(each.logprobs))


@pytest.mark.parametrize("choice", [*KINDS, Sampling(temperature=0.8, n=2)], ids=["greedy", "beam", "drawn"])
def test_a_window_slides(network: Any, choice: Any) -> None:
    """Past the context the model reads the last part anew; each row at its own time, its neighbors do not matter."""
    prompts = [*PROMPTS, [5, 1, 7] * 30]
    options: dict[str, Any] = {"choice": choice, "context": CONTEXT, "max_tokens": 70, "slide": True}
    seeds = [3, 4, 5, 6, 7]
    together = generate(network, prompts, seeds=seeds, **options)
    for prompt, seed, spoken in zip(prompts, seeds, together, strict=True):
        alone = generate(network, [prompt], seeds=[seed], **options)[0]
        assert [each.tokens for each in alone] == [each.tokens for each in spoken]
        for each in spoken:
            assert len(each.tokens) == 70 and each.finish_reason == "length" and each.windows >= 3
    if not isinstance(choice, Sampling) or not choice.greedy:
        return
    for prompt, (each,) in zip(prompts, together, strict=True):  # by hand: the window of every token
        text, begin = list(prompt), max(0, len(prompt) - CONTEXT)
        for token in each.tokens:
            if len(text) - begin > CONTEXT:
                begin = len(text) - CONTEXT // 2
            with torch.inference_mode():
                assert token == int(network.start(Ragged.of([text[begin:]]))[0].argmax())
            text.append(token)
    with pytest.raises(UserError, match="no length limit"):
        generate(network, PROMPTS, choice=choice, context=CONTEXT, slide=True)
    with pytest.raises(UserError, match="a window slides over one text"):
        generate(Toy(5, 0), [[0]], choice=choice, context=9, slide=True, sources=[[1]], max_tokens=2)


def test_steps_are_told_as_they_come() -> None:
    toy = Toy(9, 1)
    steps = generate_steps(toy, [[0], [3], [4]], choice=Sampling(), context=None, max_tokens=[2, 1, 4])
    told: list[Any] = []
    while True:
        try:
            told.append(next(steps))
            assert not torch.is_inference_mode_enabled(), "whoever listens is left as it was"
        except StopIteration as last:
            answers = last.value
            break
    assert [[row for row, _ in went] for went in told] == [[0, 1, 2], [0, 2], [2], [2]]
    for row in range(3):
        assert [token for went in told for which, token in went if which == row] == answers[row][0].tokens
    counts: list[int] = []
    generate(toy, [[0], [3]], choice=Beam(), context=None, max_tokens=3, on_progress=counts.append)
    assert counts == [2, 2, 2]


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"max_tokens": -1}, "max_tokens must be 0 or more, not -1"),
        ({"max_tokens": [0, 2], "prompts": [[0], [0]]}, "max_tokens is 0 for some prompts"),
        ({"max_tokens": 2, "alternatives": -1}, "logprobs must be 0 or more, not -1"),
        ({"max_tokens": 2, "seeds": [-1], "choice": Sampling(top_k=3)}, "a seed must be between 0 and"),
    ],
)
def test_wrong_numbers_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        generate(Toy(5, 0), **{"prompts": [[0]], "choice": Sampling(), "context": None, **options})
