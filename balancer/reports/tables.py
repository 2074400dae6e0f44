"""Tables for people."""

from typing import Sequence


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells in columns, the first to the left, the others to the right.

    Example:
        >>> print(columns([("loss", "norm"), ("mel", "0.25"), ("adv", "3")]))
        loss  norm
        mel   0.25
        adv      3
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )
