"""Continuous batching gives what `generate` gives for each prompt alone, whoever comes and goes beside it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.contracts.test_beam import KINDS, drawn, sources_of
from tests.graphs import CUDA, needs_gpu
from tests.table import CASES
from weft.checkpoint.families import FAMILIES, usual_heads
from weft.errors import NotFinite, UserError
from weft.generation import continuous as continuous_module
from weft.generation import live_slots
from weft.generation.continuous import Continuous
from weft.generation.generate import generate
from weft.generation.live_slots import LiveSlots
from weft.generation.pending import PendingText
from weft.generation.sampling import Rules, Sampling
from weft.generation.search import Beam
from weft.generation.slots import NotCaptured, Slots
from weft.nn import row_cache

VOCABULARY, END = 23, 1
ROWS = [kind for kind in KINDS if drawn(kind, VOCABULARY, 0).open_rows is not None]
POSITIONS = ["rotary", "alibi", "sinusoidal", "none"]
CHOICES: list[Any] = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.95, n=3),
    Sampling(temperature=1.2),
    Sampling(top_k=4, min_p=0.05),
    Sampling(typical=0.8, temperature=1.1),
    Beam(width=1, length_penalty=0.5),
    Beam(width=3, n=2),
]
RULES = [
    Rules(),
    Rules(repetition_penalty=1.3, banned=((3,), (8, 9)), min_tokens=3, forced=(4, 5)),
    Rules(no_repeat=2, min_tokens=1),
    Rules(choices=((2, 5, 7), (6,))),
]
Job = tuple[list[int], dict[str, Any], dict[str, Any], int]  # prompt, source, options, seed


@pytest.fixture(autouse=True)
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows of a few tokens move from band to band, and prompts are read in parts."""
    monkeypatch.setattr(row_cache, "ROOM", 4)
    monkeypatch.setattr(continuous_module, "CHUNK", 3)
    monkeypatch.setattr(continuous_module, "READ", 7)


def jobs_of(kind: str, chance: random.Random, count: int, longest: int) -> list[Job]:
    jobs = list[Job]()
    for _ in range(count):
        source = sources_of(kind, [[chance.randrange(2, 11) for _ in range(chance.randint(1, 9))]])
        prompt = [chance.randrange(2, VOCABULARY) for _ in range(chance.randint(1, 2 if source else longest))]
        options = {
            "choice": chance.choice(CHOICES),
            "rules": chance.choice(RULES),
            "alternatives": chance.choice([None, 0, 3]),
            "max_tokens": chance.randint(1, 18),
        }
        if chance.random() < 0.2:
            count_of_row = chance.randint(2, 9)
            options["stopped"] = lambda row, generated, most=count_of_row: len(generated) >= most
        jobs.append((prompt, source, {**options, "ends": [END], "context": 40}, chance.randrange(1000)))
    return jobs


def admit(continuous: Continuous, job: Job) -> PendingText:
    prompt, source, options, seed = job
    options = {name: value for name, value in options.items() if name != "device"}
    return continuous.admit(prompt, source=source["sources"][0] if source else None, seed=seed, **options)


def check_same(network: Any, job: Job, text: PendingText, digits: float = 1e-6) -> None:
    prompt, source, options, seed = job
    plain = generate(network, [prompt], seeds=[seed], **options, **source)[0]
    assert text.error is None and text.completions is not None
    ours, theirs = ([(each.tokens, each.finish_reason) for each in some] for some in (text.completions, plain))
    assert ours == theirs
    for one, other in zip(text.completions, plain, strict=True):
        assert [one.logprob, one.score] == pytest.approx([other.logprob, other.score], abs=digits)
        assert (one.logprobs is None) == (other.logprobs is None)
        assert one.logprobs is None or one.logprobs == pytest.approx(other.logprobs, abs=digits)
        assert (one.alternatives is None) == (other.alternatives is None)
        for some, others in zip(one.alternatives or [], other.alternatives or [], strict=True):
            assert [token for token, _ in some] == [token for token, _ in others]


@pytest.fixture
def slots_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in slots would not show, because the texts go on in rows."""
    step = LiveSlots.step

    def checked(self: LiveSlots) -> Any:
        changed, failed = step(self)
        assert not failed, failed[0][1]
        return changed, failed

    monkeypatch.setattr(LiveSlots, "step", checked)


def run(continuous: Continuous, jobs: list[Job], chance: random.Random) -> list[PendingText]:
    """Jobs that come at random steps."""
    pending, left = list[PendingText](), list(jobs)
    while left or continuous.busy:
        while left and chance.random() < 0.5:
            pending.append(admit(continuous, left.pop(0)))
        continuous.step()
    return pending


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_alone(kind: str) -> None:
    """Every family, in double precision, so that nothing hangs on how a sum was rounded."""
    network, chance = drawn(kind, VOCABULARY, 3), random.Random(kind)
    jobs = jobs_of(kind, chance, 12, 14)
    continuous = Continuous(network, rows=9)
    pending = run(continuous, jobs, chance)
    assert any(text.in_rows for text in pending) == (kind in ROWS)
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)
    assert continuous.rows_held == continuous.places_held == 0


@pytest.mark.parametrize("positions", POSITIONS)
def test_all_kinds_of_positions(positions: str) -> None:
    family = FAMILIES["gpt2"]
    config = CASES["gpt2"].config(vocabulary=VOCABULARY, positions=positions, width=48, heads=3)
    network, chance = family.network(config, usual_heads(family, config)).double().eval(), random.Random(positions)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.1, 0.4)
    jobs = jobs_of("gpt2", chance, 12, 20)
    for job, text in zip(jobs, run(Continuous(network), jobs, chance), strict=True):
        check_same(network, job, text)


def test_the_same_in_single_precision_where_steps_are_fused() -> None:
    network, chance = drawn("gpt2", VOCABULARY, 5), random.Random(5)
    try:
        network.float()
        jobs = jobs_of("gpt2", chance, 16, 20)
        for job, text in zip(jobs, run(Continuous(network), jobs, chance), strict=True):
            check_same(network, job, text, digits=1e-3)
    finally:
        network.double()


def test_what_a_network_has_of_open_rows() -> None:
    """All but those whose states move a window, or hold what they read of a source in layers of their own."""
    families = {kind.split()[0] for kind in KINDS} - {kind.split()[0] for kind in ROWS}
    assert families == {"xlnet", "transformer-xl", "conv-seq2seq"}


@pytest.mark.parametrize("kind", ["gpt2", "lstm", "t5 usual", "xlnet"])
def test_who_is_cancelled_leaves_and_the_others_go_on(kind: str) -> None:
    network, chance = drawn(kind, VOCABULARY, 3), random.Random(4)
    jobs = jobs_of(kind, chance, 14, 14)
    continuous, pending, left = Continuous(network, rows=8), list[PendingText](), list(jobs)
    while left or continuous.busy:
        if left:
            pending.append(admit(continuous, left.pop(0)))
        continuous.step()
        if chance.random() < 0.5:
            gone = chance.choice(pending)
            continuous.cancel(gone)
            assert gone.over and gone not in continuous.held and gone not in continuous.waiting
            rows = [row.text for row in (*continuous.reading, *continuous.going)]
            assert gone not in rows
    assert sum(text.cancelled for text in pending) > 1 and continuous.places_held == 0
    for job, text in zip(jobs, pending, strict=True):
        if not text.cancelled:
            check_same(network, job, text)


@pytest.mark.parametrize("kind", ["gpt2", "lstm"])
def test_a_prompt_is_read_once_for_all_its_samples_and_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = drawn(kind, VOCABULARY, 0)
    continuous, passes = Continuous(network), list[int]()
    read = type(continuous._opened()).read

    def counted(self: Any, reading: Any) -> Any:
        passes.append(sum(len(each.tokens) for each in reading))
        return read(self, reading)

    monkeypatch.setattr(type(continuous._opened()), "read", counted)
    options: dict[str, Any] = {"context": 60, "max_tokens": 12}
    first = continuous.admit([5, 6, 7], choice=Sampling(), **options)
    continuous.step()
    long = continuous.admit(list(range(2, 22)), choice=Sampling(temperature=1.0, n=3), **options)
    while continuous.busy:
        continuous.step()
    assert first.completions and long.completions and len(long.completions) == 3
    # Both prompts, the second one once, and of each sample all tokens but the last.
    assert sum(passes) == 3 + 20 + 4 * 11
    assert kind != "gpt2" or max(passes) <= 1 + continuous_module.CHUNK + 3


def test_rows_and_places_are_bounded_and_prompts_enter_in_order() -> None:
    network, chance = drawn("gpt2", VOCABULARY, 0), random.Random(1)
    continuous = Continuous(network, rows=5, places=120)
    prompts = [[chance.randrange(2, VOCABULARY) for _ in range(chance.randint(1, 20))] for _ in range(30)]
    pending = [continuous.admit(p, choice=Sampling(), context=40, max_tokens=8) for p in prompts]
    most = 0
    while continuous.busy:
        continuous.step()
        assert continuous.rows_held <= 5 and sum(continuous.needed.values()) <= 120
        most = max(most, continuous.places_held)
    assert 0 < most <= 2 * 120
    entered = [text.entered for text in pending]
    assert entered == sorted(entered, key=lambda when: when or 0.0)
    with pytest.raises(UserError, match="places of the cache"):
        continuous.admit([2], choice=Sampling(temperature=1.0, n=5), context=40, max_tokens=30)
    with pytest.raises(UserError, match="texts at a time"):
        continuous.admit([2], choice=Sampling(temperature=1.0, n=6), context=40, max_tokens=1)


def test_a_prompt_that_fails_does_not_harm_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network refuses a token in one prompt; scores of another row are no numbers."""
    for kind in ("gpt2", "lstm"):
        network = drawn(kind, VOCABULARY, 0)
        continuous = Continuous(network)
        opened = continuous._opened()
        read, broken = opened.read, list[int]()

        def refusing(reading: Any, read: Any = read, broken: list[int] = broken) -> Any:
            if any(21 in each.tokens for each in reading if len(each.tokens) > 1):
                raise UserError("a context that never occurs")
            scores = read(reading)
            rows = [each.row for each in reading if each.asks]
            for place, row in enumerate(rows):
                if row in broken:
                    scores[place] = torch.nan
            return scores

        monkeypatch.setattr(opened, "read", refusing)
        options: dict[str, Any] = {
            "choice": Sampling(),
            "context": 40,
            "max_tokens": 9,
            "rules": Rules(banned=((21,),)),
        }
        prompts = [[4, 5], [21, 6], [7], [9, 10, 11]]
        pending = [continuous.admit(prompt, **options) for prompt in prompts]
        for _ in range(3):
            continuous.step()
        broken.append(continuous.held[pending[2]][0].number)
        while continuous.busy:
            continuous.step()
        assert isinstance(pending[1].error, UserError) and isinstance(pending[2].error, NotFinite)
        monkeypatch.undo()
        for number in (0, 3):
            check_same(network, (prompts[number], {}, options, 0), pending[number])
        assert continuous.rows_held == continuous.places_held == 0


def test_beams_with_equal_options_are_searched_together() -> None:
    network = drawn("t5 usual", VOCABULARY, 3)
    continuous, options = Continuous(network), {"choice": Beam(width=3), "context": 40, "ends": [END]}
    jobs: list[Job] = [([0], {"sources": [[n + 2, 5, 3]]}, {**options, "max_tokens": 4 + n}, 0) for n in range(5)]
    jobs.append(([0], {"sources": [[4, 4]]}, {**options, "choice": Beam(width=2), "max_tokens": 5}, 0))
    pending = [admit(continuous, job) for job in jobs]
    continuous.step()
    assert sorted(len(search.pending) for search in continuous.plain) == [1, 5]
    while continuous.busy:
        continuous.step()
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)


def test_plain_searches_take_turns_and_tell_their_tokens() -> None:
    network = drawn("xlnet", VOCABULARY, 3)
    continuous = Continuous(network)
    pending = [continuous.admit([n + 2, 3], choice=Sampling(), context=40, max_tokens=10) for n in range(3)]
    for _ in range(9):
        continuous.step()
    assert [len(text.tokens[0]) for text in pending] == [3, 3, 3]
    while continuous.busy:
        continuous.step()
    for text in pending:
        assert text.completions is not None and text.tokens == [text.completions[0].tokens]


def test_a_step_calls_the_network_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes it fast: sixteen prompts take as many passes as the longest of them."""
    network = drawn("gpt2", VOCABULARY, 0)
    calls, further = list[int](), type(network).further

    def counted(self: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        calls.append(len(tokens))
        return further(self, tokens, cache)

    monkeypatch.setattr(type(network), "further", counted)
    monkeypatch.setattr(continuous_module, "READ", 512)
    continuous = Continuous(network)
    for number in range(16):
        continuous.admit([number + 2, 5], choice=Sampling(), context=40, max_tokens=20)
    while continuous.busy:
        continuous.step()
    assert len(calls) == 20 and calls[1:] == [16] * 19


def test_nothing_is_generated_where_nothing_is_asked_for() -> None:
    continuous = Continuous(drawn("gpt2", VOCABULARY, 0))
    text = continuous.admit([3], choice=Sampling(), context=40, max_tokens=0)
    assert text.completions is not None and text.completions[0].finish_reason == "length"
    assert not continuous.busy and continuous.step() == []


@pytest.mark.parametrize("kind", KINDS)
def test_slots_give_the_same(kind: str, slots_hold: None) -> None:
    """The captured steps of a GPU, here uncaptured; what they cannot do goes on in rows or by the plain search."""
    network, chance = drawn(kind, VOCABULARY, 3), random.Random(kind)
    jobs = jobs_of(kind, chance, 12, 14)
    continuous = Continuous(network, rows=9, slots=True)
    pending = run(continuous, jobs, chance)
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)
    assert not continuous.live.runners and not continuous.live.at and not continuous.busy


def test_texts_with_equal_options_share_slots(slots_hold: None) -> None:
    network = drawn("gpt2", VOCABULARY, 3)
    continuous = Continuous(network, slots=True)
    options: dict[str, Any] = {"choice": Sampling(temperature=0.9), "context": 40, "ends": [END]}
    first = continuous.admit([3, 4], seed=1, max_tokens=12, **options)
    continuous.step()
    assert first.entered is not None and first.completions is None and len(first.tokens[0]) > 0
    others = [continuous.admit([3 + number % 19], seed=number, max_tokens=5, **options) for number in range(40)]
    assert len(continuous.live.runners) == 1 and continuous.generating == 1
    continuous.admit([5], seed=1, max_tokens=5, **{**options, "choice": Sampling()})
    assert len(continuous.live.runners) == 2
    while continuous.busy:
        continuous.step()
    for number, text in enumerate(others):
        assert text.completions is not None and text.tokens == [text.completions[0].tokens]
        plain = generate(network, [[3 + number % 19]], seeds=[number], max_tokens=5, **options)[0]
        assert text.completions[0].tokens == plain[0].tokens
    assert continuous.read == 2 + 41 and continuous.generated == sum(
        len(text.tokens[0]) for text in (first, *others)
    ) + len(generate(network, [[5]], max_tokens=5, **{**options, "choice": Sampling()})[0][0].tokens)


def test_texts_in_slots_can_be_given_up_at_any_time(slots_hold: None) -> None:
    """Before their prompts are read, while they wait for a slot, and while they are written."""
    network, chance = drawn("gpt2", VOCABULARY, 3), random.Random(7)
    options: dict[str, Any] = {"choice": Sampling(), "context": 40, "ends": [END], "max_tokens": 30}
    continuous = Continuous(network, slots=True)
    jobs: list[Job] = [([chance.randrange(2, VOCABULARY)], {}, options, 0) for _ in range(90)]
    pending = list[PendingText]()
    while jobs_left := jobs[len(pending) :]:
        pending.append(admit(continuous, jobs_left[0]))
        if chance.random() < 0.3:
            continuous.step()
        if chance.random() < 0.4:
            continuous.cancel(chance.choice(pending))
    while continuous.busy:
        continuous.step()
    kept = [(job, text) for job, text in zip(jobs, pending, strict=True) if not text.cancelled]
    assert 20 < len(kept) < 80
    for job, text in kept:
        check_same(network, job, text)


def test_a_text_that_was_read_and_then_given_up_takes_no_slot(slots_hold: None) -> None:
    network, options = drawn("gpt2", VOCABULARY, 3), {"choice": Sampling(), "context": 40, "max_tokens": 10}
    continuous = Continuous(network, slots=True)
    pending = [admit(continuous, ([5], {}, options, 0)) for _ in range(40)]
    continuous.step()
    (runner,) = continuous.live.runners
    assert runner.at == list(range(32)) and not runner.waiting  # the others have been read, and wait for a slot
    continuous.cancel(pending[36])
    while continuous.busy:
        continuous.step()
        assert 36 not in runner.at
    assert [text.completions is None for text in pending] == [text is pending[36] for text in pending]


def test_a_text_that_slots_have_no_room_for_gets_others(slots_hold: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_slots, "LEAST", 4)
    network, options = drawn("gpt2", VOCABULARY, 3), {"choice": Sampling(), "context": 40}
    jobs: list[Job] = [([5] * size, {}, {**options, "max_tokens": 3}, 0) for size in (1, 20, 1)]
    continuous = Continuous(network, slots=True)
    pending = [admit(continuous, job) for job in jobs]
    assert [runner.room.room for runner in continuous.live.runners] == [4, 32]
    while continuous.busy:
        continuous.step()
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)


@pytest.mark.parametrize("error", [NotCaptured("not here"), RuntimeError("lost")])
def test_where_slots_fail_texts_begin_anew_in_rows(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    network, launch, launched = drawn("gpt2", VOCABULARY, 3), Slots.launch, list[int]()

    def failing(self: Slots, steps: int) -> None:
        launched.append(steps)
        if len(launched) == 2:
            raise error
        launch(self, steps)

    monkeypatch.setattr(Slots, "launch", failing)
    options: dict[str, Any] = {"choice": Sampling(), "context": 40, "max_tokens": 20}
    jobs: list[Job] = [([number], {}, options, 0) for number in range(2, 6)]
    continuous = Continuous(network, slots=True)
    pending = [admit(continuous, job) for job in jobs]
    while continuous.busy:
        continuous.step()
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)
    assert continuous.slots == (not isinstance(error, NotCaptured))


@needs_gpu
@pytest.mark.parametrize("kind", ["gpt2", "t5 usual", "transformer usual", "lstm"])
def test_captured_slots_give_the_same(kind: str, slots_hold: None) -> None:
    network, chance = drawn(kind, VOCABULARY, 3).to(CUDA), random.Random(kind)
    jobs = jobs_of(kind, chance, 12, 14)
    for job in jobs:
        job[2]["device"] = CUDA
    pending = run(Continuous(network, rows=9, device=CUDA), jobs, chance)
    for job, text in zip(jobs, pending, strict=True):
        check_same(network, job, text)
