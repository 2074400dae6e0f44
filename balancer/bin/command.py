"""One way for every command to end: with a sentence, or with a traceback if asked for.

from balancer.bin.command import ending

with ending("train.py"):
    main()
"""

import argparse
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

from typeguard import TypeCheckError

EXIT_STATUS = 2  # argparse's own, for a wrong command line

PICTURES = (".png", ".pdf", ".svg")

# Errors whose messages are written for people.
SPOKEN = (ValueError, OSError, ImportError, TypeCheckError)

Action = Callable[[argparse.Namespace], None]


def run_command(
    parser: argparse.ArgumentParser, action: Action, cmd: Optional[Sequence[str]] = None
) -> None:
    """Read the command line, which gets `--debug`, and do what it asks for.

    Args:
        action: what to do with the options.
        cmd: the command line without the command's name; None takes the process's.
    """
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    options = parser.parse_args(cmd)
    with ending(parser.prog.rpartition(".bin.")[2], options.debug):
        action(options)


@contextmanager
def ending(name: str, debug: bool = False) -> Iterator[None]:
    """End the process with status 2 and one sentence if what is inside raises.

    Args:
        name: of the command, before the sentence.
        debug: whether the error is raised as it is, with its traceback.

    Example:
        >>> import contextlib, sys
        >>> try:
        ...     with contextlib.redirect_stderr(sys.stdout), ending("draw"):
        ...         raise ValueError("a.tif is no picture: take .png")
        ... except SystemExit as end:
        ...     print("exit status", end.code)
        draw: a.tif is no picture: take .png
        exit status 2
    """
    try:
        yield
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(130)  # as shells say it
    except Exception as error:
        if debug:
            raise
        print(f"{name}: {sentence(error)}", file=sys.stderr)
        sys.exit(EXIT_STATUS)


def sentence(error: Exception) -> str:
    """Return what an error says, for people.

    Example:
        >>> sentence(FileNotFoundError(2, "No such file or directory", "a.yaml"))
        'a.yaml: No such file or directory'
        >>> sentence(KeyError("stats"))
        "KeyError: 'stats' (--debug shows where it comes from)"
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, SPOKEN):
        return str(error)
    lines = str(error).strip().splitlines() or ["no more is known"]
    return f"{type(error).__name__}: {lines[0]} (--debug shows where it comes from)"


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a number of the command line that is not less than `least`."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, but is {text}")
        return int(text)

    return number


def check_picture(path: Path) -> Path:
    """Do what check_output does, for a picture.

    Raises:
        OSError: the file cannot be written.
        ValueError: no picture has this suffix, or the path is a folder.
    """
    if path.suffix.lower() not in PICTURES:
        raise ValueError(
            f"{path} is no picture's name: it must end in {', '.join(PICTURES)}"
        )
    return check_output(path)


def check_output(path: Path) -> Path:
    """Make the folder of a file that a command will write, and return the file.

    To be called before long work, so that nothing is lost at its end.

    Raises:
        OSError: the file cannot be written.
        ValueError: the path is a folder.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.exists()
    with open(path, "ab"):
        pass
    if not there:
        os.remove(path)
    return path
