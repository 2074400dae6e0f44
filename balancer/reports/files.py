"""Files that somebody else may have written: read, and never run.

A file that torch.save wrote is a pickle, which can run any program when it is opened.
People share experiment folders, so each is opened for plain data alone.
"""

import datetime
import os
import pickle
import re
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import torch
import yaml
from torch import Tensor


class ReportError(ValueError):
    """A file or a folder that cannot be read, or that has nothing to show."""


def read_yaml(path: Path) -> Dict[str, Any]:
    """Return the keys of a YAML file.

    Raises:
        ReportError: the file is missing, is no YAML, or has no keys.
    """
    if path.is_dir():
        raise ReportError(f"{path} is a folder: name the YAML file in it")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ReportError(f"{path} is no YAML: line {line}: {error.problem}") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ReportError(f"{path} is no YAML that can be read: {reason}") from error
    if not isinstance(content, dict) or not content:
        raise ReportError(f"{path} is no configuration: it has no keys")
    return content


def read_checkpoint(path: Path) -> Dict[str, Any]:
    """Return what ESPnet saved in checkpoint.pth, on the CPU.

    Raises:
        ReportError: the file is missing or cut off, or it holds more than numbers.
    """
    with torch.serialization.safe_globals(_reported()):
        return _load(path)


def read_weights(path: Path) -> Dict[str, Tensor]:
    """Return the tensors by name that a model's file holds, on the CPU.

    Raises:
        ReportError: the file is missing or cut off, or it holds more than tensors.
    """
    with torch.serialization.safe_globals(_reported()):
        weights = _load(path)
    if {"model", "reporter"} <= set(weights):
        raise ReportError(
            f"{path} is the checkpoint of a whole training: give the file of a model, "
            "such as latest.pth beside it"
        )
    others = [key for key, value in weights.items() if not isinstance(value, Tensor)]
    if others or not weights:
        found = f"{others[0]!r} is no tensor" if others else "it is empty"
        raise ReportError(f"{path} is no model's file: {found}")
    return weights


@contextmanager
def plain_data_only() -> Iterator[None]:
    """Let torch.load read plain data alone, also where its caller asked for more.

    ESPnet loads a model's file with `weights_only=False`.
    """
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _load(path: Path) -> Dict[str, Any]:
    if not path.is_file():
        raise ReportError(f"{path} {'is a folder' if path.is_dir() else 'is missing'}")
    # Mapped, since nobody needs the tensors of a checkpoint. A file of a PyTorch before
    # 1.6 is no zip archive and cannot be.
    mapped = zipfile.is_zipfile(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript, which is refused
            loaded = torch.load(path, "cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ReportError(f"{path} is refused: {_why_refused(error)}") from error
    except (OSError, RuntimeError, ValueError, EOFError, LookupError) as error:
        raise ReportError(
            f"{path} cannot be read: it is cut off, or torch.save did not write it"
        ) from error
    if not isinstance(loaded, dict):
        raise ReportError(f"{path} holds no names: it is not what a training saves")
    return loaded


def _why_refused(error: pickle.UnpicklingError) -> str:
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return "it is no file that a training saves"
    return (
        f"it holds {found[1]}, which may run a program when the file is opened. A "
        "training saves numbers and tensors alone"
    )


def _reported() -> List[Any]:
    """Return what ESPnet's reporter holds beside plain numbers."""
    kinds: List[Any] = [type(np.dtype(code)) for code in ("f8", "f4", "i8", "i4", "?")]
    return [datetime.timedelta, np.dtype, *_numpy_scalars(), *kinds]


def _numpy_scalars() -> List[Callable[..., Any]]:
    """Return what restores a NumPy scalar, by its names in NumPy 1 and 2."""
    restore: Any = np.float64().__reduce__()[0]
    found = []
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):

        def scalar(*args: Any) -> Any:
            return restore(*args)

        scalar.__module__, scalar.__qualname__ = module, "scalar"
        found.append(scalar)
    return found
