"""Tokenizer files made to crash, hang or fill the memory: one line that names the field, before the library."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tests.text.bilingual import bilingual, numbers_of
from tests.text.samples import ODD, folder_of, lines
from tests.text.test_damaged_vocabularies import ADDED, TEMPLATE, WHOLE, A, B, whole
from weft.checkpoint.external import read_arpa
from weft.cli.main import run
from weft.errors import UserError
from weft.text import windows
from weft.text.tokenizers import schema, sentencepiece
from weft.text.tokenizers.published import load_tokenizer
from weft.text.tokenizers.schema import COMPONENTS, MODELS, SEQUENCES, check_pipeline
from weft.text.tokenizers.tokenizer import Tokenizer
from weft.text.tokenizers.training import learn
from weft.text.vector_files import read_binary, read_file

BLOW = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
UNIGRAM = {"type": "Unigram", "unk_id": 0}
BPE = {"type": "BPE", "vocab": {"a": 0, "#b": 1, "ab": 2, "é": 3}, "continuing_subword_prefix": "#"}
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
DEFINED = {"[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]}}
NUL = {**ADDED, "content": "\0", "normalized": True}
SPACE = {**ADDED, "content": " ", "lstrip": True}
TWIN = {**ADDED, "id": 3, "content": "<X>", "normalized": True}


def sequence(stage: str, *steps: Any) -> dict[str, Any]:
    """A tokenizer.json with these steps in one stage."""
    return whole(**{stage: {"type": "Sequence", SEQUENCES[stage]: list(steps)}})


def nested(depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return whole(normalizer=step)


def split(pattern: str) -> dict[str, Any]:
    return whole(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    )


def model_file(*pieces: tuple[str, float, int], kind: int = 1) -> bytes:
    """A SentencePiece model of these pieces: name, score, type."""

    def field(number: int, data: bytes) -> bytes:
        return sentencepiece._varint(number << 3 | 2) + sentencepiece._varint(len(data)) + data

    data = b"".join(
        field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([type_]))
        for name, score, type_ in pieces
    )
    return data + field(2, b"\x18" + bytes([kind])) + field(3, field(1, b"identity"))


UNKNOWN = ("<unk>", 0.0, sentencepiece.UNKNOWN)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        # crashes of the library
        (whole(model=UNIGRAM | {"vocab": [["u", 0.0], ["a" * 150_000, -1.0]]}), "has 150000 characters; at most 4096"),
        ({"spiece__model": model_file(UNKNOWN, ("a" * 500_000, -1.0, 1))}, "has 500000 characters; at most 4096"),
        ({"spiece__model": model_file(UNKNOWN, ("a" * 500_000, -1.0, 1), kind=2)}, "has 500000 characters"),
        (whole(model=BPE | {"merges": [["a", "é"]]}), "model.merges.0: 'é' does not begin with '#'"),
        # panics of the library
        (whole(decoder={"type": "Strip", "content": "a", "start": 10**9, "stop": 0}), "decoder.start is 1000000000"),
        (whole(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 1}), "decoder.stop is 1, and only 0"),
        (whole(pre_tokenizer={"type": "FixedLength", "length": 0}), "pre_tokenizer.length is 0"),
        (whole(normalizer={"type": "Prepend", "prepend": ""}), "normalizer.prepend is '', not a text of 1"),
        (whole(normalizer={"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"}), "matches where there is"),
        (whole(normalizer={"type": "Replace", "pattern": {"Regex": r"\b"}, "content": ""}), "matches where there is"),
        (whole(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "b"}), "pattern.String is ''"),
        (whole(post_processor={**TEMPLATE, "single": [B], "special_tokens": {}}), "single holds the texts B, not A"),
        (whole(post_processor={**TEMPLATE, "single": [A, A], "special_tokens": {}}), "holds the texts A, A, not A"),
        (whole(post_processor={**TEMPLATE, "pair": [A], "special_tokens": {}}), "pair holds the texts A, not A and B"),
        (sequence("post_processor", *[{**TEMPLATE, "special_tokens": DEFINED}] * 2), "processors.1: puts special tok"),
        (whole(normalizer=BERT, added_tokens=[NUL]), "x00' is empty once it is normalized"),
        ({"vocab__txt": "[UNK]\n[CLS]\n[SEP]", "added_tokens__json": {"\0": 3}}, "is empty once it is normalized"),
        # time and memory
        (whole(model={"type": "WordPiece", "vocab": {"u": 0}, "unk_token": "u", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 10**12}), "max_input_chars_per_word is 1000000000000"),
        (sequence("normalizer", *[BLOW] * 6), r"normalizers.1: one character may become 10000; at most 256"),
        (sequence("decoder", *[BLOW] * 6), r"decoders.1: one character may become 10000; at most 256"),
        (sequence("pre_tokenizer", *[BYTES] * 5), r"pretokenizers.4: one character may become 1024"),
        (sequence("normalizer", *[{"type": "NFC"}] * 65), "normalizer.normalizers has 65 entries; at most 64"),
        (nested(9), "more than 8 sequences inside each other"),
        (nested(200), "more than 8 sequences inside each other"),
        (whole(post_processor={**TEMPLATE, "single": [CLS] * 1000, "special_tokens": DEFINED}), "single has 1000 entr"),
        (whole(post_processor={**TEMPLATE, "special_tokens": {str(n): DEFINED["[CLS]"] for n in range(99)}}), "has 99"),
        (split("(a+)+$"), "may fail after a repeat without an end"),
        (whole(added_tokens=[SPACE]), "added token ' ' is space, and takes the space around it too"),
        # values that mean nothing
        (whole(added_tokens=[{**ADDED, "normalized": True}, TWIN], normalizer={"type": "Lowercase"}), "to the same"),
        (whole(model=UNIGRAM | {"vocab": [["u", 1e30]]}), r"vocab.0 is 1e\+30, not a number from -1e\+09 to 1e\+09"),
        (whole(model=UNIGRAM | {"vocab": [["u", "0"]]}), r"vocab.0 is '0', not a number"),
        (whole(model=UNIGRAM | {"vocab": [["u"]]}), r"vocab.0 is not a piece with its score"),
        (whole(model=BPE | {"merges": ["a b c"]}), "model.merges.0 is not two tokens"),
        (whole(model={"type": "Lookup", "vocab": {}}), "model: type 'Lookup' is not one of BPE, WordPiece, WordLevel"),
        (whole(truncation={"max_length": -1, "stride": 0}), "truncation.max_length is -1"),
        (whole(padding={"strategy": {"Fixed": 2.5}}), "padding.strategy.Fixed is 2.5"),
        (whole(sparkle=1), "unknown field 'sparkle'"),
        (whole(normalizer={"type": "NFC", "sparkle": 1}), "normalizer: unknown field 'sparkle'"),
        ({"spiece__model": model_file(UNKNOWN, ("a", 3e38, 1))}, "pieces with an impossible type or score: a"),
        ({"vocab__txt": "[UNK]\n[CLS]\n[SEP]\n" + "a" * 5000}, "vocab.txt: token .* has 5000 characters"),
        ({"vocab__json": {"a" * 5000: 0}, "merges__txt": ""}, "vocab.json: token .* has 5000 characters"),
        ({"tokenizer__json": WHOLE, "special_tokens_map__json": r'{"unk_token": "\ud800"}'}, "half of a surrogate"),
        ({"tokenizer__json": json.dumps(WHOLE).replace('"u"', r'"\udc00"')}, "half of a surrogate pair"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    start = time.process_time()
    with pytest.raises(UserError, match=says) as caught:
        load_tokenizer(folder_of(tmp_path / "model", **files))
    assert "\n" not in str(caught.value) and str(tmp_path / "model") in str(caught.value)
    assert time.process_time() - start < 5


def example(check: Any) -> Any:
    """A value that a check takes."""
    values = [True, 0, 1, "", "a", "Isolated", "always", {"String": "a"}, ["a", 0], [A], [A, B], {}, None]
    for value in values:
        try:
            check(value, "field.pair" if value == [A, B] else "field")
        except UserError:
            continue
        return value
    raise AssertionError(check)


WRONG: list[Any] = [10**30, -1, 2**64, 0.5, "\0" * 5000, [[]], {"a": {}}, [0, "a"], float("1e300")]
FIELDS = [
    (stage, kind, field)
    for stage, components in COMPONENTS.items()
    for kind, fields in components.items()
    for field in fields
    if field not in ("precompiled_charsmap",)
]


@pytest.mark.parametrize(("stage", "kind", "field"), FIELDS, ids=lambda value: str(value))
def test_every_field_of_a_component(stage: str, kind: str, field: str) -> None:
    fields = COMPONENTS[stage][kind]
    sound = {"type": kind, **{name: example(check) for name, check in fields.items()}}
    if kind == "TemplateProcessing":
        sound["pair"] = [A, B]
    check_pipeline(json.loads(json.dumps({**WHOLE, stage: sound})), "t.json")
    for value in WRONG:
        with pytest.raises(UserError, match=rf"t.json: {stage}\.{field}"):
            check_pipeline(json.loads(json.dumps({**WHOLE, stage: {**sound, field: value}})), "t.json")


@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind in MODELS for field in MODELS[kind] if field not in ("vocab", "merges")]
)
def test_every_field_of_a_model(kind: str, field: str) -> None:
    model: dict[str, Any] = {"type": kind, "vocab": {"u": 0}, "unk_token": "u", "merges": []}
    if kind == "Unigram":
        model = {"type": kind, "vocab": [["u", 0]], "unk_id": 0}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    if kind != "BPE":
        model.pop("merges", None)
    check_pipeline({**WHOLE, "model": dict(model)}, "t.json")
    for value in WRONG if field != "dropout" else [2, -1, "0", []]:
        with pytest.raises(UserError, match=rf"t.json: model\.{field}"):
            check_pipeline({**WHOLE, "model": {**model, field: value}}, "t.json")


@pytest.mark.parametrize("field", list(ADDED))
def test_every_field_of_an_added_token(field: str) -> None:
    for value in (10**30, -1, 0.5, None, [], "\0" * 5000):
        with pytest.raises(UserError, match=rf"t.json: added_tokens\.0\.{field}"):
            check_pipeline({**WHOLE, "added_tokens": [{**ADDED, field: value}]}, "t.json")


PUBLISHED = [
    "Bert", "Roberta", "GPT2", "T5", "XLMRoberta", "Albert", "DebertaV2", "Deberta", "XLNet", "Llama", "Gemma", "MPNet",
    "Camembert", "CLIP", "Qwen2", "Herbert", "OpenAIGPT", "Nllb", "Whisper", "GPTNeoX", "BigBird", "Reformer", "Cohere",
]  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pipelines_are_taken(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = getattr(transformers, f"{name}Tokenizer")()
    check_pipeline(json.loads(tokenizer.backend_tokenizer.to_str()), name)


def test_old_files_are_taken(tmp_path: Path) -> None:
    """As the library wrote them years ago: no type of the model, no scheme of the Metaspace."""
    data = json.loads(learn(lines(100), "bpe", 300).library.to_str())
    data["model"] = {key: data["model"][key] for key in ("vocab", "merges")} | {"continuing_subword_prefix": ""}
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    data["pre_tokenizer"].pop("use_regex")
    assert load_tokenizer(folder_of(tmp_path / "a", tokenizer__json=data)).kind == "bpe"
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}
    files = sequence("pre_tokenizer", {"type": "WhitespaceSplit"}, old)
    assert load_tokenizer(folder_of(tmp_path / "b", **files)).encode("a").ids == [1]


def test_spaces_take_no_square(tmp_path: Path) -> None:
    tokenizer = learn(lines(100), "unigram", 120)
    text = "weave" + " " * 50_000 + "looms"
    start = time.process_time()
    ids = tokenizer.ids([text, "weave looms"])
    assert ids[0] == ids[1] and time.process_time() - start < 3
    data = json.loads(tokenizer.library.to_str())  # as Weft wrote it before
    steps = data["normalizer"]["normalizers"]
    place = next(n for n, step in enumerate(steps) if step.get("pattern") == {"Regex": " {2,}"})
    strip = {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}
    steps[place : place + 2] = [strip, steps[place]]
    before = load_tokenizer(folder_of(tmp_path, tokenizer__json=data))
    start = time.process_time()
    assert before.ids([text, *ODD]) == tokenizer.ids([text, *ODD])
    assert time.process_time() - start < 3


def test_a_text_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MAX_NORMALIZED", 1 << 20)
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 200}
    tokenizer = load_tokenizer(folder_of(tmp_path, **whole(normalizer=grows)))
    text = "a" * 300_000
    for call in (tokenizer.encode, lambda text: tokenizer.ids([text]), lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UserError, match="300000 characters becomes more than 1200000 when"):
            call(text)
    with pytest.raises(UserError, match="half of a surrogate pair"):
        tokenizer.encode("c" * 300_000 + "\ud800")
    assert len(tokenizer.encode("c" * 300_000)) == 1


def test_character_maps() -> None:
    """Maps that the library would follow to outside, or that put a book in the place of a character."""
    units = [0] * 256
    texts = b"b" * 65 + b"\0"
    sound = struct.pack("<I256I", 1024, *units) + b"b\0"
    schema.check_charsmap(sound, "m")
    with pytest.raises(UserError, match="m: the precompiled character map puts 65 bytes for a character, over 64"):
        schema.check_charsmap(struct.pack("<I256I", 1024, *units) + texts, "m")
    root = [1 << 31 | 1 << 20, *units[1:]]  # a root that calls itself a leaf is followed all the same
    with pytest.raises(UserError, match="points outside itself"):
        schema.check_charsmap(struct.pack("<I256I", 1024, *root) + b"b\0", "m")


def test_what_nothing_is_learned_from() -> None:
    start = time.process_time()
    tokenizer = learn([" " * 300_000, "weave the looms", "weave"], "bpe", 300)
    assert time.process_time() - start < 10 and tokenizer.decode(tokenizer.ids(["  weave"])[0]) == "  weave"
    for text in (3, None, b"a"):
        with pytest.raises(UserError, match=f"text 2: a {type(text).__name__} where a text is expected"):
            learn(["a b", text], "word", 50)  # type: ignore[list-item]


def test_ids_that_are_none() -> None:
    tokenizer = learn(lines(50), "word", 30)
    for ids in ([-1], [2**40], ["a"]):
        with pytest.raises(UserError, match="the tokenizer failed on these tokens"):
            tokenizer.decode(ids)  # type: ignore[arg-type]


def test_what_stands_around_a_text_is_not_looked_for_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Removed", "invert": False}
    vocabulary = {f"w{n}": n for n in range(500)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    tokenizer = load_tokenizer(folder_of(tmp_path, **whole(pre_tokenizer=nothing, model=model)))
    tried = []
    monkeypatch.setattr(windows, "TRIED", 100)
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: tried.append(ids) or "a")
    assert windows.frame(tokenizer) == ([], []) and windows.pair_frame(tokenizer) is None
    assert len(tried) == 200


def test_counts_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft import files
    from weft.text.tokenizers import published

    monkeypatch.setattr(files, "MOST_VALUES", 100)
    with pytest.raises(UserError, match="holds up to 203 values; at most 100 are read"):
        load_tokenizer(folder_of(tmp_path / "a", tokenizer__json='{"model": [' + "{}," * 100 + "{}]}"))
    monkeypatch.undo()
    monkeypatch.setattr(published, "MAX_TOKENS", 3)
    with pytest.raises(UserError, match="vocab.txt: 4 tokens; at most 3 are read"):
        load_tokenizer(folder_of(tmp_path / "b", vocab__txt="[UNK]\n[CLS]\n[SEP]\na"))
    monkeypatch.setattr(published, "MAX_MERGES", 3)
    with pytest.raises(UserError, match="merges.txt: 4 lines; at most 3 merges are read"):
        load_tokenizer(folder_of(tmp_path / "c", vocab__json={"a": 0}, merges__txt="a a\n" * 4))
    monkeypatch.setattr(published, "MAX_ADDED_TOKENS", 1)
    with pytest.raises(UserError, match="2 added tokens; at most 1 are read"):
        folder = folder_of(
            tmp_path / "d", vocab__json={"a": 0}, merges__txt="", added_tokens__json={"<b>": 1, "<c>": 2}
        )
        load_tokenizer(folder)
    monkeypatch.setattr(schema, "MAX_ADDED_TOKENS", 1)
    with pytest.raises(UserError, match="added_tokens has 2 entries; at most 1 are read"):
        load_tokenizer(folder_of(tmp_path / "e", **whole(added_tokens=[ADDED, TWIN])))
    monkeypatch.setattr(schema, "MAX_UNIGRAM_BYTES", 10)
    monkeypatch.setattr(schema, "MAX_TREE_NODES", 20)
    pieces = [["u", 0.0], ["a" * 12, -1.0], ["a" * 5 + "b" * 8, -1.0]]
    with pytest.raises(UserError, match="the tree of its pieces has 21 nodes; at most 20 are built"):
        load_tokenizer(folder_of(tmp_path / "f", **whole(model=UNIGRAM | {"vocab": pieces})))
    data = model_file(UNKNOWN, *((f"a{n}", -1.0, 1) for n in range(9)), kind=2)
    for name, most, says in (
        ("MAX_PIECES", 5, "a message of more than 5 fields"),
        ("MAX_MERGE_WORK", 20, "their squares sum up to 36, over 20"),
        ("MAX_ADDED_TOKENS", 0, "1 control and user-defined pieces; at most 0"),
    ):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=says):
            patch.setattr(sentencepiece, name, most)
            load_tokenizer(folder_of(tmp_path / "g", spiece__model=data))


def test_long_words_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "w" * 5000
    (tmp_path / "v.txt").write_text(f"a 1 2\n{word} 1 2\nb 1 2\n")
    with pytest.raises(UserError, match="line 2: a word of 5000 characters; at most 4096 are read"):
        read_file(tmp_path / "v.txt")
    (tmp_path / "v.bin").write_bytes(b"1 2\n" + word.encode() + b" " + struct.pack("<2f", 1e-9, -1e9))
    with pytest.raises(UserError, match="word 1: is longer than 4096 bytes"):
        read_binary(tmp_path / "v.bin")
    monkeypatch.setattr("weft.text.vector_files.MAX_LINE_LENGTH", 10)
    (tmp_path / "long.txt").write_text("a 1.0 2.0 3.0\n")
    with pytest.raises(UserError, match="line 1: 13 characters; at most 10 are read"):
        read_file(tmp_path / "long.txt")
    arpa = f"\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-1\t{word}\n-1\t</s>\n\n\\end\\\n"
    (tmp_path / "m.arpa").write_text(arpa)
    with pytest.raises(UserError, match=r"m.arpa: token .* has 5000 characters"):
        read_arpa(tmp_path / "m.arpa")
    folder = bilingual(tmp_path / "marian")
    numbers = numbers_of(folder)
    (folder / "vocab.json").write_text(json.dumps({**numbers, word: len(numbers)}))
    with pytest.raises(UserError, match=r"vocab.json: token .* has 5000 characters"):
        load_tokenizer(folder)


def test_the_command_line_says_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The library's panics would stand there too: it writes them itself."""
    for number, files in enumerate([whole(decoder={"type": "Strip", "content": "a", "start": 1, "stop": 1}),
                                    {"tokenizer__json": WHOLE, "tokenizer_config__json": r'{"cls_token": "\udfff"}'},
                                    split("(a|aa)+$")]):  # fmt: skip
        folder = folder_of(tmp_path / str(number), **files)
        assert run(["tokenizer", "show", str(folder), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"]) == 2
        captured = capfd.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and str(folder) in captured.err
