"""XLNet beside transformers: both streams in any order, memory, long distances, decoding, and a whole folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.parity.test_heads import RULE, TEXTS
from weft.checkpoint.folder import open_folder, save_folder
from weft.errors import UserError
from weft.nn.recurrent import Carried
from weft.nn.rows import Ragged, Rows

ASKED = [[1, 3], [0], [0, 2, 7], [1]]  # places of each text
RANKS = [[-1, 4, 2, 7, -1], [5], [9, -1, 3, -1, 6, -1, -1, 1, -1], [-1, 2]]  # those not asked for are of the frame


def pair_of(folder: Path, dtype: torch.dtype, scale: float, **settings: Any) -> tuple[Any, Any]:
    """A peer whose every parameter is drawn anew, and the same read by us."""
    sizes = {"d_model": 48, "n_layer": 3, "n_head": 3, "d_inner": 100}
    torch.manual_seed(0)
    peer = transformers.XLNetLMHeadModel(transformers.XLNetConfig(vocab_size=101, **sizes, **settings)).to(dtype).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.0, scale)
    body = peer.transformer
    single = body.relative_positional_encoding
    # In float32 also where all else is double, which its two streams cannot multiply.
    body.relative_positional_encoding = lambda *given, **more: single(*given, **more).to(dtype)
    peer.save_pretrained(folder)
    return peer, open_folder(folder).network


def two_streams(peer: Any, text: list[int], segments: Tensor, ranks: list[int], asked: list[int]) -> Tensor:
    """The peer's logits at the places asked for: a token sees those of lower rank; one that is read, itself."""
    count, dtype = len(text), peer.dtype
    rank = torch.tensor(ranks)
    hidden = rank[None] >= rank[:, None]
    read = [place for place in range(count) if place not in asked]
    hidden[read] = rank[None] > rank[read][:, None]
    mapping = torch.eye(count)[asked][None].to(dtype)
    return peer(
        torch.tensor([text]),
        token_type_ids=segments[None],
        perm_mask=hidden[None].to(dtype),
        target_mapping=mapping,
    ).logits[0]


@pytest.mark.parametrize("clamp", [-1, 3])
@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
def test_both_streams_in_any_order(
    dtype: torch.dtype, scale: float, tolerance: float, clamp: int, tmp_path: Path
) -> None:
    peer, network = pair_of(tmp_path, dtype, scale, clamp_len=clamp)
    batch = Ragged.of(TEXTS)
    starts = batch.rows.firsts().tolist()
    segments = torch.arange(len(batch.tokens)) % 3
    places = torch.tensor([start + place for start, some in zip(starts, ASKED, strict=True) for place in some])
    asked = Ragged(places, Rows.of([len(some) for some in ASKED]))
    ranks = torch.tensor([rank for row in RANKS for rank in row])
    with torch.inference_mode():
        logits = network.words(network(batch.tokens, batch.rows, segments, asked=asked, ranks=ranks))
        for row, part in enumerate(logits.split([len(some) for some in ASKED])):
            if len(TEXTS[row]) == 1:
                continue  # nothing stands before the only token, and the peer's numbers overflow
            marks = segments[starts[row] : starts[row] + len(TEXTS[row])]
            expected = two_streams(peer, TEXTS[row], marks, RANKS[row], ASKED[row])
            assert (part - expected).abs().max() <= tolerance, row


@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
def test_left_to_right_and_step_by_step(dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path) -> None:
    """What predicts the next token is the query stream at its place, which sees all before it; so does a step."""
    peer, network = pair_of(tmp_path, dtype, scale)
    following = torch.tensor([[4, 5, 6], [7, 8, 9], [1, 2, 3], [11, 12, 13]])
    with torch.inference_mode():
        scores, state = network.start(Ragged.of(TEXTS))
        steps = torch.stack([scores, *(network.step(following[:, place], state) for place in range(3))], 1)
        for row, text in enumerate(TEXTS):
            whole = [*text, *following[row].tolist()]
            size = len(whole) + 1  # and a token that nobody sees, at the place that is asked for
            order = torch.ones(1, size, size, dtype=dtype).triu()
            mapping = torch.eye(size, dtype=dtype)[None, 1:]
            expected = peer(torch.tensor([[*whole, 0]]), perm_mask=order, target_mapping=mapping).logits[0]
            read = Ragged.of([whole])
            assert (network.words(network.next_states(read.tokens, read.rows)) - expected).abs().max() <= tolerance
            assert (steps[row] - expected[len(text) - 1 :]).abs().max() <= tolerance


@pytest.mark.parametrize("dtype, scale, tolerance", RULE, ids=lambda value: str(value).removeprefix("torch."))
def test_memory(dtype: torch.dtype, scale: float, tolerance: float, tmp_path: Path) -> None:
    """Seven tokens of the rows before, of which the first row has none; memory is of segment 0."""
    peer, network = pair_of(tmp_path, dtype, scale, mem_len=7)
    carried, mems = Carried(network.beginning(2)), None
    torch.manual_seed(1)
    for size in (3, 2, 5, 9, 1):
        rows, marks = torch.randint(0, 101, (2, size)), torch.randint(0, 3, (2, size))
        with torch.inference_mode():
            out = peer(rows, mems=mems, use_mems=True, token_type_ids=marks)
            hidden = network(rows.flatten(), Rows.of([size] * 2), marks.flatten(), carried=carried)
            assert (network.words(hidden) - out.logits.flatten(0, 1)).abs().max() <= tolerance
        mems = out.mems


def test_a_folder_of_ours_in_transformers(tmp_path: Path) -> None:
    """Batches of texts and pairs, filled up on the left: <cls> is the last token and of a segment of its own."""
    import weft
    from weft.checkpoint.card import Card
    from weft.tasks.model import new
    from weft.text.tokenizers.training import learn

    texts = ["the loom wove a cloth", "a weaver", "the weaver wove the cloth on the loom", "cloth"]
    family = weft.checkpoint.families.FAMILIES["xlnet"]  # type: ignore[attr-defined]
    specials: Any = {"specials": family.specials, "around": family.around}
    tokenizer = learn(texts * 9, "unigram", 40, **specials)
    model = new("xlnet", tokenizer, size="2x64", heads={"classify": 3}, settings={}).opened
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.normal_(0.0, 0.3)
    save_folder(tmp_path / "ours", type(model)(**{**vars(model), "card": Card(task="classify", labels=tuple("abc"))}))
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    ours = weft.load(tmp_path / "ours")
    with torch.inference_mode():
        logits = peer(**theirs(texts, padding=True, return_tensors="pt")).logits
        assert (torch.stack(ours.logits(texts)) - logits).abs().max() < 1e-4
        pairs = list(zip(texts, reversed(texts), strict=True))
        logits = peer(**theirs(texts, texts[::-1], padding=True, return_tensors="pt")).logits
        assert (torch.stack(ours.logits(pairs)) - logits).abs().max() < 1e-4
        first = theirs(texts[0], return_tensors="pt")
        expected = peer.transformer(**first).last_hidden_state[0].mean(0)
        vector = torch.tensor(ours.embed([texts[0]])[0].values)
        assert (vector - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attn_type": "uni"}, "attn_type is uni; only bi is supported"),
        ({"bi_data": True}, "bi_data is True; only False is supported"),
        ({"mem_len": -1}, r"mem_len \(memory\) must be between 0 and"),
        ({"mem_len": 1 << 40}, r"mem_len \(memory\) must be between 0 and"),
        ({"clamp_len": "far"}, "farthest"),
        ({"clamp_len": 1 << 40}, "farthest must be between 1 and"),
        ({"n_head": 5}, "cannot be cut into 5 equal heads"),
        ({"n_head": 4}, "does not fit the model"),
        ({"summary_type": "first", "architectures": ["XLNetForSequenceClassification"]}, "summary_type is first"),
        ({"architectures": ["XLNetForAnswering"]}, "did you mean 'XLNetForQuestionAnswering'"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    pair_of(tmp_path, torch.float32, 0.02)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError, match=message):
        open_folder(tmp_path)


@pytest.mark.parametrize("memory", [None, 0, 7])
def test_the_memory_of_a_folder_is_saved_as_it_was(memory: int | None, tmp_path: Path) -> None:
    """Published configs say null: all of it is kept in generation."""
    pair_of(tmp_path, torch.float32, 0.02)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mem_len": memory}))
    model = open_folder(tmp_path)
    assert model.network.memory == (384 if memory is None else memory)
    save_folder(tmp_path / "again", model)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["mem_len"] == memory
