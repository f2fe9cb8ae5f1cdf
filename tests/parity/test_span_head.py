"""The question answering head of XLNet and XLM that scores the last token given the first, beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import weft
from tests.parity.test_heads import RULE, TEXTS, in_double
from tests.table import CASES
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.folder import open_folder, save_folder
from weft.nn.rows import Ragged
from weft.tasks.answer import LONGEST, SpanAnswerTask, answerable, log_probabilities
from weft.tasks.forward import framing_for
from weft.text.tokenizers.training import learn
from weft.text.windows import Cut, TextWindow

PEERS = {"xlnet": "XLNetForQuestionAnswering", "xlm": "XLMForQuestionAnswering"}
ALLOWED = [[1, 2, 3, 4], [0], [0, 3, 4, 5, 6, 7, 8], [0, 1]]  # tokens of each text that an answer may consist of
CONTEXT = "the weaver wove a red cloth on the old loom and sold the cloth to a miller at the fair"
QUESTIONS = ["who bought the cloth", "what was old", "a fair loom"]


def peer_of(family: str, dtype: torch.dtype, scale: float, vocabulary: int = 101) -> Any:
    sizes = {"context": 120, "width": 48, "layers": 2, "heads": 3, "inner": 192}
    config = CASES[family].peer(vocabulary=vocabulary, **sizes)  # type: ignore[misc]
    config.start_n_top, config.end_n_top = 4, 3
    torch.manual_seed(0)
    peer = getattr(transformers, PEERS[family])(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, scale)
    for module in peer.modules():
        if CASES[family].single == type(module).__name__:
            module.forward = in_double(module.forward)
    return peer


def summary(family: str, length: int) -> int:
    return length - 1 if family == "xlnet" else 0


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("family", PEERS)
def test_equal_to_the_peer(
    family: str, dtype: torch.dtype, scale: float, tolerance: float, masked: bool, tmp_path: Path
) -> None:
    peer = peer_of(family, dtype, scale)
    peer.save_pretrained(tmp_path)
    opened, batch = open_folder(tmp_path), Ragged.of(TEXTS)
    assert set(opened.heads) == {"spans"}
    allowed = [
        torch.tensor([place in places for place in range(len(text))])
        for text, places in zip(TEXTS, ALLOWED, strict=True)
    ]
    with torch.inference_mode():
        hidden = opened.network(batch.tokens, batch.rows)
        if masked:
            logits = opened.network.span_logits(hidden, batch.rows, torch.cat(allowed))
        else:
            logits = opened.network.logits("spans", hidden, batch.rows)
    for text, part, may in zip(TEXTS, logits.split([len(text) for text in TEXTS]), allowed, strict=True):
        if len(text) < peer.config.start_n_top:
            continue  # the peer has nothing to choose from
        more = {"p_mask": (~may)[None].to(dtype)} if masked else {}
        ids, firsts, lasts = torch.tensor([text]), peer.config.start_n_top, peer.config.end_n_top
        if family == "xlm":
            more["langs"] = torch.zeros_like(ids)
        with torch.inference_mode():
            out = peer(ids, cls_index=torch.tensor([summary(family, len(text))]), **more)
        first, last, likely = log_probabilities(part.numpy())
        assert (part[:, 1] - out.cls_logits[0]).abs().max() <= tolerance
        starts, chances = out.start_top_index[0].numpy(), out.start_top_log_probs[0].numpy()  # not logarithms, for all
        assert np.abs(np.exp(first[starts]) - chances).max() <= tolerance
        assert np.abs(np.exp(first[likely[:firsts]]) - chances).max() <= tolerance
        ends, after = (x.view(lasts, firsts).numpy() for x in (out.end_top_index, out.end_top_log_probs))
        for number, start in enumerate(starts):
            (own,) = np.flatnonzero(likely == start)
            assert np.abs(np.exp(last[own, ends[:, number]]) - after[:, number]).max() <= tolerance
            assert np.abs(np.sort(np.exp(last[own]))[::-1][:lasts] - after[:, number]).max() <= tolerance


@pytest.mark.parametrize("family", PEERS)
def test_the_answer_is_the_likeliest_span_of_the_peer(family: str, tmp_path: Path) -> None:
    """Over all first tokens, and all last tokens after each: the few that the head looks at are enough."""
    kind = FAMILIES[family]
    words = [*CONTEXT.split(), *QUESTIONS[0].split()] * 9
    settings: Any = {"specials": kind.specials, "around": kind.around}
    tokenizer = learn(words, kind.tokenizer, 60 if kind.tokenizer == "unigram" else 320, **settings)
    peer = peer_of(family, torch.float32, 0.3, tokenizer.vocabulary)
    peer.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    model = weft.load(tmp_path)
    assert model.task == "answer"
    texts = [(question, CONTEXT) for question in QUESTIONS]
    encoded = model.task_object.encode(texts, tokenizer, framing_for(model.opened))
    for text, reply, windows, (_, offsets) in zip(texts, model(texts), encoded.pieces, encoded.places, strict=True):
        (window,) = windows
        best, none = likeliest(peer, family, window)
        start, end = (offsets[place - window.lead][side] for side, place in enumerate(best))
        assert reply.text == CONTEXT[start:end].strip() and CONTEXT[reply.start : reply.end] == reply.text
        (prediction,) = model.task_object.predict(model.opened, framing_for(model.opened), [text])
        assert prediction.output.margin == pytest.approx(none, abs=1e-4), "as published: its score alone decides"


def likeliest(peer: Any, family: str, window: TextWindow) -> tuple[tuple[int, int], float]:
    """The first and last token of the likeliest answer by the peer, and its score of no answer."""
    ids, allowed = torch.tensor([window.tokens]), torch.from_numpy(answerable(window))
    head = peer if family == "xlnet" else peer.qa_outputs
    with torch.inference_mode():
        more = {"token_type_ids": segments(window)} if family == "xlnet" else {"langs": torch.zeros_like(ids)}
        more["attention_mask"] = torch.ones_like(ids)
        hidden = peer.transformer(ids, **more).last_hidden_state
        banned = (~allowed).float()[None]
        none = peer(ids, cls_index=torch.tensor([window.summary]), p_mask=banned, **more).cls_logits
        first = head.start_logits(hidden, p_mask=banned)[0].softmax(0)
        scores = dict[tuple[int, int], float]()
        inside = range(window.lead, window.lead + window.cut.end - window.cut.start)
        for start in inside:
            last = head.end_logits(hidden, start_positions=torch.tensor([start]), p_mask=banned)[0].softmax(0)
            for end in range(start, min(start + LONGEST, inside.stop)):
                scores[start, end] = float(first[start] * last[end])
    return max(scores, key=scores.__getitem__), float(none)


def segments(window: TextWindow) -> Any:
    places = torch.arange(len(window.tokens))
    return ((places >= window.border).long() + (places == window.summary))[None]


def test_a_folder_of_ours_opens_in_transformers_and_fine_tunes_with_a_new_head(tmp_path: Path) -> None:
    peer_of("xlnet", torch.float32, 0.3).save_pretrained(tmp_path / "theirs")
    save_folder(tmp_path / "ours", open_folder(tmp_path / "theirs"))
    both = [transformers.XLNetForQuestionAnswering.from_pretrained(tmp_path / name) for name in ("theirs", "ours")]
    theirs, ours = (model.state_dict() for model in both)
    assert theirs.keys() == ours.keys() and all(theirs[name].equal(ours[name]) for name in theirs)
    assert set(open_folder(tmp_path / "ours", {"answer": 2}).heads) == {"answer"}


def test_soft_targets_from_its_probabilities_add_up_to_one() -> None:
    window = TextWindow([0] * 7, 3, 3, Cut(0, 3, 0, 3), 6)
    logits = np.random.default_rng(0).normal(0, 2, (7, 9))
    logits[[0, 1, 2]] = np.finfo(np.float32).min  # the question and what stands around it
    logits[:, 1] = 0.7
    ends = SpanAnswerTask().ends(logits, window)
    first, last, likely = log_probabilities(logits)
    assert np.exp(ends[window.summary]) == pytest.approx(1 / (1 + np.exp(-0.7)))
    rest = np.exp(ends[3:6]) * (1 + np.exp(0.7))
    assert rest[:, 0] == pytest.approx(np.exp(first[3:6]))
    assert rest[:, 1] == pytest.approx((np.exp(first[likely])[:, None] * np.exp(last))[:, 3:6].sum(0))
