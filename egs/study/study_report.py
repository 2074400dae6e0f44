"""RESULTS.md: made of the results and the plan alone, whatever is there of them."""

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Sequence

import study_plan as plan
import study_tables as tables
import yaml
from study_charts import CHARTS, save
from study_length import longer
from study_values import Values

QUESTIONS = {
    1: "What do I gain if I tune nothing?",
    2: "What carries over to another setting?",
    3: "Which weights do I start from?",
    4: "Does it change with training?",
    5: "Which options matter?",
}
TABLES: Dict[int, Callable[[Values], str]] = {
    1: tables.untuned,
    2: tables.carried_over,
    3: tables.weights,
    4: longer,
    5: tables.options,
}
ANSWERS = Path(__file__).parent / "answers.yaml"
HEADING = """# RESULTS

What balancing does to a codec's training: the small codec of
[egs/shared](../shared/small_codec) on recorded speech, in a plain PyTorch loop.
`study.py report` made this page of results.jsonl, and no number of it is written by
hand. [README.md](README.md) says what is trained, how it is scored, and how to go on;
[ESPNET.md](ESPNET.md) is an earlier study on ESPnet's EnCodec.

A difference has its interval of 95% in square brackets, paired by seed or by draw, and
is bold where the interval leaves out zero, as one in twenty does by chance alone. One
without an interval has one pair. A dash is what was not trained yet."""


def write(
    runs: Sequence[plan.Run], results: Mapping[str, Mapping[str, Any]], folder: Path
) -> None:
    """Write RESULTS.md and images/ into a folder."""
    values = Values(runs, results)
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    answers = yaml.safe_load(ANSWERS.read_text(encoding="utf-8")) or {}
    parts = [HEADING, environment(values)]
    for number, title in QUESTIONS.items():
        parts.append(f"## {number}. {title}")
        parts += section(values, number, answers.get(number), images)
    path = folder / "RESULTS.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"The results are in {path}")


def section(values: Values, number: int, answer: Any, images: Path) -> Sequence[str]:
    """Return what a question's section says, below its title."""
    counts = values.counts(number)
    more = f"`python study.py train --question {number}`"
    if not counts["own"]:
        return [
            f"Not trained yet: {counts['there']} of {counts['all']} trainings are "
            f"there, which other questions need too; {more}."
        ]
    parts = []
    if counts["there"] < counts["all"]:
        parts.append(
            f"Not finished: {counts['there']} of {counts['all']} trainings are there; "
            f"{more} goes on."
        )
    parts.append(answer or "No answer in words yet: answers.yaml has them.")
    parts.append(TABLES[number](values))
    figure = CHARTS[number](values)
    if figure is not None:
        name = f"question_{number}.png"
        save(figure, images / name)
        parts.append(f"![{QUESTIONS[number]}](images/{name})")
    return parts


def environment(values: Values) -> str:
    """Return what was trained and with what."""
    results = values.results.values()

    def found(key: str) -> str:
        return ", ".join(sorted({str(result[key]) for result in results})) or "–"

    hours = sum(result["seconds"] for result in results) / 3600
    return (
        f"{len(values.results)} of {len(values.runs)} trainings, {hours:.1f} hours of "
        f"one core; Python {found('python')}, PyTorch {found('torch')}."
    )
