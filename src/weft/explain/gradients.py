"""How far a gradient reaches back: its norm by time step, for recurrent networks and any other decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.checkpoint.folder import LoadedModel
from weft.errors import UserError, one_of, refuse
from weft.explain.scoring import check_embeddings, replaced_embeddings
from weft.explain.view import LinePlot, TextTable, View
from weft.models.recurrent import RecurrentNetwork
from weft.nn.rows import Rows
from weft.picture import ChartLine
from weft.tasks.forward import evaluating, tokenizer_of
from weft.tasks.model import Model
from weft.tasks.perplexity import as_prompts

KINDS = ("state", "input")
LONGEST = 2000  # tokens
SAMPLE = (
    "The weaver sat at the old loom by the window and sang to herself while the shuttle went back and forth, and when "
    "the evening came she folded the cloth, put out the lamp, and walked home along the river."
)


@dataclass(frozen=True)
class GradientNorms:
    """The norm of the gradient of one loss at each time step, in the order of reading."""

    name: str
    norms: list[float]
    tokens: list[str]

    def back(self) -> list[tuple[float, float]]:
        """By how many steps back it is from the loss."""
        return [(float(back), norm) for back, norm in enumerate(reversed(self.norms))]


def state_gradients(network: RecurrentNetwork, tokens: Tensor, target: int, layer: int = -1) -> list[float]:
    """The norm of dJ/ds(t) for every step: J is the loss of the target after the last token, s(t) all that a layer
    carries from step t to the next (hidden state and, of an LSTM, its memory)."""
    if network.config.bidirectional:
        raise UserError("a network that reads in both directions has no last step: give one that reads forward")
    rows = Rows.of([len(tokens)], tokens.device)
    with torch.enable_grad():
        hidden, carried = network.unrolled(tokens, rows)
        states = carried[layer][1:]
        loss = F.cross_entropy(network.words(hidden[-1:]).double(), torch.tensor([target], device=tokens.device))
        slopes = torch.autograd.grad(loss, [part for state in states for part in state], retain_graph=True)
        each, norms = len(states[0]), list[float]()
        for step, state in enumerate(states):
            own = list(slopes[step * each : (step + 1) * each])
            if each == 2:  # the hidden state of an LSTM is made of its memory: that path counts once, for the former
                own[1] = own[1] - torch.autograd.grad(state[0], state[1], own[0], retain_graph=True)[0]
            norms.append(sum(float(slope.double().pow(2).sum()) for slope in own) ** 0.5)
    return norms


def input_gradients(network: Any, tokens: Tensor, target: int) -> list[float]:
    """The norm of dJ/dx(t) for the embedding of every token that is read."""
    rows = Rows.of([len(tokens)], tokens.device)
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        vectors = network.tokens(tokens).detach().requires_grad_()
        with replaced_embeddings(network, vectors):
            hidden = network.next_states(tokens, rows)
        loss = F.cross_entropy(network.words(hidden[-1:]).double(), torch.tensor([target], device=tokens.device))
        (slope,) = torch.autograd.grad(loss, vectors)
    norms: list[float] = slope.double().norm(dim=-1).tolist()
    return norms


def gradient_norms(model: LoadedModel, text: str, name: str, of: str = "state", layer: int = -1) -> GradientNorms:
    """By time step, for the loss of the last token of a text."""
    check_embeddings(model)
    if "words" not in model.heads or not model.family.generates:
        raise UserError(
            f"{name}: a {model.family.name} model predicts no next token, so there is no loss to go back from"
        )
    one_of(of, KINDS, "of")
    tokenizer, network = tokenizer_of(model), model.network
    (ids,) = as_prompts(tokenizer, tokenizer.ids([text], specials=False))
    ids = ids[-min(LONGEST, model.config.context) - 1 :]
    if len(ids) < 3:
        raise UserError(f"{name}: the text has {len(ids)} tokens; at least 3 are needed")
    tokens = torch.tensor(ids[:-1], device=model.device)
    with evaluating(network):
        if of == "state":
            if not isinstance(network, RecurrentNetwork):
                raise UserError(f"{name}: a {model.family.name} carries no state from step to step; use --of input")
            count = len(network.layers)
            if not -count <= layer < count:
                raise UserError(f"layer must be between 0 and {count - 1}, not {layer}")
            norms = state_gradients(network, tokens, ids[-1], layer)
        else:
            norms = input_gradients(network, tokens, ids[-1])
    return GradientNorms(name, norms, [tokenizer.token(number) or "" for number in ids[:-1]])


def gradients_view(
    models: Sequence[Model] | Model, text: str = SAMPLE, *, of: str | None = None, layer: int | None = None
) -> View:
    """The gradient norm by time step of one or several models, on a logarithmic scale.

    `of`: state (what a recurrent layer carries; default where all models are recurrent) or input (token embeddings).
    """
    several = [models] if isinstance(models, Model) else list(models)
    refuse(
        (not several, "give at least one model"),
        (of is not None and of not in KINDS, f"of must be state or input, not {of!r}"),
    )
    recurrent = all(isinstance(model.network, RecurrentNetwork) for model in several)
    kind = of or ("state" if recurrent else "input")
    if layer is not None and kind != "state":
        raise UserError("layer is for the states of recurrent models")
    names = [model.folder.name if model.folder else model.opened.family.name for model in several]
    curves = [
        gradient_norms(model.opened, text, name, kind, -1 if layer is None else layer)
        for model, name in zip(several, names, strict=True)
    ]
    return norms_view(curves, kind)


def norms_view(curves: Sequence[GradientNorms], kind: str, title: str = "Gradient norm by time step") -> View:
    """A page of such curves."""
    what = "the state" if kind == "state" else "the token embedding"
    plot = LinePlot(
        lines=[ChartLine(curve.name, curve.back()) for curve in curves],
        x="steps back from the loss", y="gradient norm", log_y=True,
        note=f"Norm of the gradient of the last token's loss with respect to {what} at each step.",
    )  # fmt: skip
    rows = []
    for curve in curves:
        first, last = curve.norms[0], curve.norms[-1]
        rate = (
            (first / last) ** (1 / (len(curve.norms) - 1)) if first > 0 and last > 0 and len(curve.norms) > 1 else 0.0
        )
        rows.append(
            [
                curve.name,
                str(len(curve.norms)),
                f"{last:.3e}",
                f"{first:.3e}",
                f"{first / last if last else 0:.1e}",
                f"{rate:.3f}",
            ]
        )
    header = ["model", "steps", "at the loss", "at the first token", "ratio", "factor per step"]
    return View(
        title, (plot, TextTable(header=header, rows=rows)), "How much of a gradient is left, step by step back in time."
    )
