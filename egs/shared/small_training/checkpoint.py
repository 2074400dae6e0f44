"""Checkpoints that are there whole or not at all."""

from pathlib import Path
from typing import Any, Mapping

import torch


def save_whole(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint beside its place and move it there.

    A training that is killed while it writes leaves the checkpoint before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    torch.save(dict(state), part)
    part.replace(path)
