"""A teacher that reads every batch too: which of its layers the student's match, and what is compared."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.folder import LoadedModel
from weft.distillation.recipe import DistillSection
from weft.errors import UserError, shown
from weft.objectives.base import Objective
from weft.objectives.hidden_states import MatchedStates, TeacherNetwork
from weft.objectives.soft import SoftTargets
from weft.tasks.forward import tokenizer_of

# Stacks of the one kind of layer that all of these are made of.
FAMILIES = ("bert", "roberta", "xlm-roberta", "albert", "distilbert", "openai-gpt", "gpt2")


def matched(objective: Objective, teacher: LoadedModel, student: LoadedModel, settings: DistillSection) -> Objective:
    """The objective, and beside it the hidden states that `settings.match` names; alone where it names none."""
    return along(objective, teacher, student, settings, None) if settings.match else objective


def along(
    objective: Objective, teacher: LoadedModel, student: LoadedModel, settings: DistillSection, soft: SoftTargets | None
) -> MatchedStates:
    """An objective with a teacher that reads every batch: its hidden states, and with `soft` its words too."""
    match = tuple(dict.fromkeys(settings.match))
    if teacher.exported:
        raise UserError(f"a model for {teacher.card.backend} has no hidden states; take the one it was made of")
    tokens = common_tokens(teacher, student)
    like = next(student.network.parameters())
    teacher.network.to(like.dtype)
    if not match:
        return MatchedStates(objective, TeacherNetwork(teacher.network, tokens), match, soft=soft)
    for who, opened in (("teacher", teacher), ("student", student)):
        if opened.family.name not in FAMILIES:
            raise UserError(
                f"the {who} is of family {opened.family.name}, which has no layers to compare: "
                f"match is for {', '.join(FAMILIES)}"
            )
    networks: tuple[Any, Any] = (student.network, teacher.network)
    attentions = [network.layers[-1].attention for network in networks]
    if attentions[0].causal != attentions[1].causal and {"attention", "relations"} & set(match):
        ways = ["back only" if attention.causal else "both ways" for attention in attentions]
        raise UserError(f"the student looks {ways[0]} and the teacher {ways[1]}: attention and relations cannot match")
    last = (student.config.layers, teacher.config.layers)
    pairs = layer_pairs(settings.map, *last)
    inner, their_inner = (attention.heads * attention.head_width for attention in attentions)
    return MatchedStates(
        objective,
        TeacherNetwork(teacher.network, tokens),
        match,
        settings.weight,
        pairs,
        last,
        relation_heads(inner, their_inner, attentions[1].heads),
        attentions[0].causal,
        _beside(match, pairs, student.config.width, teacher.config.width, like),
        soft,
    )


def layer_pairs(text: str, layers: int, theirs: int) -> tuple[tuple[int, int], ...]:
    """Which layer of the student answers to which of the teacher's, from 1; 0 stands for the embeddings."""
    if text == "even":
        return ((0, 0), *((layer, max(1, math.floor(layer * theirs / layers + 0.5))) for layer in range(1, layers + 1)))
    if text == "last":
        return ((layers, theirs),)
    if not re.fullmatch(r"\d{1,4}:\d{1,4}(,\d{1,4}:\d{1,4})*", text):
        raise UserError(f"map must be even, last, or pairs of layers such as 1:2,2:4, not {shown(text)!r}")
    pairs = tuple((int(here), int(there)) for here, there in re.findall(r"(\d+):(\d+)", text))
    for here, there in pairs:
        if here > layers or there > theirs:
            raise UserError(
                f"map {here}:{there}: the student has {layers} layers and the teacher {theirs} (0: the embeddings)"
            )
        if (here == 0) != (there == 0):
            raise UserError(f"map {here}:{there}: embeddings (0) answer to embeddings, as 0:0")
    if not any(here for here, _ in pairs):
        raise UserError("map 0:0: name a layer, too")
    return tuple(dict.fromkeys(pairs))


def relation_heads(inner: int, theirs: int, heads: int) -> int:
    """Into how many both can be cut: the teacher's own number, or the next smaller one that fits."""
    return max(number for number in range(1, heads + 1) if inner % number == 0 and theirs % number == 0)


def common_tokens(teacher: LoadedModel, student: LoadedModel) -> Tensor | None:
    """Which of the teacher's tokens each of the student's is; None: the two vocabularies are the same."""
    one, other = tokenizer_of(teacher), tokenizer_of(student)
    theirs, ours = one.tokens, other.tokens
    rest = [token for token in ours if token not in theirs]
    if rest or one.kind != other.kind:
        why = f"{shown(rest[0])!r} is no token of the teacher's" if rest else f"one is {one.kind}, one {other.kind}"
        raise UserError(
            f"a teacher that runs along reads the student's own tokens, but their vocabularies differ: {why}; "
            "give the student the teacher's tokenizer, or leave out match"
        )
    if all(theirs[token] == number for token, number in ours.items()) and len(ours) == len(theirs):
        return None
    tokens = torch.zeros(student.config.vocabulary, dtype=torch.int64)  # ids without a token are never read
    for token, number in ours.items():
        tokens[number] = theirs[token]
    return tokens


def _beside(
    match: tuple[str, ...], pairs: tuple[tuple[int, int], ...], width: int, theirs: int, like: Tensor
) -> nn.ModuleDict:
    """One map for the embeddings and one for all layers, as in TinyBERT, and one for the cosine."""
    names = []
    if "states" in match:
        names += ["embeddings"] if (0, 0) in pairs else []
        names += ["states"] if pairs != ((0, 0),) else []
    names += ["cosine"] if "cosine" in match else []
    if width == theirs:
        names = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a run that goes on reads them from its checkpoint; a run done again begins the same
        return nn.ModuleDict({name: nn.Linear(width, theirs, dtype=like.dtype) for name in names})
