"""Checkpoints that a full disk or a kill cannot destroy: the new one is written beside
the old one, and takes its place when it is whole."""

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import torch


def save_beside(state: Any, path: Path) -> None:
    """Write a checkpoint, a file, with torch.save."""
    part = _part(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(state, part)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


@contextmanager
def folder_beside(path: Path, is_main: bool = True) -> Iterator[Path]:
    """Give the folder to write a checkpoint into, which then becomes `path`.

    All processes of a training write into it; they are to wait for each other before
    and after, since the main one makes and renames it.
    """
    part, old = _part(path), _old(path)
    if is_main:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    yield part
    if is_main:
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        part.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def resumable(path: Path) -> Path:
    """Return the checkpoint that is there: of a run that was killed as it renamed its
    folder, the one before."""
    return _old(path) if _old(path).exists() and not path.exists() else path


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _old(path: Path) -> Path:
    return path.with_name(path.name + ".old")
