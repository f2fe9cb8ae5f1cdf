"""What the name of a model stands for: a family, a published size, or a folder; without torch, to be quick."""

from __future__ import annotations

import re
from pathlib import Path

from weft.errors import UserError, hint, shown
from weft.files import reason
from weft.plugins import FAMILIES, sources

# Families and their published sizes, as `families.FAMILIES` has them.
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "bert": ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"),
    "roberta": ("distilroberta-base", "roberta-base", "roberta-large"),
    "xlm-roberta": ("xlm-roberta-base", "xlm-roberta-large"),
    "albert": ("albert-base-v2", "albert-large-v2", "albert-xlarge-v2", "albert-xxlarge-v2"),
    "distilbert": ("distilbert-base", "distilbert-base-cased", "distilbert-base-multilingual-cased"),
    "deberta": (
        *("deberta-v3-xsmall", "deberta-v3-small", "deberta-v3-base", "deberta-v3-large", "mdeberta-v3-base"),
        *("deberta-v2-xlarge", "deberta-v2-xxlarge"),
    ),
    "xlm": ("xlm-mlm-ende-1024", "xlm-mlm-tlm-xnli15-1024", "xlm-mlm-en-2048", "xlm-mlm-100-1280"),
    "xlm-clm": ("xlm-clm-ende-1024",),
    "xlnet": ("xlnet-base-cased", "xlnet-large-cased"),
    "openai-gpt": ("openai-gpt",),
    "gpt2": (
        *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl"),
        *("gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b"),
    ),
    "transformer": ("transformer-base", "transformer-big"),
    "marian": ("opus-mt",),
    "seq2seq": ("seq2seq-plain", "seq2seq-bahdanau", "seq2seq-luong"),
    "conv-seq2seq": ("conv-seq2seq-summaries", "conv-seq2seq-romanian"),
    "vec2seq": ("show-and-tell",),
    "t5": (
        *("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"),
        *("t5-v1.1-small", "t5-v1.1-base", "t5-v1.1-large", "t5-v1.1-xl", "t5-v1.1-xxl"),
    ),
    "rnn": (),
    "lstm": ("lstm-zaremba-small", "lstm-zaremba-medium", "lstm-zaremba-large"),
    "gru": (),
    "transformer-xl": ("transfo-xl-wt103",),
    "elmo": ("elmo-small", "elmo-medium", "elmo-original"),
    "ngram": (),
    "vectors": (),
    "mlp": (),
    "cnn": (),
    "forecaster": (),
}


def check_name(name: str, size: str | None = None) -> None:
    """Refuse what is neither a family nor a published size; a size has no size of its own."""
    family = next((family for family, sizes in SIZE_NAMES.items() if name in sizes), None)
    if name in SIZE_NAMES or (name in sources(FAMILIES) if family is None else size is None):
        return
    if family is not None:
        raise UserError(f"{name} is a size already; ask for its family, {family}, to choose another")
    known = [*SIZE_NAMES, *sources(FAMILIES), *(size for sizes in SIZE_NAMES.values() for size in sizes)]
    raise UserError(f"no model is called {name!r}{hint(name, known)} (see: weft models)")


def elmo_files(folder: Path) -> tuple[Path, Path] | None:
    """The options and the HDF5 weights of a folder with ELMo as published; None: the folder has neither."""
    options, weights = (sorted(folder.glob(pattern)) for pattern in ("*options.json", "*.hdf5"))
    if not weights:
        return None
    if len(options) != 1 or len(weights) != 1:
        counts = f"{len(options)} and {len(weights)}"
        raise UserError(f"{folder}: a published ELMo is one options.json and one .hdf5 file; this folder has {counts}")
    return options[0], weights[0]


def has_model(folder: Path) -> bool:
    """Whether a folder holds a model: its config, or ELMo's own files."""
    return (folder / "config.json").is_file() or (folder.is_dir() and elmo_files(folder) is not None)


def find_folder(name: str, online: bool = False) -> Path:
    """The folder that a name stands for: a path, then the local Hugging Face cache, then a download if asked for."""
    try:
        path = Path(name).expanduser()
        if name and path.is_dir():
            return path
        if name and path.is_file():
            raise UserError(f"{shown(name)!r} is a file; give the model folder that it is in")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{shown(name)!r} is not a model folder: {reason(error)}") from None
    if name in SIZE_NAMES or name in sources(FAMILIES):
        raise UserError(f"{name!r} is a family, not a model folder; its sizes are listed by: weft models")
    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)?", name):
        raise UserError(f"{name!r} is not a model folder: there is no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.bpe", "1_Pooling/config.json"]
    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=files))
        if not online or any(cached.glob("*.safetensors")):  # others may have cached the config alone
            return cached
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        if not online:
            where = "neither a folder nor in the local Hugging Face cache"
            raise UserError(f"{name!r} is {where}; to download it, pass --online (online=True)") from None
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UserError(f"{name!r} could not be downloaded: {str(error).splitlines()[0]}") from None
