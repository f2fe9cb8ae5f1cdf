"""The tokenizer of a published folder: which of its files to read, what stands beside it, and whether it is sound."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from weft.errors import UserError, listed, shown
from weft.files import MEGABYTE, parse_json, read_bytes, read_json, read_text
from weft.text.tokenizers import sentencepiece, tokenizer
from weft.text.tokenizers.checked import Check
from weft.text.tokenizers.japanese import JapaneseTokenizer, is_japanese, read_japanese
from weft.text.tokenizers.moses import SETTINGS, MosesSplitter, MosesTokenizer, read_moses
from weft.text.tokenizers.schema import (
    MAX_ADDED_TOKENS,
    MAX_MERGES,
    MAX_TOKENS,
    PADDING,
    TRUNCATION,
    check_pipeline,
    check_tokens,
)
from weft.text.tokenizers.sentencepiece import SOURCE, TARGET, VocabularyPiece, is_marian, linear_spaces, read_sides
from weft.text.tokenizers.tokenizer import AROUND, Roles, Tokenizer

# Families whose files have these names but another way to cut words or to number pieces: refused, not read wrongly.
OTHER_BPE = ("clip", "ctrl", "flaubert", "biogpt", "fsmt", "phobert", "bertweet", "herbert")
OTHER_PIECES = ("camembert", "mbart", "mbart50", "nllb", "m2m100", "marian", "barthez", "xglm", "plbart", "pegasus")
ROBERTAS = ("roberta", "bart", "longformer", "led")


def read_lines(file: Path) -> dict[str, int]:
    """BERT's vocab.txt: one token a line, its number is its id."""
    text = read_text(file).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    lines = text.count("\n") + 1
    if lines > MAX_TOKENS:
        raise UserError(f"{file}: {lines} tokens; at most {MAX_TOKENS} are read")
    tokens = text.split("\n")
    check_tokens(tokens, str(file))
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if vocabulary.setdefault(token, number) != number:
            raise UserError(f"{file} line {number + 1}: {shown(token)!r} is already in line {vocabulary[token] + 1}")
    return vocabulary


def read_wordpiece(file: Path, settings: dict[str, Any]) -> Library:
    """BERT's vocabulary: words are split at spaces and marks."""
    vocabulary = read_lines(file)
    unknown = tokenizer.token_name(settings.get("unk_token"), "unk_token", file) or "[UNK]"
    library = Library(models.WordPiece(vocabulary, unk_token=unknown))
    library.normalizer = normalizers.BertNormalizer(
        lowercase=bool(_flag(settings, "do_lower_case", True, file)),
        strip_accents=_flag(settings, "strip_accents", None, file),
        handle_chinese_chars=bool(_flag(settings, "tokenize_chinese_chars", True, file)),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    _surround_bert(library, settings, file)
    return library


def _surround_bert(library: Library, settings: dict[str, Any], file: Path) -> Roles:
    """Add BERT's special tokens, and put them around a text."""
    roles = _add_tokens(library, settings, file, mask_takes_space=False)
    if roles.start is None or roles.separator is None:
        raise UserError(f"{file}: has no [CLS] or no [SEP]; other names for them belong in tokenizer_config.json")
    tokenizer.surround(library, roles, "bert")
    return roles


def read_japanese_folder(file: Path, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a Japanese BERT, which needs a package of its own."""
    if file.suffix != ".txt":
        raise UserError(f"{file}: a Japanese tokenizer is read from vocab.txt alone")
    with tokenizer.guarded(f"{file}: not a usable tokenizer"):
        library, splitter = read_japanese(file, settings, read_lines(file))
        roles = _surround_bert(library, settings, file)
        tokenizer.check(library, file)
    return JapaneseTokenizer(library, roles, settings, splitter)


def read_moses_folder(file: Path, merges_file: Path, settings: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a published XLM, which needs a package of its own."""
    with tokenizer.guarded(f"{file}: not a usable tokenizer"):
        lowercase = bool(_flag(settings, "do_lowercase_and_remove_accent", True, file))
        splitter = MosesSplitter("en", lowercase, file)
        library, size = read_moses(file, merges_file)
        # Published settings name </s> as the first token of a text, but it is <s>.
        named = {**SETTINGS, **{key: value for key, value in settings.items() if key != "cls_token"}}
        roles = _add_tokens(library, named, file, mask_takes_space=False)
        tokenizer.surround(library, roles, "xlm")
        tokenizer.check(library, file)
    return MosesTokenizer(library, roles, settings, splitter, size)


def read_bpe(file: Path, merges_file: Path, settings: dict[str, Any], family: str) -> Library:
    """GPT's vocab.json and merges.txt: byte-level for GPT-2 and its like, words that end in </w> for the first GPT."""
    if family in OTHER_BPE:
        raise UserError(f"{file}: {family} cuts words in its own way; Weft needs its tokenizer.json")
    vocabulary = tokenizer.read_ids(file)
    text, merges = read_text(merges_file).replace("\r\n", "\n"), list[tuple[str, str]]()
    if (lines := text.count("\n")) > MAX_MERGES:
        raise UserError(f"{merges_file}: {lines} lines; at most {MAX_MERGES} merges are read")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise UserError(f"{merges_file} line {number}: {shown(line)!r} is not two tokens with a space between them")
        for token in (left, right, left + right):
            if token not in vocabulary:
                raise UserError(f"{merges_file} line {number}: {shown(token)!r} is not in {file.name}")
        merges.append((left, right))
    if family == "openaigpt":
        unknown = tokenizer.token_name(settings.get("unk_token"), "unk_token", file) or "<unk>"
        model = models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>")
        library = Library(model)
        library.normalizer = normalizers.BertNormalizer(lowercase=True)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.BPEDecoder(suffix="</w>")
        _add_tokens(library, settings, file, mask_takes_space=False)
        return library
    library = Library(models.BPE(vocabulary, merges))
    prefix = bool(_flag(settings, "add_prefix_space", False, file))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    around = family in ROBERTAS or family == "deberta"
    roles = _add_tokens(library, settings, file, mask_takes_space=around)
    if family == "deberta":
        tokenizer.surround(library, roles, family)
    elif around and roles.start is not None and roles.separator is not None:
        start, separator = tokenizer.numbered(library, roles.start), tokenizer.numbered(library, roles.separator)
        library.post_processor = processors.RobertaProcessing(separator, start, True, prefix)
    elif _flag(settings, "add_bos_token", False, file) and roles.start is not None:
        template, special = [f"{roles.start}:0", "$A:0"], [tokenizer.numbered(library, roles.start)]
        pair = [*template, f"{roles.start}:1", "$B:1"]
        library.post_processor = processors.TemplateProcessing(template, pair, special)
    return library


def read_pieces(file: Path, settings: dict[str, Any], family: str) -> Library:
    """A SentencePiece model with what its family adds: sentinels (T5), numbers (XLM-R), a mask, small letters."""
    if family in OTHER_PIECES:
        raise UserError(f"{file}: {family} numbers its pieces in its own way; Weft needs its tokenizer.json")
    model = sentencepiece.parse(read_bytes(file, sentencepiece.MAX_FILE_BYTES), str(file))
    before: list[normalizers.Normalizer] = []
    if family == "xlmroberta":  # fairseq's order of the special tokens, and one more at the end
        first = [VocabularyPiece(name, sentencepiece.CONTROL) for name in ("<s>", "<pad>", "</s>")]
        first.append(VocabularyPiece("<unk>", sentencepiece.UNKNOWN))
        model = replace(model, pieces=[*first, *model.pieces[3:], VocabularyPiece("<mask>", sentencepiece.CONTROL)])
    elif family in ("albert", "xlnet"):
        before = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not _flag(settings, "keep_accents", False, file):
            before += [normalizers.NFKD(), normalizers.StripAccents()]
        if _flag(settings, "do_lower_case", family == "albert", file):
            before.append(normalizers.Lowercase())
    elif family == "debertav2" and _flag(settings, "do_lower_case", False, file):
        before = [normalizers.Lowercase()]
    apart = family == "debertav2" and bool(_flag(settings, "split_by_punct", False, file))
    library = sentencepiece.build(model, str(file), before, apart)
    listed = "added_tokens_decoder" in settings or (file.parent / "added_tokens.json").is_file()
    extra = settings.get("extra_ids", 100 if family == "t5" and not listed else 0)
    if type(extra) is not int or not 0 <= extra <= 10_000:
        raise UserError(f"{file}: extra_ids in its settings is {shown(str(extra))}, not a number from 0 to 10000")
    if not listed:  # sentinels count down, so that <extra_id_0> is the last token
        names = [f"<extra_id_{number}>" for number in reversed(range(extra))] + ["[MASK]"] * (family == "debertav2")
        library.add_special_tokens(names)
    roles = _add_tokens(library, settings, file, mask_takes_space=True)
    if family in AROUND:
        tokenizer.surround(library, roles, family)
    return library


def _add_tokens(library: Library, settings: dict[str, Any], file: Path, mask_takes_space: bool) -> Roles:
    """Add what added_tokens.json and the settings list, at the ids they say; mark the roles as special tokens."""
    listed: dict[str, tuple[int, AddedToken]] = {}
    extra = file.parent / "added_tokens.json"
    key = "additional_special_tokens"
    given = settings.get(key) if isinstance(settings.get(key), list) else []
    more = {tokenizer.token_name(token, key, file) for token in given or ()}
    for name, number in (read_json(extra) if extra.is_file() else {}).items():
        listed[name] = (number, AddedToken(name, normalized=name not in more, special=name in more))
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict) or not all(k.isdecimal() and isinstance(v, dict) for k, v in decoder.items()):
        raise UserError(f"{file.parent / 'tokenizer_config.json'}: added_tokens_decoder does not map ids to objects")
    for key, token in decoder.items():
        name = tokenizer.token_name(token, "added_tokens_decoder", file) or ""
        flags = {flag: bool(token.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        listed[name] = (int(key), AddedToken(name, **flags))
    if not all(name and type(number) is int for name, (number, _) in listed.items()):
        raise UserError(f"{extra if extra.is_file() else file}: added tokens are not names with a number each")
    check_tokens([*listed, *filter(None, more)], str(file), MAX_ADDED_TOKENS, "added tokens")
    size = library.get_vocab_size(with_added_tokens=True)
    for name, (number, _) in sorted(listed.items(), key=lambda item: item[1][0]):
        have = library.token_to_id(name)
        size, have = (size + 1, size) if have is None else (size, have)
        if have != number:
            raise UserError(f"{file}: added token {shown(name)!r} cannot have the id {number}: it would be {have}")
    added = [token for _, token in sorted(listed.values(), key=lambda item: item[0])]
    tokenizer.check_added_tokens(added, library, str(file))
    library.add_tokens(added)
    roles = tokenizer.find_roles(settings, library, file)
    for name in dict.fromkeys(filter(None, (*vars(roles).values(), *sorted(filter(None, more))))):
        if name not in listed and library.token_to_id(name) is not None:
            takes_space = mask_takes_space and name == roles.mask
            library.add_tokens([AddedToken(name, special=True, normalized=False, lstrip=takes_space)])
    return roles


def _flag(settings: dict[str, Any], key: str, default: bool | None, where: Path) -> bool | None:
    value = settings.get(key)
    if value is None or isinstance(value, bool):
        return default if value is None else value
    raise UserError(f"{where}: {key} in its settings is {shown(str(value))}, neither true nor false")


SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
MAX_FILE_BYTES = 128 * MEGABYTE  # a tokenizer.json; the largest published ones have 35
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder, or in one vocabulary file; of Marian's two, that of what is read."""
    path = Path(path)
    if is_marian(path) or (path.name in (SOURCE, TARGET) and is_marian(path.parent)):
        return read_sides(path if path.is_dir() else path.parent)[path.name == TARGET]
    if not path.exists():
        raise UserError(f"{path}: not there")
    folder = path if path.is_dir() else path.parent
    file = vocabulary_file(path) if path.is_dir() else path
    if file is None:
        names = "tokenizer.json, vocab.txt, vocab.json with merges.txt, encoder.json with vocab.bpe, *.model, *.spm"
        raise UserError(f"{folder}: has no tokenizer: none of {names}")
    settings = tokenizer.settings_in(folder)
    if is_japanese(settings):
        return read_japanese_folder(folder / "vocab.txt" if path.is_dir() else file, settings)
    for first, second in PAIRS:
        file = folder / first if file.name == second else file
    if file.name in dict(PAIRS) and _family(folder, settings) == "xlm":
        return read_moses_folder(file, folder / dict(PAIRS)[file.name], settings)
    vocabulary: dict[str, int] | None = None
    with tokenizer.guarded(f"{file}: not a usable tokenizer"):
        if file.name in dict(PAIRS):
            library = read_bpe(file, folder / dict(PAIRS)[file.name], settings, _family(folder, settings))
        elif file.suffix == ".json":
            text = read_text(file, MAX_FILE_BYTES)
            if (check := Check(text)).passed():
                library = _without_limits(Library.from_str(text))
                return Tokenizer(library, tokenizer.find_roles(settings, library, folder), settings, True)
            library, vocabulary, unchanged = _read_whole(text, file)
        elif file.suffix == ".txt":
            library = read_wordpiece(file, settings)
        else:
            library = read_pieces(file, settings, _family(folder, settings))
        tokenizer.check(library, file, vocabulary)
    if vocabulary is not None and unchanged:
        check.record()
    whole = file.suffix == ".json" and file.name not in dict(PAIRS)
    return Tokenizer(library, tokenizer.find_roles(settings, library, folder), settings, whole)


def vocabulary_file(folder: Path) -> Path | None:
    """The file of a folder that its tokenizer is read from; None where there is none."""
    if is_marian(folder):
        return folder / SOURCE
    names = ["tokenizer.json", "vocab.txt", *(first for first, second in PAIRS if (folder / second).exists())]
    for name in (*names, *SENTENCEPIECE):
        if (folder / name).is_file():
            return folder / name
    models_here = sorted(folder.glob("*.spm"))
    if len(models_here) > 1:
        raise UserError(f"{folder}: holds {listed(file.name for file in models_here)}; load one of them by its name")
    return models_here[0] if models_here else None


def _family(folder: Path, settings: dict[str, Any]) -> str:
    """'gpt2', 'xlmroberta': the tokenizer's class, else the model's type, in small letters."""
    named = str(settings.get("tokenizer_class") or "")
    family = named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    if family in ("", "pretrained", "tokenizersbackend"):
        file = folder / "config.json"
        family = str(read_json(file).get("model_type") or "") if file.is_file() else ""
    return family.lower().replace("-", "").replace("_", "")


def _without_limits(library: Library) -> Library:
    library.no_truncation()
    library.no_padding()
    return library


def _read_whole(text: str, file: Path) -> tuple[Library, dict[str, int], bool]:
    """tokenizer.json, with what would cut, pad or vary the tokens taken out; its ids; whether nothing was."""
    data = parse_json(text, file)
    before = _settings_of(data)
    normalizer = data.get("normalizer")
    if isinstance(normalizer, dict) and isinstance(normalizer.get("normalizers"), list):
        normalizer["normalizers"] = linear_spaces(normalizer["normalizers"])
    check_pipeline(data, str(file))
    data["truncation"] = data["padding"] = None
    if "dropout" in data["model"]:
        data["model"]["dropout"] = None  # merges left out at random are for training, and make encoding a lottery
    added = data.get("added_tokens") or []
    if added:
        small = {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}
        bare = Library.from_str(json.dumps({"normalizer": data.get("normalizer"), "model": small}))
        flags = ("content", "normalized", "lstrip", "rstrip")
        tokens = [AddedToken(**{key: token[key] for key in flags}) for token in added]
        tokenizer.check_added_tokens(tokens, bare, str(file))
    # Writing a whole vocabulary again takes longer than anything else here, and most files need no change.
    unchanged = _settings_of(data) == before
    library = _without_limits(Library.from_str(text if unchanged else json.dumps(data)))
    for token in added:  # the library gives its own ids, in order, whatever the file says
        name, number = token["content"], token["id"]
        if library.token_to_id(name) != number:
            raise UserError(f"{file}: added token {shown(name)!r} cannot have the id {number}")
    entries = data["model"]["vocab"]
    ids = (
        entries
        if isinstance(entries, dict)
        else dict(zip(map(itemgetter(0), entries), range(len(entries)), strict=True))
    )
    return library, {**ids, **{token["content"]: token["id"] for token in added}}, unchanged


def _settings_of(data: dict[str, Any]) -> str:
    """All that a tokenizer.json says but its vocabulary, and how to cut and pad where that is said in full."""
    model = data.get("model")
    large = ("vocab", "merges")
    rest = {key: value for key, value in model.items() if key not in large} if isinstance(model, dict) else None
    taken_out = {"added_tokens": None}
    for key, fields in (("truncation", TRUNCATION), ("padding", PADDING)):
        value = data.get(key)
        taken_out |= {key: None} if isinstance(value, dict) and value.keys() == fields.keys() else {}
    return json.dumps({"truncation": None, "padding": None, **data, "model": rest, **taken_out})
