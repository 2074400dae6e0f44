"""Cells of RESULTS.md's tables, and the table that several questions have."""

import math
from typing import List, Mapping, Sequence

import numpy as np
from study_score import SCORES
from study_statistics import Difference, paired, wilson
from study_values import Values, better

MISSING = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float, score: str, sign: bool = False) -> str:
    """Return a value with the digits of its score."""
    if math.isnan(value):
        return MISSING
    digits = SCORES[score][1]
    value = round(value, digits) + 0.0  # of −0 that makes 0
    return f"{value:{'+' if sign else ''}.{digits}f}"


def mean(values: Sequence[float], score: str) -> str:
    """Return a mean, of several values with their standard deviation."""
    if not values:
        return MISSING
    text = number(float(np.mean(values)), score)
    if len(values) > 1:
        text += f" ± {number(float(np.std(values, ddof=1)), score)}"
    return text


def difference(found: Difference, score: str) -> str:
    """Return a mean difference and its interval, bold where that leaves out zero."""
    text = number(found.mean, score, sign=True)
    if math.isnan(found.low):
        return text
    low, high = (number(x, score, sign=True) for x in (found.low, found.high))
    return f"**{text}** [{low}, {high}]" if found.is_seen else f"{text} [{low}, {high}]"


def headings(scores: Sequence[str]) -> List[str]:
    """Return the headings of scores."""
    return [SCORES[score][0] for score in scores]


def versus(ones: Mapping[int, float], others: Mapping[int, float], score: str) -> str:
    """Return in how many of their pairs ones are better, and by how much."""
    pairs = [(x, others[i]) for i, x in ones.items() if i in others]
    if not pairs:
        return MISSING
    wins = sum(better(score, *pair) for pair in pairs)
    low, high = wilson(wins, len(pairs))
    apart = difference(paired(ones, others), score)
    return f"better in {wins} of {len(pairs)} [{low:.0%}, {high:.0%}], by {apart}"


def differences(values: Values, pairs: Mapping[str, Sequence[str]], title: str) -> str:
    """Return a table of differences by seed: row → the two conditions."""
    scores, rows = values.score_names(), []
    for name, (one, other) in pairs.items():
        row = [name]
        found = Difference(math.nan, math.nan, math.nan, 0)
        for score in scores:
            found = paired(values.scores(one, score), values.scores(other, score))
            row.append(difference(found, score))
        rows.append([*row, str(found.pairs)])
    return table([title, *headings(scores), "seeds"], rows)
