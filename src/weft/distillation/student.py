"""The student: how large it is, by which vocabulary it reads, and from which weights it begins."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.families import Family, find_size
from weft.checkpoint.folder import LoadedModel
from weft.config import changed
from weft.distillation.dataset import Distillation
from weft.distillation.recipe import DistillRecipe, DistillSection
from weft.errors import UserError, refuse, shown
from weft.objectives.hidden_states import MatchedStates, TeacherNetwork
from weft.objectives.losses import Objective, SoftTargets
from weft.progress import Log
from weft.pruning.prune import best_of, can_take, counted, rebuilt, spaced_layers, with_layers, with_vocabulary
from weft.runs.preparation import Beginning, both_ways, from_folder, size_of, sizes_of, vocabulary_for
from weft.runs.preparation import counted as with_progress
from weft.runs.recipes import TokenizerSection
from weft.tasks.forward import tokenizer_of
from weft.tasks.model import new
from weft.text.tokenizers.pruning import pruned_tokenizer
from weft.text.tokenizers.tokenizer import Tokenizer


def matched(objective: Objective, teacher: LoadedModel, student: LoadedModel, settings: DistillSection) -> Objective:
    """The objective, beside it the hidden states that `settings.match` names, and in pre-training the words."""
    soft = SoftTargets(settings.temperature, settings.hard) if settings.pretrain else None
    match = tuple(dict.fromkeys(settings.match))
    if not match and soft is None:
        return objective
    if teacher.exported:
        raise UserError(f"a model for {teacher.card.backend} has no hidden states; take the one it was made of")
    tokens, like = common_tokens(teacher, student), next(student.network.parameters())
    reader = TeacherNetwork(teacher.network.to(like.dtype), tokens)
    if not match:
        return MatchedStates(objective, reader, match, soft=soft)
    for who, opened in (("teacher", teacher), ("student", student)):
        if not opened.network.STACK:
            kind = f"the {who} is of family {opened.family.name}, which has no layers to compare"
            raise UserError(f"{kind}: --match is for encoders and decoders such as bert and gpt2")
    networks: tuple[Any, Any] = (student.network, teacher.network)
    ours, theirs = (network.layers[-1].attention for network in networks)
    if ours.causal != theirs.causal and {"attention", "relations"} & set(match):
        one, two = ("causal" if attention.causal else "bidirectional" for attention in (ours, theirs))
        raise UserError(f"the student is {one} and the teacher {two}: their attention and relations cannot match")
    last = (student.config.layers, teacher.config.layers)
    pairs = layer_pairs(settings.map, *last)
    heads = relation_heads(ours.heads * ours.head_width, theirs.heads * theirs.head_width, theirs.heads)
    # One projection for the embeddings and one for all layers, as in TinyBERT, and one for the cosine.
    names = {
        "embeddings": "states" in match and (0, 0) in pairs,
        "states": "states" in match and pairs != ((0, 0),),
        "cosine": "cosine" in match,
    }
    widths = student.config.width, teacher.config.width
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a resumed run reads them from its checkpoint; a run done again begins the same
        used = [name for name in names if names[name] and widths[0] != widths[1]]
        beside = nn.ModuleDict({name: nn.Linear(*widths, dtype=like.dtype) for name in used})
    return MatchedStates(objective, reader, match, settings.weight, pairs, last, heads, ours.causal, beside, soft)


def layer_pairs(text: str, layers: int, theirs: int) -> tuple[tuple[int, int], ...]:
    """Which layer of the student answers to which of the teacher's, from 1; 0 stands for the embeddings."""
    if text == "even":
        return ((0, 0), *((layer, max(1, math.floor(layer * theirs / layers + 0.5))) for layer in range(1, layers + 1)))
    if text == "last":
        return ((layers, theirs),)
    if not re.fullmatch(r"\d{1,4}:\d{1,4}(,\d{1,4}:\d{1,4})*", text):
        raise UserError(f"map must be even, last, or pairs of layers such as 1:2,2:4, not {shown(text)!r}")
    pairs = tuple((int(here), int(there)) for here, there in re.findall(r"(\d+):(\d+)", text))
    sizes = f"the student has {layers} layers and the teacher {theirs} (0: the embeddings)"
    for here, there in pairs:
        refuse(
            (here > layers or there > theirs, f"map {here}:{there}: {sizes}"),
            ((here == 0) != (there == 0), f"map {here}:{there}: embeddings (0) answer to embeddings, as 0:0"),
            (not any(number for number, _ in pairs), "map 0:0: name a layer, too"),
        )
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
        why = f"a teacher that runs along reads the student's own tokens, but their vocabularies differ: {why}"
        raise UserError(f"{why}; give the student the teacher's tokenizer, or leave out match")
    if all(theirs[token] == number for token, number in ours.items()) and len(ours) == len(theirs):
        return None
    tokens = torch.zeros(student.config.vocabulary, dtype=torch.int64)  # ids without a token are never read
    for token, number in ours.items():
        tokens[number] = theirs[token]
    return tokens


SIZE = r"([1-9][0-9]{0,3})x([1-9][0-9]{0,5})"
SAME_LAYERS = ("bert", "distilbert")  # a teacher's family, and one that is built from the same layers
# Keys of a config that say nothing of what a layer of it is; a student's heads read its own last layer.
OF_LAYERS = ("layers", "decoder_layers", "layer_heads", "head_layers")
FREE = ("vocabulary", "source_vocabulary", "begin", "padding", "pooler", *OF_LAYERS)
OTHERS = ("segments", "tied", "mix", "weight_scale")  # ... nor of the layers of another family
DROPOUT = ("dropout", "embedding_dropout", "attention_dropout", "head_dropout", "answer_dropout")


@dataclass(frozen=True)
class Lineage:
    """A student's family and sizes, beside the teacher's."""

    family: Family
    config: Any
    teacher: LoadedModel

    @property
    def related(self) -> bool:
        """Whether layers of the one may be layers of the other."""
        names = self.teacher.family.name, self.family.name
        return names[0] == names[1] or names == SAME_LAYERS

    @property
    def fits(self) -> bool:
        """Whether layers of the teacher are those of the student, and there are enough of them."""
        config, theirs = self.config, self.teacher.config
        if not self.related or not can_take(self.teacher) or config.layers > theirs.layers:
            return False
        same = self.family.name == self.teacher.family.name
        if not same and theirs.layer_heads is not None:
            return False
        kept = (*FREE, *DROPOUT) if same else (*FREE, *DROPOUT, *OTHERS)
        names = [name for name in _common(config, theirs) if name not in kept]
        return all(vars(config)[name] == vars(theirs)[name] for name in names)


def _common(ours: Any, theirs: Any) -> list[str]:
    there = {field.name for field in fields(theirs)}
    return [field.name for field in fields(ours) if field.name in there]


def find_student(recipe: DistillRecipe, teacher: LoadedModel, log: Log = lambda text: None) -> Path | Lineage:
    """The folder that a student's name stands for, or its family and sizes."""
    name, settings = recipe.student.model, recipe.student.settings
    if Path(name).expanduser().is_dir():
        if settings or recipe.student.vocabulary or recipe.student.tokenizer or recipe.student.start:
            raise UserError(f"{name}: a folder brings its own sizes, vocabulary and weights: none can be chosen")
        return Path(name).expanduser()
    family, config = _sized(name, teacher)
    if family.counts or family.numbers:
        raise UserError(f"{family.name} does not learn from teacher outputs, so it cannot be a student")
    if family.reads != teacher.family.reads:
        does = "reads one text and writes another" if teacher.family.reads else "does not write from what it reads"
        raise UserError(f"the teacher {does}, and {family.name} is of another kind: choose another student")
    if family.name != teacher.family.name and not recipe.distill.pretrain:
        asked = {"family": family.name if name == family.name else name}  # a family alone has no size yet
        config = changed(config, sizes_of(both_ways(asked, family, log)), "[student]")
    return Lineage(family, changed(config, settings, "[student.settings]"), teacher)


def _sized(name: str, teacher: LoadedModel) -> tuple[Family, Any]:
    """Family and sizes: 3x256 (of the teacher's family), lstm:1x256, distilbert (half of a BERT's layers)."""
    kind, colon, size = name.rpartition(":")
    alone = re.fullmatch(SIZE, name)
    if alone:
        kind, size = teacher.family.name, name
    width = int(size.partition("x")[2]) if re.fullmatch(SIZE, size) else None
    if alone and width == teacher.config.width and teacher.config.layers:
        # Whatever its heads are; where each layer has its own number of them, those of the layers taken.
        config, count = teacher.config, int(alone[1])
        changes: dict[str, Any] = {"layers": count}
        if config.layer_heads is not None:
            numbers = spaced_layers(count, config.layers) if count <= config.layers else ()
            changes["layer_heads"] = tuple(config.layer_heads[number] for number in numbers) or None
        if config.head_layers != "last":
            changes["head_layers"] = "last"
        return teacher.family, replace(config, **changes)
    family, usual = find_size(kind, size) if colon or alone else find_size(name)
    there = teacher.config
    if not Lineage(family, usual, teacher).related:
        return family, usual
    # As the teacher is in all that is no size; where it is as wide, in its heads too.
    if name == family.name != teacher.family.name:  # the other family alone: as wide as the teacher, half as deep
        usual = replace(usual, width=there.width, heads=there.heads, layers=(there.layers + 1) // 2)
    sizes = ("layers", "decoder_layers", *(() if usual.width == there.width else ("width", "heads", "inner")))
    kept = (*FREE, *(() if family.name == teacher.family.name else (*OTHERS, *DROPOUT)), *sizes, "head_width")
    taken = {key: vars(there)[key] for key in _common(usual, there) if key not in kept}
    return family, replace(usual, **taken)


def begun_student(
    context: Distillation, heads: Mapping[str, int | None], head: str, texts: Callable[[], Iterable[str]]
) -> Beginning:
    """The student with these heads, before it has learned anything; and whether its `head` is new."""
    recipe, teacher = context.recipe, context.teacher
    lineage = find_student(recipe, teacher, context.control.log)
    if isinstance(lineage, Path):
        same = (teacher.card.task or "", teacher.card.labels or ())
        return _noted(context, from_folder(lineage, heads, head, same, recipe.seed), f"the folder {lineage.name}")
    own = recipe.student.tokenizer
    along = recipe.distill.pretrain or recipe.distill.match  # a teacher that reads the student's own tokens
    if own is None and not along and not lineage.related and not lineage.config.heads:
        own = "learned"  # a network without attention is small, and a large table would be most of it
    start = recipe.student.start or ("layers" if lineage.fits and own is None else "scratch")
    if start == "layers" and (own is not None or not lineage.fits):
        theirs = f"{teacher.family.name}, {size_of(teacher.config)}"
        student = f"{lineage.family.name}, {size_of(lineage.config)}{', with another vocabulary' * (own is not None)}"
        raise UserError(f"layers of the teacher ({theirs}) do not fit into the student ({student}): --start scratch")
    tokenizer, target, kept = _tokens(context, lineage, own, texts)
    if start == "scratch":
        model = _fresh(lineage, tokenizer, target, heads, recipe.seed)
        return _noted(context, Beginning(model, True, True), "fresh weights")
    numbers = spaced_layers(lineage.config.layers, teacher.config.layers)
    if teacher.config.head_layers != "last":  # the layers that its heads read may not be among those of the student
        config, tensors = replace(teacher.config, head_layers="last"), teacher.network.state_dict()
        body = {name: tensor for name, tensor in tensors.items() if not name.startswith("heads.")}
        teacher = rebuilt(teacher, config, body, heads={})
    cut = with_layers(teacher, numbers)
    cut = cut if kept is None else with_vocabulary(cut, kept[0], characters=kept[1])
    stored = cut.network.state_dict()
    if "segments.weight" in stored and not lineage.config.has("segments"):
        # A family with one segment only reads every text as the first of the teacher's.
        stored["positions.table.weight"] = stored["positions.table.weight"] + stored["segments.weight"][0]
    model = _fresh(lineage, cut.tokenizer, cut.target_tokenizer, heads, recipe.seed)
    ours, size = model.network.state_dict(), model.config.vocabulary
    for name, weight in stored.items():
        # Published tables may be longer than their vocabulary (DeBERTa's by 99 rows): no text has those tokens.
        if name.startswith(("tokens.", "heads.words.")) and weight.shape[:1] == (cut.config.vocabulary,):
            stored[name] = weight[:size]
    missing = [name for name in ours if name not in stored or stored[name].shape != ours[name].shape]
    lost = [name for name in missing if not name.startswith(("heads.", "pooler."))]
    if lost:
        raise UserError(f"layers of the teacher do not fit into the student ({lost[0]}): --start scratch")
    # A head is taken whole or not at all.
    new_heads = {name.split(".")[1] for name in missing if name.startswith("heads.")}
    fresh = tuple(f"heads.{name}." for name in new_heads)
    taken = {name: stored[name] for name in ours if name not in missing and not name.startswith(fresh)}
    model.network.load_state_dict({**ours, **taken})
    model.network.float()
    if lineage.family.name == teacher.family.name:
        model = replace(model, card=cut.card, carried=cut.carried)
    layers = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} of the teacher"
    return _noted(context, Beginning(model, head in new_heads), layers)


def _tokens(
    context: Distillation, lineage: Lineage, own: str | None, texts: Callable[[], Iterable[str]]
) -> tuple[Tokenizer | None, Tokenizer | None, tuple[Sequence[int], bool] | None]:
    """Both tokenizers; of a part of the teacher's, which of its tokens, and whether these have all characters."""
    teacher, size = context.teacher, context.recipe.student.vocabulary
    if own is not None:
        given = TokenizerSection(size=size) if own == "learned" else TokenizerSection(folder=own)
        learned = vocabulary_for(context.run.folder, given, lineage.family, texts(), None, context.control)
        return learned, None, None
    if size is None:
        return teacher.tokenizer, teacher.target_tokenizer, None
    if teacher.target_tokenizer is not None:
        raise UserError("a teacher of two vocabularies is not cut down: --tokenizer learned, or leave --vocabulary")
    tokenizer = tokenizer_of(teacher)
    with context.control.count("counting tokens", "texts", "stopped while counting tokens") as advance:
        counts = counted(tokenizer, with_progress(texts(), advance))
    kept, characters = best_of(tokenizer, counts, size)
    pruned, kept = pruned_tokenizer(tokenizer, kept, characters)
    context.control.log(f"vocabulary: {len(kept):,} of the teacher's {tokenizer.vocabulary:,} tokens")
    return pruned, None, (kept, characters)


def _fresh(
    lineage: Lineage, tokenizer: Tokenizer | None, target: Tokenizer | None, heads: Mapping[str, int | None], seed: int
) -> LoadedModel:
    """A student with fresh weights."""
    family, own = lineage.family, ("vocabulary", "source_vocabulary", "begin", "padding", "pooler")
    standard, values = vars(family.config(**family.standard)), vars(lineage.config).items()
    settings = {name: value for name, value in values if name not in own and value != standard[name]}
    more: dict[str, Any] = {"settings": settings, "heads": heads, "seed": seed, "where": "[student]"}
    return new(family.name, tokenizer, target_tokenizer=target, **more).opened


def _noted(context: Distillation, beginning: Beginning, start: str) -> Beginning:
    """Log who learns from whom."""
    model, teacher = beginning.opened, context.teacher
    ours, theirs = parameters_of(model), sum(map(parameters_of, context.models))
    who = "teacher" if len(context.models) == 1 else f"{len(context.models)} teachers"
    context.control.log(
        f"student: {model.family.name}, {size_of(model.config)}, {ours:,} parameters, from {start}; "
        f"{who}: {teacher.family.name}, {size_of(teacher.config)}, {theirs:,} parameters"
    )
    if ours >= theirs:
        context.control.note(f"the student is not smaller than its teacher: {ours:,} parameters against {theirs:,}")
    return beginning


def parameters_of(opened: LoadedModel) -> int:
    return sum(parameter.numel() for parameter in opened.network.parameters())
