"""Which of several continuations fits a prompt best, by the chance that a language model gives to each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from weft.budget import BUDGET
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of, shown
from weft.metrics.bootstrap import Bootstrap, Score, share
from weft.tasks.answers import Chosen, Continuation
from weft.tasks.base import UnsupervisedTask
from weft.tasks.perplexity import Reading, beginning, surprises, tokenizer_of
from weft.text.paths import Patterns
from weft.text.records import Record, read_records
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame

NORMALIZE = ("none", "token", "byte", "prior")
PRIOR = "Answer:"  # a prompt that asks nothing
QUESTIONS = 64  # that are answered together


class _Line(NamedTuple):
    """A prompt and one continuation, as tokens."""

    reading: Reading
    n_tokens: int  # of the prompt, also those that did not fit
    cut: bool
    crossing: bool


def choose(
    opened: LoadedModel,
    prompts: Sequence[str | tuple[str, Sequence[str]]],
    *,
    choices: Sequence[str] | None = None,
    normalize: str = "none",
    prior: str = PRIOR,
    between: str | None = None,
    slide: bool = False,
    budget: int = BUDGET,
) -> list[Chosen]:
    """The best continuation of each prompt: one of `choices`, or of the prompt's own where it is (prompt, choices).

    `normalize`: by the log of its chance (none), that divided by its tokens (token) or bytes (byte), or less the log of
    its chance after the text `prior` (prior). `probability` is the softmax of these scores over the choices.
    `between` stands between prompt and choice: a space unless given, none where one of them brings its own or the
    prompt is empty. Both are cut into tokens together; a token that crosses the border belongs to the choice.
    A prompt too long for the context is an error, or with `slide` read from as far back as there is room.
    """
    tokenizer = tokenizer_of(opened)
    one_of(normalize, NORMALIZE, "normalize")
    asked = [_asked(prompt, choices, number) for number, prompt in enumerate(prompts, 1)]
    lines = list[_Line]()
    for number, (prompt, some) in enumerate(asked, 1):
        lines += _lines(tokenizer, prompt, some, between, opened.config.context, slide, f"prompt {number}")
    logprobs = [-float(each.nats.sum()) for each in surprises(opened, (line.reading for line in lines), budget)]
    after_prior = dict[str, float]()
    if normalize == "prior":
        every = list(dict.fromkeys(choice for _, some in asked for choice in some))
        plain = _lines(tokenizer, prior, every, between, opened.config.context, False, "the prior")
        priors = surprises(opened, (line.reading for line in plain), budget)
        after_prior = {choice: -float(each.nats.sum()) for choice, each in zip(every, priors, strict=True)}
    answers, scored = list[Chosen](), iter(zip(lines, logprobs, strict=True))
    for number, (_, some) in enumerate(asked, 1):
        here = list(islice(scored, len(some)))
        answers.append(_chosen(some, here, normalize, after_prior, f"prompt {number}"))
    return answers


def _chosen(
    choices: list[str], scored: list[tuple[_Line, float]], normalize: str, after_prior: Mapping[str, float], where: str
) -> Chosen:
    """The choices of one prompt, the best first, by their log-probabilities."""
    scores = list[float]()
    for choice, (line, logprob) in zip(choices, scored, strict=True):
        by = {"token": len(line.reading.targets), "byte": len(choice.encode())}.get(normalize, 1)
        scores.append(-math.inf if logprob == -math.inf else logprob / by - after_prior.get(choice, 0.0))
    best = max(scores)
    if not math.isfinite(best):  # of maximum likelihood, which has seen none of them
        raise UserError(f"{where}: this model gives no chance at all to any of its choices")
    whole = math.fsum(math.exp(score - best) for score in scores)
    options = [
        Continuation(
            text=choice,
            number=number,
            logprob=logprob,
            score=score,
            probability=math.exp(score - best) / whole,
            n_tokens=len(line.reading.targets),
            crossing=line.crossing,
        )
        for number, (choice, score, (line, logprob)) in enumerate(zip(choices, scores, scored, strict=True))
    ]
    options.sort(key=lambda option: -option.score)  # of equal ones the earlier stays first
    return Chosen(
        text=options[0].text,
        number=options[0].number,
        options=tuple(options),
        n_tokens=max(line.n_tokens for line, _ in scored),
        truncated=any(line.cut for line, _ in scored),
    )


def _asked(given: Any, choices: Sequence[str] | None, number: int) -> tuple[str, list[str]]:
    """A prompt and its choices, checked."""
    prompt, some = (given, choices) if isinstance(given, str) else given
    if some is None or isinstance(some, str) or not some:
        raise UserError(f"prompt {number}: no choices; give a list of continuations to choose from")
    for place, choice in enumerate(some):
        if not isinstance(choice, str) or not choice:
            raise UserError(f"prompt {number}: choice {place + 1} is {'empty' if choice == '' else 'not text'}")
        if choice in some[:place]:
            raise UserError(f"prompt {number}: choice {shown(choice)!r} is there twice")
    return prompt, list(some)


def _lines(
    tokenizer: Tokenizer,
    prompt: str,
    choices: Sequence[str],
    between: str | None,
    context: int,
    slide: bool,
    where: str,
) -> Iterator[_Line]:
    """A prompt with each of its choices; the tokens of the choice are those that end after the border."""
    before, _ = frame(tokenizer)
    spaced = between is None and prompt and not prompt[-1].isspace()
    spaces = [between or " " * bool(spaced and not choice[0].isspace()) for choice in choices]
    texts = [f"{prompt}{space}{choice}" for space, choice in zip(spaces, choices, strict=True)]
    for choice, encoded in zip(choices, tokenizer.encode_batch(texts, specials=False), strict=True):
        ids, offsets = encoded.ids, encoded.offsets
        border = next((place for place, (_, end) in enumerate(offsets) if end > len(prompt)), len(ids))
        if border == len(ids):
            raise UserError(f"{where}: choice {shown(choice)!r} has no token in this vocabulary")
        crossing = offsets[border][0] < len(prompt)
        # Without a prompt a text starts as it did in training, after the token that parts documents.
        head = [*before, *ids[:border]] or beginning(tokenizer)
        if not head:
            raise UserError(f"{where} is empty, and this vocabulary has no token that begins a text")
        targets = ids[border:]
        room = context - (len(targets) - 1)
        if room < 1 or (len(head) > room and not slide):
            raise UserError(
                f"{where} and choice {shown(choice)!r} have {len(head)} + {len(targets)} tokens, more than the model's "
                f"context of {context} can foresee" + ("; --slide (slide=True) keeps the prompt's end" * (room > 0))
            )
        tokens = [*head[-room:], *targets[:-1]]
        yield _Line(Reading(tokens, targets), len(head), len(head) > room, crossing)


# ------------------------------------------------------------------------------------------------ questions in files


class Question(NamedTuple):
    """A prompt, its choices, and which of them is right."""

    prompt: str
    choices: list[str]
    right: int


def read_questions(files: Patterns) -> Iterator[Question]:
    """Rows with `prompt`, `choices` (a list; in csv JSON, or with | between) and `label` (text or place from 0)."""
    for record in read_records(files, columns=("prompt", "choices", "label")):
        prompt, label = record.values["prompt"], record.values["label"]
        if not isinstance(prompt, str):
            raise UserError(f"{record.where}: column 'prompt' holds {type(prompt).__name__}, not text")
        choices = _choices(record)
        if isinstance(label, str) and label in choices:
            right = choices.index(label)
        elif isinstance(label, int | str) and str(label).isdecimal() and int(label) < len(choices):
            right = int(label)
        else:
            raise UserError(
                f"{record.where}: label {shown(str(label))!r} is neither one of the {len(choices)} choices "
                f"nor a number from 0 to {len(choices) - 1}"
            )
        try:
            _asked(prompt, choices, 1)
        except UserError as error:
            raise UserError(f"{record.where}: {str(error).removeprefix('prompt 1: ')}") from None
        yield Question(prompt, choices, right)


def _choices(record: Record) -> list[str]:
    given = record.values["choices"]
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.lstrip().startswith("[") else given.split("|")
        except ValueError as error:
            raise UserError(f"{record.where}: column 'choices' is not a JSON list: {error}") from None
    if not isinstance(given, list) or not given:
        raise UserError(f"{record.where}: column 'choices' holds no list of texts")
    return given


def judge(
    opened: LoadedModel,
    questions: Iterable[Question],
    *,
    on_answer: Callable[[Question, Chosen], None] | None = None,
    seed: int = 0,
    **options: Any,
) -> Score:
    """The share of questions whose right choice was chosen; `on_answer` gets each, `options` are those of `choose`."""
    sums, waiting = Bootstrap(1, seed), iter(questions)
    while some := list(islice(waiting, QUESTIONS)):
        answers = choose(opened, [(question.prompt, question.choices) for question in some], **options)
        right = [row for row, (a, q) in enumerate(zip(answers, some, strict=True)) if a.number == q.right]
        sums.add(len(some), right, [0] * len(right))
        for question, answer in zip(some, answers, strict=True):
            if on_answer is not None:
                on_answer(question, answer)
    totals = sums.totals()
    return totals.sampled(share(totals.sums[0], totals.sizes)).score()


class ChooseTask(UnsupervisedTask):
    """The continuation that fits a prompt best."""

    name = "choose"
    head = "words"
    takes_tuples = True  # a prompt with its own choices

    def answers(self, model: LoadedModel, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return choose(model, inputs, **options)
