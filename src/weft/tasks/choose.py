"""What follows a prompt by a language model: the best of several continuations, the likeliest next words, templates."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from weft.budget import BUDGET
from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, did_you_mean, listed, one_of, shown
from weft.metrics.bootstrap import Bootstrap, Score, share
from weft.nn.rows import Ragged
from weft.tasks.answers import Chosen, Continuation
from weft.tasks.base import UnsupervisedTask
from weft.tasks.forward import check_finite, evaluating, unseen_in_words
from weft.tasks.model import Model
from weft.tasks.perplexity import Reading, beginning, surprises, tokenizer_of
from weft.text.records import read_records
from weft.text.sentences import lead
from weft.text.sources import Patterns
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.windows import frame

NORMALIZE = ("none", "token", "byte", "prior")
PRIOR = "Answer:"  # a prompt that asks nothing
PLACEHOLDERS = ("text", "question", "context")  # of a template
PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
QUESTIONS = 64  # that are answered together
LONGEST = 40  # tokens of a word, the spaces before it included
Floats = NDArray[np.float64]


class _Line(NamedTuple):
    """A prompt and one continuation, as tokens."""

    reading: Reading
    n_tokens: int  # of the prompt, also those that did not fit
    truncated: bool
    crossing: bool


def choose(
    model: LoadedModel,
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

    `normalize`: by its log-probability (none), that divided by its tokens (token) or bytes (byte), or less its
    log-probability after the text `prior` (prior). `probability` is the softmax of these scores over the choices.
    `between` stands between prompt and choice: a space unless given, none where one of them brings its own or the
    prompt is empty. Both are cut into tokens together; a token that crosses the border belongs to the choice.
    A prompt too long for the context is an error, or with `slide` read from as far back as there is room.
    """
    one_of(normalize, NORMALIZE, "normalize")
    asked = [_asked(prompt, choices, number) for number, prompt in enumerate(prompts, 1)]
    lines = list[_Line]()
    for number, (prompt, some) in enumerate(asked, 1):
        lines += _lines(model, prompt, some, between, slide, f"prompt {number}")
    logprobs = [-float(each.nats.sum()) for each in surprises(model, (line.reading for line in lines), budget)]
    after_prior = dict[str, float]()
    if normalize == "prior":
        every = list(dict.fromkeys(choice for _, some in asked for choice in some))
        plain = _lines(model, prior, every, between, False, "the prior")
        priors = surprises(model, (line.reading for line in plain), budget)
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
        raise UserError(f"{where}: this model gives every choice a probability of 0")
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
        truncated=any(line.truncated for line, _ in scored),
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
    model: LoadedModel, prompt: str, choices: Sequence[str], between: str | None, slide: bool, where: str
) -> Iterator[_Line]:
    """A prompt with each of its choices; the tokens of the choice are those that end after the border."""
    tokenizer, context = tokenizer_of(model), model.config.context
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
                f"context of {context} can predict" + ("; --slide (slide=True) keeps the prompt's end" * (room > 0))
            )
        tokens = [*head[-room:], *targets[:-1]]
        yield _Line(Reading(tokens, targets), len(head), len(head) > room, crossing)


class Question(NamedTuple):
    """A prompt, its choices, and which of them is right."""

    prompt: str
    choices: list[str]
    right: int


def read_questions(files: Patterns) -> Iterator[Question]:
    """Rows with `prompt`, `choices` (a list; in csv JSON, or with | between) and `label` (text or place from 0)."""
    for record in read_records(files, columns=("prompt", "choices", "label")):
        prompt, choices, label = (record.values[name] for name in ("prompt", "choices", "label"))
        if not isinstance(prompt, str):
            raise UserError(f"{record.where}: column 'prompt' holds {type(prompt).__name__}, not text")
        if isinstance(choices, str):
            try:
                choices = json.loads(choices) if choices.lstrip().startswith("[") else choices.split("|")
            except ValueError as error:
                raise UserError(f"{record.where}: column 'choices' is not a JSON list: {error}") from None
        if not isinstance(choices, list) or not choices:
            raise UserError(f"{record.where}: column 'choices' holds no list of texts")
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


def evaluate_choices(
    model: LoadedModel,
    questions: Iterable[Question],
    *,
    on_answer: Callable[[Question, Chosen], None] = lambda question, answer: None,
    **options: Any,
) -> Score:
    """The share of questions whose right choice was chosen; `on_answer` gets each, `options` are those of `choose`."""
    sums, waiting = Bootstrap(1, 0), iter(questions)
    while some := list(islice(waiting, QUESTIONS)):
        answers = choose(model, [(question.prompt, question.choices) for question in some], **options)
        right = [row for row, (a, q) in enumerate(zip(answers, some, strict=True)) if a.number == q.right]
        sums.add(len(some), right, [0] * len(right))
        for question, answer in zip(some, answers, strict=True):
            on_answer(question, answer)
    totals = sums.totals()
    return totals.sampled(share(totals.sums[0], totals.sizes)).score()


class ChooseTask(UnsupervisedTask):
    """The continuation that fits a prompt best."""

    name = "choose"
    head = "words"
    run = staticmethod(choose)

    def check_input(self, where: str, value: Any) -> Any:
        """A prompt, or one with its own choices."""
        return value if isinstance(value, tuple | list) else super().check_input(where, value)


# -------------------------------------------------------------------------------------------------------- next words
#
# A word is a run of letters, digits and apostrophes; any other mark is a word of its own. The probability of a word is
# that of all ways to spell it in tokens, with any spaces before it, and of something that is no letter coming next.


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What may come next, and how likely that is."""

    text: str  # '' is the end of the text
    probability: float
    tokens: tuple[int, ...]  # of its likeliest spelling
    joined: bool = False  # it goes on with the last word of the text


@dataclass(frozen=True, kw_only=True)
class Suggestions:
    """The likeliest next words of one model, the likeliest first."""

    words: tuple[Suggestion, ...]
    n_tokens: int  # of the text that was read
    truncated: bool  # whether the text was longer than the model's context
    exact: bool  # no beginning was left aside that could have become a likelier word
    aside: float  # the probability of all that was left aside: so much likelier a word may be at most


@torch.inference_mode()
def suggest(
    model: LoadedModel | Model,
    text: str,
    *,
    top: int = 10,
    tokens: bool = False,
    endings: bool = False,
    width: int = 256,
) -> Suggestions:
    """The likeliest next words of a text, or with `tokens` the likeliest next tokens.

    The last word of the text is taken to be complete: probabilities are those of what comes after its end. With
    `endings` it may also go on ("weave" with an r), unless a space at the end of the text says that it does not.
    """
    opened = model.opened if isinstance(model, Model) else model
    if not 1 <= top <= 1000:
        raise UserError(f"between 1 and 1000 suggestions can be made, not {top}")
    tokenizer, plain, context = tokenizer_of(opened), text.rstrip(" "), opened.config.context
    prompt = [*frame(tokenizer)[0], *tokenizer.ids([plain], specials=False)[0]] or beginning(tokenizer)
    if not prompt:
        raise UserError("the text is empty, and this vocabulary has no token that begins one")
    room = context - (1 if tokens else min(LONGEST, context // 2))
    kept, closed = prompt[-room:], bool(plain) and plain != text
    read: Any = {"n_tokens": len(prompt), "truncated": len(prompt) > room}
    longest = min(LONGEST, context - len(kept))
    with evaluating(opened.network), unseen_in_words(opened, [text]):
        logits, state = opened.network.start(Ragged.of([kept], opened.device), room=len(kept) + longest)
        first = _probabilities(check_finite(opened, logits, infinite=True))
        if not tokens:
            search = _Search(opened, kept, bool(plain) and inside(plain[-1]) and not closed, top, width)
            search.follow(search.allowed(first, closed, endings), state, longest)
            return Suggestions(words=search.words(), exact=search.exact, aside=search.aside, **read)
    best, texts = np.argsort(-first[0], kind="stable")[:top].tolist(), _Spelling.of(tokenizer).texts
    words = tuple(
        Suggestion(text=texts[token] or tokenizer.token(token) or "", probability=probability, tokens=(token,))
        for token, probability in zip(best, first[0, best].tolist(), strict=True)
    )
    return Suggestions(words=words, exact=True, aside=0.0, **read)


def _probabilities(logits: torch.Tensor) -> Floats:
    """B V: of the next token."""
    return logits.double().softmax(-1).cpu().numpy()


def inside(character: str) -> bool:
    """Whether a character is part of a word: a letter or digit, what stands on one, an apostrophe, half a character."""
    return character in "_'’\ufffd" or unicodedata.category(character)[0] in "LNM"


def first_word(text: str) -> tuple[str, bool]:
    """The first word or mark of a text that begins with one, and whether nothing that follows can make it longer."""
    end = next((place for place, character in enumerate(text) if not inside(character)), len(text))
    return (text[:end], end < len(text)) if end else (text[:1], True)


@dataclass(frozen=True)
class _Spelling:
    """What each token adds to a text that stands before it."""

    texts: tuple[str, ...]  # '' of special tokens
    goes_on: NDArray[np.bool_]  # tokens that begin inside a word
    spaced: NDArray[np.bool_]  # tokens that begin with a space or the like
    ends: NDArray[np.bool_]  # special tokens: nothing comes after them
    whole: NDArray[np.bool_]  # tokens with the end of a word in them: marks, or letters with something after them

    @staticmethod
    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> _Spelling:
        numbers = range(tokenizer.vocabulary)
        # Some vocabularies write spaces only between words, so a token is decoded after a word.
        anchor = next(([number] for number in numbers if tokenizer.decode([number]).strip().isalnum()), [])
        before = tokenizer.decode(anchor)
        whole = tokenizer.library.decode_batch([[*anchor, number] for number in numbers], skip_special_tokens=True)
        texts = [text.removeprefix(before) for text in whole]
        special = {number for number, token in tokenizer.library.get_added_tokens_decoder().items() if token.special}
        return _Spelling(
            texts=tuple(texts),
            goes_on=np.array([bool(text) and inside(text[0]) for text in texts]),
            spaced=np.array([bool(text) and text[0].isspace() for text in texts]),
            ends=np.array([number in special or not texts[number] for number in numbers]),
            whole=np.array([bool(text.strip()) and first_word(text.lstrip())[1] for text in texts]),
        )


class _Beginning(NamedTuple):
    """A beginning of a next word: its tokens so far, and how likely they are."""

    tokens: tuple[int, ...]
    probability: float
    text: str = ""  # all that it adds to the text
    joined: bool = False


class _Search:
    """Follows the likeliest beginnings of words token by token until each word ends."""

    def __init__(self, model: LoadedModel, prompt: list[int], after_word: bool, top: int, width: int) -> None:
        self.network, self.device, self.tokenizer = model.network, model.device, tokenizer_of(model)
        self.spelling, self.prompt, self.after_word = _Spelling.of(self.tokenizer), prompt, after_word
        self.top, self.width, self.exact, self.aside = top, width, True, 0.0
        # By word, and whether it is joined to the last: its probability, and that of its best spelling with the tokens.
        self.known = dict[tuple[str, bool], tuple[float, float, tuple[int, ...]]]()

    def allowed(self, first: Floats, closed: bool, endings: bool) -> Floats:
        """The probabilities of the first token; a word that is complete does not go on."""
        spelling = self.spelling
        if closed or (self.after_word and not endings):
            first[0] *= (spelling.spaced | spelling.ends) if closed else ~spelling.goes_on
            if not first[0].sum():
                raise UserError("this model predicts no other word here: the last one would go on")
            first[0] /= first[0].sum()
        return first

    def words(self) -> tuple[Suggestion, ...]:
        best = sorted(self.known.items(), key=lambda item: (-item[1][0], item[0]))[: self.top]
        return tuple(
            Suggestion(text=text, probability=probability, tokens=tokens, joined=joined)
            for (text, joined), (probability, _, tokens) in best
        )

    def _note(self, word: str, joined: bool, probability: float, tokens: tuple[int, ...]) -> None:
        total, best, spelling = self.known.get((word, joined), (0.0, 0.0, ()))
        best, spelling = (probability, tokens) if probability > best else (best, spelling)
        self.known[word, joined] = total + probability, best, spelling

    def _leave(self, probabilities: Floats) -> None:
        """Beginnings that are not followed any further."""
        self.aside += float(probabilities.sum())
        self.exact &= bool(probabilities.max(initial=0.0) <= self._worst())

    def _worst(self) -> float:
        """What a word needs to be among those asked for."""
        totals = sorted((total for total, _, _ in self.known.values()), reverse=True)
        return totals[self.top - 1] if len(totals) >= self.top else 0.0

    def follow(self, probabilities: Floats, state: Any, longest: int) -> None:
        """From the probabilities of the first token (1 V) on, for at most so many tokens."""
        spelling, beginnings = self.spelling, [_Beginning((), 1.0)]
        for depth in range(1, longest + 1):
            grown = probabilities * np.array([each.probability for each in beginnings])[:, None]
            for row, each in enumerate(beginnings):
                word = each.text.lstrip()
                ended = ~spelling.goes_on if word else spelling.ends  # whatever begins with no letter ends a word
                over = float(grown[row, ended].sum())
                if word:
                    self._note(self._spelled(each, word), each.joined, over, each.tokens)
                elif over:
                    self._note("", False, over, (*each.tokens, int((grown[row] * ended).argmax())))
                grown[row, ended] = 0.0
            for row, token in zip(*np.nonzero(grown * spelling.whole > 1e-3 * self._worst()), strict=True):
                each = beginnings[row]
                word, _ = first_word((each.text + spelling.texts[token]).lstrip())  # it ends inside the token
                self._note(word, self._joins(each, token), float(grown[row, token]), (*each.tokens, int(token)))
            few = grown * spelling.whole
            self._leave(few[few <= 1e-3 * self._worst()])
            grown[:, spelling.whole] = 0.0
            rows, beginnings = self._kept(beginnings, grown) if depth < longest else ([], [])
            if not rows:
                self._leave(grown)
                return
            state.pick(torch.tensor(rows, device=self.device))
            last = torch.tensor([each.tokens[-1] for each in beginnings], device=self.device)
            probabilities = _probabilities(self.network.step(last, state))

    def _kept(self, beginnings: list[_Beginning], grown: Floats) -> tuple[list[int], list[_Beginning]]:
        """The likeliest beginnings of one more token, after the rows that they come from; the others are left aside."""
        flat = grown.ravel()
        # A beginning may still add to a word that is known, so those that nearly count are followed too.
        top = min(self.width, int((flat > 0.01 * self._worst()).sum()))
        best = np.argpartition(-flat, top - 1)[:top] if top else np.zeros(0, dtype=np.int64)
        best = best[np.argsort(-flat[best], kind="stable")]
        probabilities = flat[best].tolist()
        flat[best] = 0.0
        if len(best):
            self._leave(grown)
        rows, kept = list[int](), list[_Beginning]()
        for place, probability in zip(best.tolist(), probabilities, strict=True):
            row, token = divmod(place, grown.shape[1])
            each = beginnings[row]
            text, joined = each.text + self.spelling.texts[token], self._joins(each, token)
            rows.append(row)
            kept.append(_Beginning((*each.tokens, token), probability, text, joined))
        return rows, kept

    def _joins(self, each: _Beginning, token: int) -> bool:
        return each.joined or (not each.tokens and self.after_word and bool(self.spelling.goes_on[token]))

    def _spelled(self, each: _Beginning, word: str) -> str:
        """A word in letters: those of several tokens together, where one of them is only a part of a letter."""
        if "\ufffd" not in word:
            return word
        tail = self.prompt[-4:]
        whole = self.tokenizer.decode([*tail, *each.tokens])
        return whole.removeprefix(self.tokenizer.decode(tail)).lstrip() or word


# -------------------------------------------------------------------------------------------------------- templates
#
# Prompts that make a language model translate, summarize and answer without training (Radford et al., 2019).


def first_line(text: str) -> str:
    """The first line of what a model wrote that is not blank."""
    return next((line.strip() for line in text.split("\n") if line.strip()), "")


@dataclass(frozen=True, kw_only=True)
class Template:
    """How a task is put to a language model.

    `head` comes once (left out where its placeholders have no value); `turn` comes for each example, followed by its
    answer, and last for the text itself. `decoding` is how the paper drew from the model (options of `complete`), and
    `finish` what it kept of the output.
    """

    turn: str
    head: str = ""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[str], str] = str.strip


TEMPLATES = {
    "translate": Template(
        turn="{text} =", decoding={"stop": ("\n",), "max_tokens": 100}, finish=lambda text: lead(text, 1)
    ),
    "summarize": Template(turn="{text}\nTL;DR:", decoding={"top_k": 2, "max_tokens": 100}, finish=lead),
    "answer": Template(
        head="{context}\n", turn="Q: {question}\nA:", decoding={"stop": ("\n",), "max_tokens": 50}, finish=first_line
    ),
}


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled, once each: braces in the values stay; {{ and }} stand for braces."""

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if name is None:
            raise UserError(f"template {shown(template)!r}: a single {match[0]!r}; write {match[0] * 2} for a brace")
        if name not in PLACEHOLDERS:
            known = listed(f"{{{known}}}" for known in PLACEHOLDERS)
            raise UserError(
                f"template {shown(template)!r}: unknown placeholder {{{shown(name)}}}; known are {known}"
                f"{did_you_mean(name, PLACEHOLDERS)}"
            )
        if name not in values:
            raise UserError(f"template {shown(template)!r} needs a {name}")
        return values[name]

    return PART.sub(part, template)


def template_of(name: str) -> Template:
    """A template by its name, or a user's own: any text with a placeholder in it."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    if "{" not in name:
        choices = f"{listed(TEMPLATES)}, nor does it hold {{text}}"
        raise UserError(f"template {shown(name)!r} is not one of {choices}{did_you_mean(name, TEMPLATES)}")
    return Template(turn=name)


def example_of(given: str) -> tuple[str, str]:
    """An example written as `text=>answer`."""
    text, arrow, answer = given.partition("=>")
    if not arrow or not text.strip() or not answer.strip():
        raise UserError(f"example {shown(given)!r}: write it as 'text=>answer'")
    return text.strip(), answer.strip()


def prompt_of(
    template: str | Template, text: str, *, context: str | None = None, examples: Sequence[tuple[str, str]] = ()
) -> str:
    """The prompt for a text: the head, each example with its answer on a line, then the text, open for its answer."""
    chosen = template_of(template) if isinstance(template, str) else template
    fixed = {} if context is None else {"context": context}

    def turn(text: str) -> str:
        return filled(chosen.turn, {**fixed, "text": text, "question": text})

    filled(chosen.turn, dict.fromkeys(PLACEHOLDERS, ""))  # a fault in the template is named before a missing value
    head = filled(chosen.head, fixed) if chosen.head and context is not None else ""
    return head + "".join(f"{turn(asked)} {answer}\n" for asked, answer in examples) + turn(text)
