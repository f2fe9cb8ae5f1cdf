"""How a text was generated: every candidate of a beam search, kept or pruned, or the alternatives to each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from weft.errors import UserError, refuse, shown
from weft.explain.view import Panel, TextTable, View
from weft.generation.options import GenerationOptions
from weft.generation.search import BeamCandidate
from weft.generation.text import Prompt, TextGenerator, new_text
from weft.generation.wording import Written
from weft.picture import LIGHT, component
from weft.tasks.answers import Text
from weft.tasks.complete import generator_of, options_for, prompts_of, write
from weft.tasks.forward import evaluating, unseen_in_words
from weft.tasks.model import Model
from weft.text.tokenizers.spelling import Spelling

WIDEST, LONGEST = 32, 256  # beam and new tokens that a page shows
ALTERNATIVES = 6  # tokens beside each that was chosen, without a beam
MAX_TOKENS = 12


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """One candidate: a token after its parent, and what became of it."""

    parent: int  # the number of another node; -1: the prompt
    step: int  # from 1
    rank: int  # in its step, from 0
    token: int
    text: str
    whole: str  # the new text up to here
    probability: float  # of this token after its parent
    logprob: float  # of all tokens
    fate: str  # kept, ended, pruned
    chosen: bool = False  # it is part of the answer

    def data(self) -> dict[str, Any]:
        return {
            **vars(self),
            "probability": float(f"{self.probability:.4g}"),
            "logprob": float(f"{self.logprob:.5g}"),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class TreePlot(Panel):
    """Candidates in columns by step, the likeliest on top, with lines from what they go on from."""

    nodes: Sequence[TreeNode]
    prompt: str
    beam_size: int | None

    is_plot: ClassVar[bool] = True

    def data(self) -> Any:
        nodes = [node.data() for node in self.nodes]
        return {"heading": self.heading, "prompt": self.prompt, "beam_size": self.beam_size, "nodes": nodes}

    def body(self) -> str:
        return component("beam-tree", self.data())

    def draw(self, axes: Any) -> None:
        axes.figure.set_size_inches(max(9.0, 1.1 * max((node.step for node in self.nodes), default=1)), 5.5)
        for node in self.nodes:
            pruned = node.fate == "pruned"
            color = (
                LIGHT[0] if node.chosen else LIGHT[1] if node.fate == "ended" else "#999999" if pruned else "#1c2126"
            )
            above = self.nodes[node.parent] if node.parent >= 0 else None
            begin = (0.0, 0.0) if above is None else (float(above.step), float(above.rank))
            wide = 2.0 if node.chosen else 0.6
            axes.plot([begin[0], node.step], [begin[1], node.rank], color=color, lw=wide, ls=":" if pruned else "-")
            name = f"{node.text.strip() or repr(node.text)}\n{node.probability:.2f}"
            box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": color, "lw": wide}
            axes.text(node.step, node.rank, name, ha="center", va="center", fontsize=7, color=color, bbox=box)
        axes.invert_yaxis()
        axes.set(xlabel="step", ylabel="rank", title=self.heading)


class BeamRecorder:
    """Makes a tree of what a beam search tells of its steps."""

    def __init__(self, generator: TextGenerator, prompt: Prompt) -> None:
        self.generator, self.prompt = generator, prompt
        self.names = Spelling.of(generator.tokenizer).texts
        self.nodes: list[TreeNode] = []
        self.numbers: dict[tuple[int, ...], int] = {}  # by all their tokens
        self.ranks: dict[int, int] = {}  # of each step, how many there are

    def __call__(self, row: int, candidates: list[BeamCandidate]) -> None:
        for candidate in candidates:
            tokens = tuple(candidate.tokens)
            parent = self.numbers.get(tokens[:-1], -1)
            before = self.nodes[parent].logprob if parent >= 0 else 0.0
            step = len(tokens)
            rank = self.ranks.get(step, 0)
            self.ranks[step] = rank + 1
            node = TreeNode(
                parent=parent, step=step, rank=rank, token=tokens[-1], text=self.name(tokens[-1]),
                whole=new_text(self.generator.tokenizer, self.prompt, tokens),
                probability=math.exp(candidate.logprob - before), logprob=candidate.logprob, fate=candidate.fate,
            )  # fmt: skip
            if candidate.fate != "pruned":
                self.numbers.setdefault(tokens, len(self.nodes))
            self.nodes.append(node)

    def name(self, token: int) -> str:
        own = self.names[token] if token < len(self.names) else ""
        return own or self.generator.tokenizer.token(token) or str(token)

    def tree(self, answer: Sequence[int]) -> list[TreeNode]:
        """All nodes, those of the answer marked."""
        path = {self.numbers.get(tuple(answer[: size + 1])) for size in range(len(answer))}
        return [replace(node, chosen=number in path) for number, node in enumerate(self.nodes)]


def alternatives_tree(recorder: BeamRecorder, text: Text) -> list[TreeNode]:
    """The same of a text that no beam searched: at each step the token, and the likeliest others."""
    nodes, parent, total, tokens = list[TreeNode](), -1, 0.0, list[int]()
    for step, piece in enumerate(text.pieces or (), 1):
        others = [(each.token, each.logprob) for each in piece.alternatives if each.token != piece.token]
        ranked = sorted([(piece.token, piece.logprob), *others], key=lambda pair: -pair[1])
        after = parent
        for rank, (token, logprob) in enumerate(ranked):
            own = token == piece.token
            after = len(nodes) if own else after
            whole = new_text(recorder.generator.tokenizer, recorder.prompt, [*tokens, token])
            last = own and text.finish_reason == "end" and step == len(text.pieces or ())
            nodes.append(
                TreeNode(
                    parent=parent,
                    step=step,
                    rank=rank,
                    token=token,
                    text=recorder.name(token),
                    whole=whole,
                    probability=math.exp(logprob),
                    logprob=total + logprob,
                    fate="ended" if last else "kept" if own else "pruned",
                    chosen=own,
                )  # fmt: skip
            )
        parent, total = after, total + piece.logprob
        tokens.append(piece.token)
    return nodes


def generation_view(model: Model, prompt: str, **options: Any) -> View:
    """How a model generated a text: the tree of a beam search, or the alternatives to each token.

    `options` are those of `weft.generation.options.GenerationOptions`, as for a call of the model; the answer is the
    same. Default: at most 12 new tokens.
    """
    opened = model.opened
    if opened.exported:
        raise UserError("an exported model hides its search: give the model folder that it was exported from")
    given = {"max_tokens": MAX_TOKENS, **options}
    chosen = options_for(opened, given, positive=True)
    refuse(
        (not isinstance(prompt, str), "the prompt is a text"),
        ((chosen.beam_size or 1) > WIDEST, f"a page shows a beam of {WIDEST} at most, not {chosen.beam_size}"),
        ((chosen.max_tokens or 0) > LONGEST, f"a page shows {LONGEST} new tokens at most, not {chosen.max_tokens}"),
        (chosen.n > 1 and not chosen.beam_size, "one sample is shown at a time: leave out n (--n)"),
    )
    beam = (chosen.beam_size or 1) > 1
    if not beam and chosen.logprobs is None:
        chosen = replace(chosen, logprobs=ALTERNATIVES)
    generator = generator_of(opened)
    with evaluating(opened.network), unseen_in_words(opened, [prompt]):
        (asked,) = prompts_of(opened, [prompt], chosen)
        recorder = BeamRecorder(generator, asked)
        (text,) = write(replace(generator, observer=recorder), [asked], chosen)
    nodes = recorder.tree(text.tokens) if beam else alternatives_tree(recorder, text)
    plot = TreePlot(
        heading="Beam search" if beam else "Alternatives at each step",
        nodes=nodes,
        prompt=prompt,
        beam_size=chosen.beam_size if beam else None,
    )
    panels = (plot, _answers(recorder, nodes, text, chosen)) if beam else (plot,)
    how = f"a beam of {chosen.beam_size}" if beam else _how(chosen)
    intro = f"After “{shown(prompt, 200)}”, by {how}: “{shown(text.text, 400)}”"
    return View("Generation, step by step", panels, intro)


def _how(options: GenerationOptions) -> str:
    sampled = options.given(("temperature", "top_k", "top_p", "min_p", "typical"))
    return (
        f"sampling ({', '.join(f'{name} {value:g}' for name, value in sampled.items())})"
        if sampled
        else "greedy search"
    )


def _answers(recorder: BeamRecorder, nodes: Sequence[TreeNode], text: Text, options: GenerationOptions) -> TextTable:
    """The hypotheses that ended, by what they are compared by."""
    power = 1.0 if options.length_penalty is None else options.length_penalty
    best: list[Written | Text] = list(text.best) or [text]
    wins = {written.tokens for written in best}
    tokens = {number: key for key, number in recorder.numbers.items()}
    rows = []
    for number, node in enumerate(nodes):
        if node.fate == "ended":
            score = node.logprob / max(node.step, 1) ** power
            mark = "✓" if tokens.get(number, ()) in wins else ""
            rows.append((score, [mark, node.whole, str(node.step), f"{node.logprob:.3f}", f"{score:.3f}"]))
    rows.sort(key=lambda row: -row[0])
    note = f"Score: log-probability / length to the power {power:g} (--length-penalty)."
    if options.coverage:
        note += " The search also rewards coverage of the source, which is not in this column."
    header = ["", "hypothesis", "tokens", "log-probability", "score"]
    return TextTable(heading="Hypotheses that ended", header=header, rows=[row for _, row in rows], note=note)
