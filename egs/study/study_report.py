"""The study's results as JSON, and as tables and charts in RESULTS.md."""

import json
import platform
import re
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np
import study_plan as plan
import torch
from study_charts import draw

DISTANCES = {
    "mel": ("mel distance", 3),
    "stft": ("MR-STFT distance", 3),
    "si_sdr": ("SI-SDR, dB", 1),
    "stoi": ("STOI", 3),
}
# A further column of a question's table: heading, where the value is, digits.
CODES = ("codes in use", ("distances", "codes"), 0)
COLUMNS = {
    3: CODES,
    4: CODES,
    6: ("mel_real's share", ("shares", "output", "mel_real"), 3),
    7: CODES,
}
QUESTIONS = {
    1: "Every loss's scale, one at a time",
    2: "The share that the decoder's parameters get",
    3: "update_every",
    4: "The memory of the average",
    5: "The first 50 steps",
    6: "The dual decoder's loss inside the balance",
    7: "total_norm against the commitment loss",
}
Results = Sequence[Mapping[str, Any]]


class Values:
    """The results of each condition.

    Args:
        results: as the trainings wrote them.
    """

    def __init__(self, results: Results):
        self.by_condition: Dict[str, List[Mapping[str, Any]]] = {}
        for result in results:
            self.by_condition.setdefault(result["condition"], []).append(result)

    def __contains__(self, condition: str) -> bool:
        return condition in self.by_condition

    def of(self, condition: str, *keys: str, like: str = "") -> List[Any]:
        """Return a value of each seed's training, of the seeds that `like` has too."""
        found: List[Any] = list(self.by_condition.get(condition, []))
        if like:
            seeds = [one["seed"] for one in self.by_condition.get(like, [])]
            found = [one for one in found if one["seed"] in seeds]
        for key in keys:
            found = [one[key] for one in found if key in one]
        return found

    def by_seed(self, condition: str, *keys: str) -> Dict[int, Any]:
        """Return seed → a value of its training."""
        seeds = [one["seed"] for one in self.by_condition.get(condition, [])]
        return dict(zip(seeds, self.of(condition, *keys)))


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean ± sample standard deviation, the mean alone of a single value."""
    if not values:
        return "–"
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.{digits}f}"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def distances_table(values: Values, names: Mapping[str, str], question: int) -> str:
    """Return a table of the distances, a line a condition: title → condition."""
    rows = []
    columns = [(t, ("distances", key), n) for key, (t, n) in DISTANCES.items()]
    columns += [COLUMNS[question]] if question in COLUMNS else []
    for title, condition in names.items():
        if condition not in values:
            continue
        row = [title]
        for _, keys, digits in columns:
            row.append(spread(values.of(condition, *keys), digits))
        rows.append(row)
    return table(["", *(title for title, _, _ in columns)], rows)


def scales_table(values: Values) -> str:
    """Question 1: the mel distance, and how far a factor moves the metrics."""
    rows = []
    for method, loss in sorted(plan.SCALED, key=lambda x: plan.WAYS.index(x[0])):
        low, high = (plan.scaled(method, loss, x) for x in plan.FACTORS)
        row = [method, loss, str(len(values.of(low)))]
        for name in (low, method, high):
            row.append(spread(values.of(name, "distances", "mel", like=low), 3))
        for key in ("stft", "si_sdr"):
            digits = DISTANCES[key][1]
            ends = [values.of(name, "distances", key) for name in (low, high)]
            row.append(" / ".join(spread(end, digits) for end in ends))
        rows.append(row)
    header = ["method", "loss", "seeds", "mel, x 0.001", "x 1", "x 1000"]
    return table(header + ["MR-STFT, x 0.001 / x 1000", "SI-SDR, likewise"], rows)


def invariance(values: Values) -> str:
    """Question 1: how far factors move ours, at first and at last, seed by seed."""
    plain = {result["seed"]: result for result in values.of(plan.OURS)}
    first, last = [], []
    for loss in plan.LOSSES:
        for factor in plan.FACTORS:
            for result in values.of(plan.scaled(plan.OURS, loss, factor)):
                other = plain[result["seed"]]
                steps = [x["first_steps"]["step_size"][:3] for x in (result, other)]
                first += [abs(a / b - 1) for a, b in zip(*steps)]
                mels = [x["distances"]["mel"] for x in (result, other)]
                last.append(abs(mels[0] / mels[1] - 1))
    if not last:
        return ""
    names = [plan.scaled(plan.OURS, loss, plan.EXACT) for loss in plan.LOSSES]
    exact = [result for name in names for result in values.of(name)]
    keys = ("distances", "first_steps")
    same = sum(all(x[k] == plain[x["seed"]][k] for k in keys) for x in exact)
    return (
        f"Of ours times {plan.EXACT:g}, one loss at a time, {same} of {len(exact)} "
        "trainings have all distances and the first 50 steps to the last digit as "
        "without the factor. Times 0.001 and 1000, which float32 rounds, the size of "
        f"the first three steps stays as it was to {max(first):.0e}; the mel distance "
        f"at the end moves by {100 * np.mean(last):.2g}% on the mean, "
        f"{100 * max(last):.2g}% at most."
    )


def shares_table(values: Values) -> str:
    """Question 2: shares at the output and in the decoder, against the targets."""
    whole = sum(plan.ENCODEC_WEIGHTS.values())
    rows = []
    for name, weight in plan.ENCODEC_WEIGHTS.items():
        row = [name, f"{weight / whole:.3f}"]
        row.append(spread(values.of(plan.ENCODEC, "shares_in_training", name), 3))
        row.append(spread(values.of(plan.ENCODEC, "shares", "decoder", name), 3))
        for condition in (plan.OURS, plan.SUM):
            for place in ("output", "decoder"):
                row.append(spread(values.of(condition, "shares", place, name), 4))
        rows.append(row)
    header = ["loss", "EnCodec's weights: target", "output, second half of training"]
    header += ["decoder", "ours: output", "decoder", "sum: output", "decoder"]
    return table(header, rows)


def first_steps_table(values: Values) -> str:
    """Question 5: norms of gradient and step at the beginning."""
    rows = []
    for method in (plan.SUM, plan.ESPNET, plan.OURS):
        for key, title in (("grad_norm", "gradient"), ("step_size", "step")):
            series = values.of(method, "first_steps", key)
            row = [method, title]
            for first, last in ((0, 1), (1, 5), (5, 20), (20, 50)):
                means = [float(np.mean(one[first:last])) for one in series]
                row.append(f"{np.mean(means):.3g}" if means else "–")
            rows.append(row)
    return table(["method", "norm of", "step 1", "2–5", "6–20", "21–50"], rows)


def tables(values: Values) -> Dict[int, str]:
    """Return the table of each question."""
    sweeps = plan.sweeps()
    found = {n: distances_table(values, names, n) for n, names in sweeps.items()}
    methods = {name: name for name in plan.WAYS}
    parts = distances_table(values, methods, 1), scales_table(values)
    found[1] = "\n\n".join([*parts, invariance(values)]).rstrip()
    found[2] = shares_table(values)
    found[5] = first_steps_table(values)
    return found


def environment(results: Results) -> str:
    """Return ESPnet's heading of a RESULTS.md."""
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h %ad", "--date=short"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    import espnet2

    seeds = sorted({result["seed"] for result in results})
    steps = sorted({result["steps"] for result in results})
    return "\n".join(
        [
            f"- python version: `{platform.python_version()}`",
            f"- espnet version: `espnet {espnet2.__version__}`",
            f"- pytorch version: `pytorch {torch.__version__.partition('+')[0]}`",
            f"- Git hash and date of the recipe: `{commit or 'no checkout'}`",
            f"- trainings: {len(results)}, seeds {seeds}, {steps[0]}–{steps[-1]} steps",
        ]
    )


def filled(text: str, block: str, content: str) -> str:
    """Return a text with what stands between a block's two marks replaced."""
    start, end = f"<!-- {block} -->", "<!-- end -->"
    pattern = re.escape(start) + ".*?" + re.escape(end)
    replace: Callable[[Any], str] = lambda _: f"{start}\n{content}\n{end}"
    return re.sub(pattern, replace, text, flags=re.DOTALL)


def skeleton() -> str:
    """Return a RESULTS.md that nobody has written to."""
    parts = ["# RESULTS", "## Environments\n<!-- environment -->\n<!-- end -->"]
    for number, title in QUESTIONS.items():
        mark = f"<!-- question {number} -->\n<!-- end -->"
        picture = f"![{title}](images/study_{number}.png)"
        parts.append(f"## {number}. {title}\n\n{mark}\n\n{picture}")
    return "\n\n".join(parts) + "\n"


def write(results: Results, folder: Path) -> None:
    """Write RESULTS.json, RESULTS.md and images/ into a folder.

    What people wrote into RESULTS.md between the marked blocks stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(rounded(result)) for result in results)
    (folder / "RESULTS.json").write_text(f"[\n{lines}\n]\n")
    path = folder / "RESULTS.md"
    text = path.read_text() if path.is_file() else skeleton()
    values = Values(results)
    text = filled(text, "environment", environment(results))
    for number, content in tables(values).items():
        text = filled(text, f"question {number}", content)
    path.write_text(text)
    draw(values, folder / "images")
    print(f"The results are in {path}, RESULTS.json and images/ beside it")


def rounded(value: Any) -> Any:
    """Return results with four digits, which is more than seeds agree on."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
