"""Decoding in slots gives what the plain search gives: every family that has them, every choice, on every device."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.contracts.test_beam import KINDS, drawn, sources_of
from tests.graphs import CPU, DEVICES, Recording, graphs_anywhere  # noqa: F401
from weft.errors import NotFinite
from weft.generation import sampling
from weft.generation import slots as in_slots_module
from weft.generation.generate import generate, generate_steps, runner_of
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam, Completion, Request
from weft.generation.slots import NotCaptured, SampleSlots, Slots

VOCABULARY, END = 23, 1
PROMPTS = [[5, 9, 2, 11, 7], [8], [3, 3, 4, 12, 10, 11, 6, 9, 2], [6, 2], [4, 4, 5], [7, 2]]
IN_SLOTS = [kind for kind in KINDS if drawn(kind, VOCABULARY, 0).in_slots is not None]
CHOICES: dict[str, Any] = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=0.9, top_p=0.95, n=3),
    "beam": Beam(width=3, n=2),
    "wide": Beam(width=5, n=5, length_penalty=0.0),
}
RULES = {
    "free": Rules(),
    "ruled": Rules(repetition_penalty=1.3, banned=((3,), (8,)), min_tokens=3, forced=(4, 5)),
}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows than there are prompts, so that prompts wait; and few steps at a time."""
    monkeypatch.setattr(in_slots_module, "MOST_ROWS", 12)
    monkeypatch.setattr(in_slots_module, "BLOCK", 3)


def both(network: Any, prompts: list[list[int]], **options: Any) -> list[list[list[Completion]]]:
    steps = {"context": 40, "max_tokens": [9, 17, 4, 12, 25, 1][: len(prompts)], "ends": [END], **options}
    return [generate(network, prompts, slots=slots, **steps) for slots in (False, True)]


def check_same(plain: list[list[Completion]], in_slots: list[list[Completion]]) -> None:
    for ours, theirs in zip(in_slots, plain, strict=True):
        assert [(each.tokens, each.finish_reason) for each in ours] == [
            (each.tokens, each.finish_reason) for each in theirs
        ]
        for one, other in zip(ours, theirs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", IN_SLOTS)
def test_the_same_as_the_plain_search(kind: str, choice: str, rules: str, device: torch.device) -> None:
    """In double precision, so that nothing hangs on how a sum was rounded; prompts wait for slots and are let in."""
    network = drawn(kind, VOCABULARY, 3).to(device)
    prompts = PROMPTS if not sources_of(kind, PROMPTS) else [prompt[:2] for prompt in PROMPTS]
    options: dict[str, Any] = {"seeds": [7, 8, 9, 10, 11, 12], "rules": RULES[rules], "device": device}
    sources = sources_of(kind, [[2, *prompt] for prompt in PROMPTS])
    try:
        plain, in_slots = both(network, prompts, choice=CHOICES[choice], **sources, **options)
    finally:
        network.to("cpu")
    check_same(plain, in_slots)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", ["gpt2", "lstm", "t5 usual"])
def test_scores_stay_in_half_precision(kind: str, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made full where tokens are chosen, so the answers are those of scores in float32."""
    network, kinds = copy.deepcopy(drawn(kind, VOCABULARY, 3)).to(torch.bfloat16), list[torch.dtype]()
    read = Slots.read
    monkeypatch.setattr(Slots, "read", lambda slots, tokens: kinds.append(slots.scores.dtype) or read(slots, tokens))
    options: dict[str, Any] = {"context": 40, "max_tokens": 12, "ends": [END], "seeds": [7, 8, 9, 10, 11, 12]}
    options |= sources_of(kind, [[2, *prompt] for prompt in PROMPTS])
    options |= {"choice": CHOICES[choice], "rules": RULES["ruled"], "slots": True}
    narrow = generate(network, [prompt[:1] for prompt in PROMPTS], **options)
    assert set(kinds) == {torch.bfloat16}
    monkeypatch.setattr(in_slots_module, "narrow_scores", nullcontext)
    check_same(generate(network, [prompt[:1] for prompt in PROMPTS], **options), narrow)
    assert set(kinds) == {torch.bfloat16, torch.float32}


@pytest.fixture
def played(device: torch.device, graphs_anywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Steps are captured and played back, as on a GPU."""

    def launch(slots: Slots, steps: int) -> None:
        slots.graph = slots.graph or slots._captured()
        for _ in range(steps):
            slots.graph.replay()

    monkeypatch.setattr(Slots, "launch", launch)
    monkeypatch.setattr(Recording, "strict", True)
    monkeypatch.setattr(sampling, "best_token", lambda scores: scores.argmax(-1))  # not by NumPy


@pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu")])
@pytest.mark.parametrize("choice", ["greedy", "drawn", "beam"])
@pytest.mark.parametrize("kind", IN_SLOTS)
def test_captured_steps_are_plain_steps(
    kind: str, choice: str, device: torch.device, played: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Trying a step out leaves no trace, and nothing in it hangs on what stood there when it was captured."""
    network, prompts = drawn(kind, VOCABULARY, 3), [prompt[:2] for prompt in PROMPTS]
    rules = RULES["ruled" if choice == "drawn" else "free"]
    sources = sources_of(kind, [[2, *prompt] for prompt in PROMPTS])
    check_same(*both(network, prompts, choice=CHOICES[choice], rules=rules, seeds=[7, 8, 9, 10, 11, 12], **sources))
    assert "cannot be captured" not in caplog.text


@pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu")])
@pytest.mark.parametrize("choice", ["drawn", "beam"])
def test_steps_with_many_ends_are_captured(
    choice: str, device: torch.device, played: None, caplog: pytest.LogCaptureFixture
) -> None:
    network, ends = drawn("gpt2", 80, 4), list(range(0, 80, 2))
    check_same(*both(network, PROMPTS, choice=CHOICES[choice], ends=ends, seeds=[7, 8, 9, 10, 11, 12]))
    assert "cannot be captured" not in caplog.text


@pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu")])
def test_what_cannot_be_captured_is_left_to_the_plain_search(
    device: torch.device, played: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network, step = drawn("gpt2", VOCABULARY, 4), SampleSlots.step

    def reads(slots: SampleSlots) -> None:
        step(slots)
        slots.counts[0].item()

    monkeypatch.setattr(SampleSlots, "step", reads)
    captured, tried = Slots._captured, list[Slots]()
    monkeypatch.setattr(Slots, "_captured", lambda slots: tried.append(slots) or captured(slots))
    monkeypatch.setattr(in_slots_module, "UNCAPTURED", weakref.WeakKeyDictionary())
    for choice in ("drawn", "drawn", "beam"):  # a beam does not read
        check_same(*both(network, PROMPTS, choice=CHOICES[choice], seeds=[7, 8, 9, 10, 11, 12]))
    assert caplog.text.count("steps of generation cannot be captured") == 1
    assert len(tried) == 2 and len(in_slots_module.UNCAPTURED[network]) == 1
    monkeypatch.setattr(in_slots_module, "MOST_FAILED", 1)
    request = Request(decoder=network, prompts=PROMPTS, choice=CHOICES["beam"], context=40, max_tokens=5)
    runner: Any = runner_of(request)
    assert not runner.may_capture


def test_no_network_is_kept_alive_by_a_failed_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(slots: Slots, steps: int) -> None:
        raise NotCaptured("as it is")

    monkeypatch.setattr(Slots, "launch", fails)
    network = copy.deepcopy(drawn("gpt2", VOCABULARY, 3))
    generate(network, [[5, 9]], choice=Sampling(), context=40, max_tokens=4, slots=True)
    assert in_slots_module.UNCAPTURED[network]
    alive = weakref.ref(network)
    del network
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["gpt2", "lstm"])
def test_beams_in_which_much_ends(kind: str, seed: int) -> None:
    """What ends counts among the best of its step alone; and one end token more asks for more candidates."""
    network = drawn(kind, VOCABULARY, seed)
    for ends in (range(0, VOCABULARY, 2), range(3)):
        for choice in (Beam(width=2), Beam(width=4, n=4), Beam(width=3, n=3, length_penalty=-0.5)):
            check_same(*both(network, PROMPTS, choice=choice, ends=list(ends)))


@pytest.mark.parametrize("choice", CHOICES)
def test_a_prompt_that_fills_the_context_gets_one_token(choice: str) -> None:
    network, full = drawn("gpt2", VOCABULARY, 4), [2 + number % 20 for number in range(40)]
    for prompts in ([full], [full, [5, 9]]):
        plain, in_slots = both(network, prompts, choice=CHOICES[choice], max_tokens=7)
        check_same(plain, in_slots)
        assert [len(each.tokens) for each in in_slots[0]] == [1] * CHOICES[choice].n


def test_prompts_are_read_in_rectangles_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long prompt among short ones: a batch is as wide as its longest."""
    network, sizes = drawn("gpt2", VOCABULARY, 4), list[int]()
    start = type(network).start

    def counted(self: Any, prompt: Any, *inputs: Any, **options: Any) -> Any:
        sizes.append(prompt.rows.count * prompt.rows.longest)
        return start(self, prompt, *inputs, **options)

    monkeypatch.setattr(type(network), "start", counted)
    monkeypatch.setattr(in_slots_module, "READ", 40)
    prompts = [*[[5]] * 30, [6] * 30, *[[7]] * 12]
    assert len(generate(network, prompts, slots=True, choice=Sampling(), context=40, max_tokens=2)) == 43
    assert max(sizes) <= 40 and len(sizes) == 3


def test_every_kind_of_network_with_a_cache_has_slots() -> None:
    families = {kind.split()[0] for kind in IN_SLOTS}
    assert {"gpt2", "openai-gpt", "xlm-clm", "transformer", "marian", "t5", "lstm", "mlp", "seq2seq"} <= families


def test_details_stop_strings_and_progress() -> None:
    network = drawn("gpt2", VOCABULARY, 4)
    plain, in_slots = both(network, PROMPTS, choice=Sampling(), alternatives=3)
    check_same(plain, in_slots)
    for ours, theirs in zip(in_slots, plain, strict=True):
        assert ours[0].logprobs == pytest.approx(theirs[0].logprobs)
        assert ours[0].alternatives is not None and theirs[0].alternatives is not None
        for one, other in zip(ours[0].alternatives, theirs[0].alternatives, strict=True):
            assert [token for token, _ in one] == [token for token, _ in other]
    check_same(*both(network, PROMPTS, choice=Sampling(), stopped=lambda row, generated: len(generated) == row + 2))
    many = both(network, PROMPTS, choice=Sampling(), alternatives=VOCABULARY + 5)
    assert all(len(ranked) == VOCABULARY for some in many for (each,) in some for ranked in each.alternatives or [[]])
    for choice, count in ((Sampling(), 1), (Sampling(temperature=1.0, n=2), 2)):
        steps = generate_steps(
            network, PROMPTS, slots=True, choice=choice, context=40, max_tokens=5, seeds=[1, 2, 3, 4, 5, 6]
        )
        advance = [pair for some in steps for pair in some]
        assert [sum(row == number for row, _ in advance) for number in range(6)] == [5 * count] * 6


def test_slots_are_used_again_and_keep_no_network_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    network = copy.deepcopy(drawn("gpt2", VOCABULARY, 3))
    kept: list[Any] = []
    for _ in range(2):
        request = Request(decoder=network, prompts=[[5, 9], [7]], choice=Sampling(), context=40, max_tokens=4)
        runner: Any = runner_of(request)
        with torch.inference_mode():
            assert list(runner.run())
        kept.append(runner.slots)
        runner.slots.device = torch.device("cuda")  # on the CPU nothing is kept
        runner._keep()
        runner.slots.device = torch.device("cpu")
    assert kept[0] is kept[1] and len(in_slots_module.SLOTS[network]) == 1
    alive = weakref.ref(network)
    del network, request, runner, kept
    gc.collect()
    assert alive() is None


def test_what_slots_cannot_do_is_left_to_the_plain_search() -> None:
    network = drawn("gpt2", VOCABULARY, 4)
    asked: dict[str, dict[str, Any]] = {
        "slots": {},
        "no_repeat": {"rules": Rules(no_repeat=2)},
        "choices": {"rules": Rules(choices=((2, 3), (4,))), "ends": [END]},
        "slide": {"slide": True},
        "groups": {"choice": Beam(width=4, groups=2, diversity=0.5)},
        "endless": {"context": 1 << 24, "max_tokens": 1 << 20, "ends": list(range(VOCABULARY))},
    }
    for name, options in asked.items():
        request = Request(
            **{"decoder": network, "prompts": PROMPTS, "context": 40, "max_tokens": 5, "choice": Sampling(), **options}
        )
        assert (runner_of(request) is not None) == (name == "slots"), name
        if name != "slots":
            steps = {"choice": Sampling(), "context": 40, "max_tokens": 5, **options}
            plain, left = (generate(network, PROMPTS, slots=slots, **steps) for slots in (False, True))
            check_same(plain, left)


@pytest.mark.parametrize("choice", CHOICES)
def test_scores_that_are_no_numbers_are_refused(choice: str) -> None:
    network = drawn("gpt2", VOCABULARY, 4)
    with torch.no_grad():
        network.final_norm.weight[3] = torch.nan
    with pytest.raises(NotFinite):
        generate(network, PROMPTS, slots=True, choice=CHOICES[choice], context=40, max_tokens=5)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("choice", ["drawn", "beam"])
def test_a_prompt_is_read_once_for_all_its_samples(slots: bool, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, read, rows = drawn("gpt2", VOCABULARY, 0), list[int](), set[int]()
    start, step = type(network).start, type(network).step

    def counted_start(self: Any, prompt: Any, *inputs: Any, **options: Any) -> Any:
        read.append(len(prompt.tokens))
        return start(self, prompt, *inputs, **options)

    def counted_step(self: Any, tokens: torch.Tensor, state: Any) -> Any:
        rows.add(len(tokens))
        return step(self, tokens, state)

    monkeypatch.setattr(type(network), "start", counted_start)
    monkeypatch.setattr(type(network), "step", counted_step)
    completions = generate(network, PROMPTS[:2], slots=slots, choice=CHOICES[choice], context=40, max_tokens=5)
    assert [len(each) for each in completions] == [CHOICES[choice].n] * 2
    assert sum(read) == sum(map(len, PROMPTS[:2])) and max(rows) == 6  # three samples, or hypotheses, of each
