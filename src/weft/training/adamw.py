"""AdamW that starts at once: torch's own imports its compiler first, which takes seconds, even where none is used."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """torch's AdamW without the decorators that import `torch._dynamo`; only a compiled step needs them."""

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    step: Any = torch.no_grad()(unwrap(torch.optim.AdamW.step))
