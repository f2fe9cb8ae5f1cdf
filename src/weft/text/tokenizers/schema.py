"""What a tokenizer.json may hold: every component, every field, its type and its range; and how large it may be.

The library that runs these files crashes, hangs or fills the memory on values that no published tokenizer has, so that
all is checked before it sees them. A component or field that is not in these tables is refused by its name. The limits
are far above any published vocabulary, and low enough for the libraries that read it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os.path
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
from tokenizers import normalizers

from weft.errors import UserError, did_you_mean, listed, shown
from weft.text.tokenizers.patterns import check_pattern

MAX_TOKENS = 4_000_000  # word2vec's news vectors have 3,000,000 words, the largest published vocabulary 900,000 pieces
MAX_TOKEN_LENGTH = 4096  # characters; a tree of pieces is freed by recursion, so that a long one overflows the stack
MAX_ADDED_TOKENS = 200_000
MAX_MERGES = 4_000_000
MAX_SCORE = 1e9  # of a piece, either side of zero
MAX_TREE_NODES = 6_000_000  # of the tree of a unigram model, some 300 bytes each
MAX_UNIGRAM_BYTES = 4_000_000  # of all pieces; the nodes of no tree are counted below


def check_tokens(tokens: Collection[str], where: str, max_count: int = MAX_TOKENS, what: str = "tokens") -> None:
    """Refuse more tokens than a vocabulary may have, or longer ones."""
    if len(tokens) > max_count:
        raise UserError(f"{where}: {len(tokens)} {what}; at most {max_count} are read")
    if max(map(len, tokens), default=0) > MAX_TOKEN_LENGTH:
        token = next(token for token in tokens if len(token) > MAX_TOKEN_LENGTH)
        size = f"{len(token)} characters; at most {MAX_TOKEN_LENGTH} are read"
        raise UserError(f"{where}: token {shown(token, 20)!r} has {size}")


def check_pieces(pieces: Collection[str], where: str) -> None:
    """Refuse pieces whose tree would not fit into memory; their number and length are checked before."""
    if sum(map(len, map(str.encode, pieces))) <= MAX_UNIGRAM_BYTES:
        return
    data, nodes, before = sorted(map(str.encode, pieces)), 0, b""
    for piece in data:  # a node for each distinct beginning
        nodes += len(piece) - len(os.path.commonprefix((before, piece)))
        before = piece
    if nodes > MAX_TREE_NODES:
        raise UserError(f"{where}: the tree of its pieces has {nodes} nodes; at most {MAX_TREE_NODES} are built")


MAX_GROWTH = 256  # characters that one character of a text may become by the steps of a pipeline together
LONG = 1 << 18  # characters; the growth of shorter texts is not looked at
MAX_NORMALIZED = 1 << 23  # characters that a text may become where that is more than four times its own
SLICE = 1 << 16  # characters that are tried at once


def growth_of(stage: str, step: Mapping[str, Any]) -> int:
    """Into how many characters a step may turn one, at most."""
    match step["type"]:
        case "Replace":
            content = max(len(step["content"]), len(unicodedata.normalize("NFKD", step["content"])))
            kind, pattern = next(iter(step["pattern"].items()))
            if kind == "Regex":  # it may match between any two characters
                return 1 + content
            return max(1, -(-content // len(pattern)))
        case "Prepend":
            return 1 + len(unicodedata.normalize("NFKD", step["prepend"]))
        case "Precompiled":
            data = base64.b64decode(step["precompiled_charsmap"])  # sound: a size, a trie, and texts that end in NUL
            texts = data[4 + int.from_bytes(data[:4], "little") :].decode("utf-8")
            return max([1, *map(len, texts.split("\0"))])
        case "ByteLevel":
            return 1 if stage in ("decoder", "post_processor") else 4
        case "Metaspace" | "BPEDecoder" | "CTC" | "WordPiece":
            return 2
    return 1


def check_growth(normalizer: normalizers.Normalizer | None, text: str) -> None:
    """Refuse a long text that the normalizer would make far longer; it is tried on one slice after the other."""
    if normalizer is None or len(text) < LONG:
        return
    max_length = max(4 * len(text), MAX_NORMALIZED)
    growth, pending = 1, [json.loads(normalizer.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step["normalizers"]
        else:
            growth *= growth_of("normalizer", step)
    slices = [text[start : start + SLICE] for start in range(0, len(text), SLICE)]
    if growth * sum(len(unicodedata.normalize("NFKD", part)) for part in slices) <= max_length:
        return
    length = 0
    for part in slices:
        length += len(normalizer.normalize_str(part))
        if length > max_length:
            raise UserError(f"a text of {len(text)} characters becomes more than {max_length} when it is normalized")


Check = Callable[[Any, str], None]


def value_shown(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(repr(value) if isinstance(value, str) else str(value))


def _check(is_right: Callable[[Any], bool], wanted: str) -> Check:
    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise UserError(f"{where} is {value_shown(value)}, {wanted}")

    return check


an_object = _check(lambda value: isinstance(value, dict), "not an object")
a_list = _check(lambda value: isinstance(value, list), "not a list")
flag = _check(lambda value: type(value) is bool, "neither true nor false")
anything = _check(lambda value: True, "")  # checked elsewhere


def whole(low: int, high: int) -> Check:
    """A whole number in a range."""
    wanted = f"not a whole number from {low} to {high}" if low < high else f"and only {low} is supported"
    return _check(lambda value: type(value) is int and low <= value <= high, wanted)


def number(low: float, high: float) -> Check:
    """A number in a range."""
    wanted = f"not a number from {low:g} to {high:g}"
    return _check(lambda value: type(value) in (int, float) and low <= value <= high, wanted)


def choice(*names: str) -> Check:
    """One of some words."""
    return _check(lambda value: value in names, f"not one of {', '.join(names)}")


def text(max_length: int, min_length: int = 0) -> Check:
    """A text of some characters."""
    wanted = f"not a text of {min_length} to {max_length} characters"
    return _check(lambda value: isinstance(value, str) and min_length <= len(value) <= max_length, wanted)


def none_or(inner: Check) -> Check:
    """What may be null."""
    return lambda value, where: None if value is None else inner(value, where)


def few(value: Any, where: str, max_entries: int, inner: Check = anything) -> None:
    """A list of at most so many values."""
    a_list(value, where)
    if len(value) > max_entries:
        raise UserError(f"{where} has {len(value)} entries; at most {max_entries} are read")
    if inner is anything:
        return
    for place, item in enumerate(value):
        inner(item, f"{where}.{place}")


def check_fields(
    value: Any, where: str, fields: Mapping[str, Check], optional: Collection[str] = (), joint: str = "."
) -> None:
    """Check an object by the table of its fields; what is not in the table is refused."""
    an_object(value, where)
    for key in value:
        if key not in fields:
            raise UserError(f"{where}: unknown field {shown(key)!r}{did_you_mean(key, fields)}")
    missing = [key for key in fields if key not in value and key not in optional]
    if missing:
        raise UserError(f"{where} has no {listed(missing)}")
    for key, item in value.items():
        fields[key](item, f"{where}{joint}{key}")


MAX_STEPS = 64  # components of a pipeline
MAX_NESTED = 8  # sequences inside sequences
MAX_WORD_LENGTH = 1000  # max_input_chars_per_word: the library takes its cube
MAX_AFFIX = 64  # characters of a prefix or suffix
MAX_CONTENT = 1000  # characters that replace others
MAX_TEMPLATE = 64  # pieces of a template, and special tokens that it defines
MAX_STRIP = 64  # characters that a decoder takes off
MAX_CHUNK = 10_000  # characters
MAX_NUMBER = (1 << 31) - 1  # the largest id, length or segment
MAX_REPLACEMENT = 64  # bytes in the place of a character; Unicode's longest have 33

an_id, a_token = whole(0, MAX_NUMBER), text(MAX_TOKEN_LENGTH)


def pattern(value: Any, where: str, empty: bool = True) -> None:
    """{"String": text} or {"Regex": text}."""
    if not isinstance(value, dict) or len(value) != 1 or not {"String", "Regex"} & set(value):
        raise UserError(f"{where} is {value_shown(value)}, not an object with String or Regex")
    kind, inside = next(iter(value.items()))
    text(MAX_TOKEN_LENGTH, 1)(inside, f"{where}.{kind}")
    if kind == "Regex":
        check_pattern(inside, where, empty)


replaced = partial(pattern, empty=False)  # the library cannot put anything in the place of nothing


def check_charsmap(charsmap: bytes, where: str) -> None:
    """Refuse a character map whose trie points outside itself: the library would panic on some later text."""
    # Layout: the trie's size in bytes, the trie as a Darts double array of 32-bit units, then texts that end in NUL.
    size = int.from_bytes(charsmap[:4], "little")
    texts = len(charsmap) - 4 - size
    if len(charsmap) < 4 or size % 1024 or size == 0 or texts <= 0 or charsmap[-1]:
        raise UserError(f"{where}: the precompiled character map is damaged")
    units, letters = np.frombuffer(charsmap, "<u4", size // 4, 4), np.frombuffer(charsmap, "u1", texts, 4 + size)
    leaf, has_leaf = units >> 31 == 1, (units >> 8) & 1 == 1
    leaf[0] = False  # the root is followed whatever it says
    offset = (units >> 10) << ((units & 512) >> 6)
    target = np.where(leaf, 0, np.arange(len(units), dtype=np.uint32) ^ offset)
    outside = bool((target >= len(units)).any())
    if not outside:
        # Starts of texts; none may begin outside them or inside a character.
        starts = units[target[has_leaf & ~leaf]] & 0x7FFFFFFF
        outside = bool((starts >= texts).any()) or bool((letters[starts] & 0xC0 == 0x80).any())
    if outside:
        raise UserError(f"{where}: the precompiled character map points outside itself")
    longest = int(np.diff(np.flatnonzero(letters == 0), prepend=-1).max()) - 1
    if longest > MAX_REPLACEMENT:
        many = f"{longest} bytes for a character, over {MAX_REPLACEMENT}"
        raise UserError(f"{where}: the precompiled character map puts {many}")
    try:
        charsmap[4 + size :].decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{where}: the precompiled character map holds text that is not UTF-8") from None


def charsmap(value: Any, where: str) -> None:
    """SentencePiece's map of characters, in base64."""
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise UserError(f"{where}: the precompiled character map is not base64") from None
    check_charsmap(data, where)


def named_id(value: Any, where: str) -> None:
    """[token, id]."""
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"{where} is {value_shown(value)}, not a token with its id")
    a_token(value[0], where)
    an_id(value[1], where)


def template(value: Any, where: str) -> None:
    """Special tokens around the texts: A alone, or A and B, each once."""
    few(value, where, MAX_TEMPLATE)
    for place, piece in enumerate(value):
        kind = next(iter(piece)) if isinstance(piece, dict) and len(piece) == 1 else None
        if kind not in ("Sequence", "SpecialToken"):
            raise UserError(f"{where}.{place} is neither a Sequence nor a SpecialToken")
        name = choice("A", "B") if kind == "Sequence" else text(MAX_TOKEN_LENGTH, 1)
        check_fields(piece[kind], f"{where}.{place}.{kind}", {"id": name, "type_id": whole(0, 255)})
    seen = [piece["Sequence"]["id"] for piece in value if "Sequence" in piece]
    texts = ["A", "B"] if where.endswith("pair") else ["A"]
    if sorted(seen) != texts:
        raise UserError(f"{where} holds the texts {listed(seen) or 'none'}, not {' and '.join(texts)} once")


def template_tokens(value: Any, where: str) -> None:
    """The special tokens of a template by name."""
    an_object(value, where)
    few(list(value), where, MAX_TEMPLATE)
    fields: dict[str, Check] = {
        "id": text(MAX_TOKEN_LENGTH, 1),
        "ids": partial(few, max_entries=MAX_TEMPLATE, inner=an_id),
        "tokens": partial(few, max_entries=MAX_TEMPLATE, inner=a_token),
    }
    for name, token in value.items():
        here = f"{where}.{shown(name)}"
        check_fields(token, here, fields)
        if len(token["ids"]) != len(token["tokens"]):
            raise UserError(f"{here} has {len(token['ids'])} ids for {len(token['tokens'])} tokens")


AFFIX, DIRECTION = text(MAX_AFFIX), choice("Left", "Right")
BEHAVIOR = choice("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
BYTE_LEVEL: dict[str, Check] = {"add_prefix_space": flag, "trim_offsets": flag, "use_regex": flag}
METASPACE: dict[str, Check] = {
    "replacement": text(1, 1),
    "prepend_scheme": choice("first", "never", "always"),
    "str_rep": AFFIX,
    **dict.fromkeys(("add_prefix_space", "split"), flag),
}
REPLACE: dict[str, Check] = {"pattern": replaced, "content": text(MAX_CONTENT)}
ENDS: dict[str, Check] = {"sep": named_id, "cls": named_id}

# The field of each stage's Sequence that holds its steps.
SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
SEQUENCES["decoder"] = "decoders"
# Stage -> its components with their fields.
COMPONENTS: dict[str, dict[str, dict[str, Check]]] = {
    "normalizer": {
        "BertNormalizer": {
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), flag),
            "strip_accents": none_or(flag),
        },
        "Strip": {"strip_left": flag, "strip_right": flag},
        "Replace": REPLACE,
        "Prepend": {"prepend": text(MAX_AFFIX, 1)},
        "Precompiled": {"precompiled_charsmap": charsmap},
        **dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "ByteLevel"), {}),
    },
    "pre_tokenizer": {
        "ByteLevel": BYTE_LEVEL,
        "Metaspace": METASPACE,
        "Split": {"pattern": pattern, "behavior": BEHAVIOR, "invert": flag},
        "Punctuation": {"behavior": BEHAVIOR},
        "Digits": {"individual_digits": flag},
        "CharDelimiterSplit": {"delimiter": text(1, 1)},
        "FixedLength": {"length": whole(1, MAX_CHUNK)},
        **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"), {}),
    },
    "post_processor": {
        "BertProcessing": ENDS,
        "RobertaProcessing": {**ENDS, "trim_offsets": flag, "add_prefix_space": flag},
        "ByteLevel": BYTE_LEVEL,
        "TemplateProcessing": {"single": template, "pair": template, "special_tokens": template_tokens},
    },
    "decoder": {
        "BPEDecoder": {"suffix": AFFIX},
        "ByteLevel": BYTE_LEVEL,
        "WordPiece": {"prefix": AFFIX, "cleanup": flag},
        "Metaspace": METASPACE,
        "CTC": {"pad_token": AFFIX, "word_delimiter_token": AFFIX, "cleanup": flag},
        "Replace": REPLACE,
        # At the end the library takes characters off that are not there, and panics.
        "Strip": {"content": text(1, 1), "start": whole(0, MAX_STRIP), "stop": whole(0, 0)},
        **dict.fromkeys(("Fuse", "ByteFallback"), {}),
    },
}
OPTIONAL = ("use_regex", "add_prefix_space", "prepend_scheme", "split", "str_rep", "behavior", "strip_accents")
REQUIRED = {"ByteLevel": ("add_prefix_space",), "RobertaProcessing": ("add_prefix_space",), "Split": ("behavior",)}

MODELS: dict[str, dict[str, Check]] = {
    "BPE": {
        "dropout": none_or(number(0, 1)),
        "unk_token": none_or(a_token),
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), none_or(AFFIX)),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), flag),
        **dict.fromkeys(("vocab", "merges"), anything),
    },
    "WordPiece": {
        "unk_token": a_token,
        "continuing_subword_prefix": AFFIX,
        "max_input_chars_per_word": whole(0, MAX_WORD_LENGTH),
        "vocab": anything,
    },
    "WordLevel": {"unk_token": a_token, "vocab": anything},
    "Unigram": {"unk_id": none_or(whole(0, MAX_TOKENS)), "byte_fallback": flag, "vocab": anything},
}
MODEL_OPTIONAL = {"BPE": MODELS["BPE"].keys() - {"vocab", "merges"}, "Unigram": ("unk_id", "byte_fallback")}
ADDED = {
    "id": an_id,
    "content": text(MAX_TOKEN_LENGTH, 1),
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), flag),
}
TRUNCATION = {
    **dict.fromkeys(("max_length", "stride"), an_id),
    "strategy": choice("LongestFirst", "OnlyFirst", "OnlySecond"),
    "direction": DIRECTION,
}


def padding_strategy(value: Any, where: str) -> None:
    """BatchLongest, or a fixed length."""
    if value != "BatchLongest":
        check_fields(value, where, {"Fixed": an_id})


PADDING = {
    "strategy": padding_strategy,
    "direction": DIRECTION,
    "pad_to_multiple_of": none_or(an_id),
    **dict.fromkeys(("pad_id", "pad_type_id"), an_id),
    "pad_token": a_token,
}


def check_pipeline(data: dict[str, Any], file: str) -> None:
    """Refuse a tokenizer.json with anything in it that the tables do not have; the type of its model is filled in."""
    parts: dict[str, Check] = {
        "version": choice("1.0"),
        "truncation": none_or(partial(check_fields, fields=TRUNCATION, optional=TRUNCATION)),
        "padding": none_or(partial(check_fields, fields=PADDING, optional=PADDING)),
        "added_tokens": none_or(partial(few, max_entries=MAX_ADDED_TOKENS, inner=partial(check_fields, fields=ADDED))),
        **dict.fromkeys(COMPONENTS, anything),
        "model": anything,
    }
    check_fields(data, file, parts, parts, joint=": ")
    growth = 1
    for stage in COMPONENTS:
        steps = list(_steps(stage, data.get(stage), f"{file}: {stage}"))
        growth = 1 if stage == "decoder" else growth
        for step, where in steps:
            growth *= growth_of(stage, step)
            if len(steps) > MAX_STEPS or growth > MAX_GROWTH:
                long = f"{len(steps)} steps; at most {MAX_STEPS} are run"
                grown = f"one character may become {growth}; at most {MAX_GROWTH} are run"
                raise UserError(f"{where}: {long if len(steps) > MAX_STEPS else grown}")
        around = [where for step, where in steps if stage == "post_processor" and step["type"] != "ByteLevel"]
        if len(around) > 1:
            raise UserError(f"{around[1]}: puts special tokens around a text a second time")
    check_model(data.get("model"), f"{file}: model")


def _steps(stage: str, value: Any, where: str, depth: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """The checked components of a stage in their order, those inside a Sequence one by one."""
    if value is None and depth == 0:
        return
    an_object(value, where)
    inside, components, kind = SEQUENCES[stage], COMPONENTS[stage], value.get("type")
    if kind == "Sequence":
        if depth >= MAX_NESTED:
            raise UserError(f"{where}: more than {MAX_NESTED} sequences inside each other")
        check_fields(value, where, {"type": anything, inside: anything})
        few(value[inside], f"{where}.{inside}", MAX_STEPS)
        for place, step in enumerate(value[inside]):
            yield from _steps(stage, step, f"{where}.{inside}.{place}", depth + 1)
        return
    if not isinstance(kind, str) or kind not in components:
        near = did_you_mean(kind, components) if isinstance(kind, str) else ""
        raise UserError(f"{where}: type {value_shown(kind)} is not one of {listed(components, 20)}, Sequence{near}")
    optional = tuple(name for name in OPTIONAL if name not in REQUIRED.get(kind, ()))
    check_fields(value, where, {"type": anything, **components[kind]}, optional)
    if kind == "TemplateProcessing":
        tokens = [piece["SpecialToken"] for piece in (*value["single"], *value["pair"]) if "SpecialToken" in piece]
        unknown = [token["id"] for token in tokens if token["id"] not in value["special_tokens"]]
        if unknown:
            raise UserError(f"{where}: its template uses {listed(map(shown, unknown))}, which it does not define")
    yield value, where


def check_model(model: Any, where: str) -> None:
    """The model with its vocabulary; old files do not say of which type it is."""
    an_object(model, where)
    usual = "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"
    usual = "Unigram" if isinstance(model.get("vocab"), list) else usual
    kind = model.setdefault("type", "BPE" if "merges" in model else usual)
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(f"{where}: type {value_shown(kind)} is not one of {listed(MODELS)}")
    check_fields(model, where, {"type": anything, **MODELS[kind]}, MODEL_OPTIONAL.get(kind, ()))
    vocabulary = model["vocab"]
    if kind == "Unigram":
        few(vocabulary, f"{where}.vocab", MAX_TOKENS)
        score = number(-MAX_SCORE, MAX_SCORE)
        if not _are_scored(vocabulary):
            for place, piece in enumerate(vocabulary):
                if not isinstance(piece, list) or len(piece) != 2 or not isinstance(piece[0], str):
                    raise UserError(f"{where}.vocab.{place} is not a piece with its score")
                score(piece[1], f"{where}.vocab.{place}")
        names = [piece for piece, _ in vocabulary]
        check_tokens(names, f"{where}.vocab", what="pieces")
        check_pieces(names, f"{where}.vocab")
        unknown = model.get("unk_id")
        if unknown is None and not model.get("byte_fallback"):
            raise UserError(f"{where} has no unknown token (unk_id), so it cannot encode a character it does not know")
        if unknown is not None and unknown >= len(names):
            raise UserError(f"{where}.unk_id is {unknown}, but there are only {len(names)} pieces")
        return
    an_object(vocabulary, f"{where}.vocab")
    check_tokens(vocabulary, f"{where}.vocab")
    ids = vocabulary.values()
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > MAX_NUMBER):
        for token, place in vocabulary.items():
            an_id(place, f"{where}.vocab: the id of {shown(token)!r}")
    if kind != "BPE":
        return
    prefix = model.get("continuing_subword_prefix") or ""
    few(model["merges"], f"{where}.merges", MAX_MERGES)
    if not prefix and _are_pairs(model["merges"]):
        return
    for place, merge in enumerate(model["merges"]):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(token, str) for token in pair):
            raise UserError(f"{where}.merges.{place} is not two tokens")
        # The library cuts as many bytes off the right one, wherever that ends, and crashes.
        if prefix and not pair[1].startswith(prefix):
            raise UserError(f"{where}.merges.{place}: {shown(pair[1])!r} does not begin with {prefix!r}, as it must")


# Both say of a whole list at once, at the speed of a few calls, that there is nothing to look for in it one by one.


def _are_scored(vocabulary: Sequence[Any]) -> bool:
    """Whether each entry is a piece and its score."""
    if set(map(type, vocabulary)) != {list} or set(map(len, vocabulary)) != {2}:
        return False
    scores = [score for _, score in vocabulary]
    if set(map(type, map(itemgetter(0), vocabulary))) != {str} or not set(map(type, scores)) <= {int, float}:
        return False
    return min(scores) >= -MAX_SCORE and max(scores) <= MAX_SCORE


def _are_pairs(merges: Sequence[Any]) -> bool:
    """Whether each entry is two tokens: in one text with a space between, or in a list."""
    if set(map(type, merges)) == {str}:
        return set(map(methodcaller("count", " "), merges)) == {1}
    return (
        set(map(type, merges)) == {list}
        and set(map(len, merges)) == {2}
        and set(map(type, chain.from_iterable(merges))) == {str}
    )
