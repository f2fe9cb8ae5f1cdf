"""Run by another Python, which has transformers 4.57.1: the last one with Transformer-XL among its models.

`python older.py FOLDER`: FOLDER/request.json has cases by name; each gets FOLDER/NAME/outputs.safetensors. A case has a
config and gets a model with random weights, or names the folder of a model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.models.deprecated import transfo_xl

as_type = torch.Tensor.type_as


def mended(self: torch.Tensor, other: Any = None, dtype: Any = None) -> torch.Tensor:
    """This version hands `type_as` a dtype, which it has never taken, so that no model of the family runs at all."""
    return as_type(self, other) if dtype is None else self.to(dtype)


torch.Tensor.type_as = mended
# Masked scores are rounded to float32 there, and the mask of float64 is too large a number for that.
torch.Tensor.float = lambda self: self


def made(case: dict[str, Any], folder: Path) -> Any:
    """A model with random weights, and a folder of it, every tensor under each of its names."""
    config = transfo_xl.TransfoXLConfig(**case["config"])
    torch.manual_seed(0)
    model = getattr(transfo_xl, case["architecture"])(config).to(getattr(torch, case["dtype"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, case["scale"])
    config.architectures = [case["architecture"]]
    config.save_pretrained(folder)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return model


def outputs_of(model: Any, tokens: list[list[list[int]]]) -> dict[str, torch.Tensor]:
    """What a model makes of segments that follow each other."""
    outputs, mems = {}, None
    for number, segment in enumerate(tokens):
        out = model(torch.tensor(segment), mems=mems, output_hidden_states=True)
        mems = out.mems
        outputs[f"{number}.output"] = out.last_hidden_state if "last_hidden_state" in out else out.logits
        outputs |= {f"{number}.hidden.{layer}": hidden for layer, hidden in enumerate(out.hidden_states)}
        outputs |= {f"{number}.memory.{layer}": memory.transpose(0, 1) for layer, memory in enumerate(mems)}
    return {name: tensor.contiguous() for name, tensor in outputs.items()}


def main(folder: Path) -> None:
    for name, case in json.loads((folder / "request.json").read_text()).items():
        (folder / name).mkdir(exist_ok=True)
        if "folder" in case:
            # Some of its parameters are always made in float32, so a model of float64 can only be converted.
            model = getattr(transfo_xl, case["architecture"]).from_pretrained(case["folder"])
        else:
            model = made(case, folder / name)
        with torch.no_grad():
            save_file(outputs_of(model.eval(), case["tokens"]), folder / name / "outputs.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
