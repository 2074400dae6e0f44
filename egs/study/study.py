#!/usr/bin/env python3
"""A study of what balancing does to a codec: plan, train, score, report.

`plan` prints the trainings and what is there of them; `train` carries out those that
have no result, in the plan's order, and appends each result to results.jsonl as it
comes; `score` adds scores that a result lacks, from the codec that was kept; `report`
writes RESULTS.md and its charts from the results.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import re
import subprocess
import sys
import threading
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

import study_conditions as conditions
import study_plan as plan
from study_data import PACKAGES, load, prepare
from study_results import Results
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
# What the other settings of the plan cost, in steps of the base.
COST = {"batch": 1 / 8, "segment": 1 / 4000, "channels": 1 / 8}


class Files:
    """Where a study's files are.

    Attributes:
        results: the results of its trainings.
        models: the folder of its codecs.
    """

    def __init__(self, args: argparse.Namespace):
        # What is not the study as committed stays out of the committed results.
        own = bool(args.wav_dir or args.quick)
        self.exp = args.exp_dir or HERE / "exp"
        folder = args.results or (self.exp if own else HERE)
        self.report = folder
        self.results = Results(folder / "results.jsonl")
        self.models = self.exp / "models"
        self.wav_dir: Optional[Path] = args.wav_dir

    def recordings(self, data: str) -> Path:
        """Return the folder of a package's recordings, or the user's own."""
        return self.wav_dir or prepare(data, self.exp / "wav")

    def model(self, key: str) -> Path:
        """Return the file of a training's codec."""
        return self.models / (re.sub(r"[^\w.]+", "_", key) + ".pt")


def planned(args: argparse.Namespace) -> List[plan.Run]:
    """Return the trainings that are asked for, as far as there are recordings."""
    found = plan.quick() if args.quick else plan.runs(args.question)
    if args.wav_dir:  # stands in for the base's recordings, and for no others
        found = [run for run in found if "data" not in run.config["setting"]]
    return found


def data_of(run: plan.Run) -> str:
    data: str = run.config["setting"].get("data", next(iter(PACKAGES)))
    return data


def cost(run: plan.Run) -> float:
    """Return about how long a training takes, in steps of the base."""
    steps: float = run.config["steps"]
    for name, factor in COST.items():
        steps *= run.config["setting"].get(name, 1 / factor) * factor
    return steps


def show_plan(args: argparse.Namespace) -> None:
    """Print a line for each training, and what all of them take."""
    runs, results = planned(args), Files(args).results
    missing = {run.key for run in results.missing(runs)}
    for run in runs:
        mark = " " if run.key in missing else "x"
        print(f"[{mark}] {run.wave} {run.key}")
    steps = sum(cost(run) for run in runs if run.key in missing)
    print(
        f"{len(runs) - len(missing)} of {len(runs)} trainings have a result; the "
        f"others take as long as {steps / conditions.STEPS:.0f} of the base"
    )


_progress: Any = None  # in a training's process: the steps of all of them


def _start_worker(counter: Any) -> None:
    global _progress
    _progress = counter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Leave no training behind when the study is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _count_step() -> None:
    with _progress.get_lock():
        _progress.value += 1


def carry_out(config: Dict[str, Any], folder: Path, model: Path) -> Dict[str, Any]:
    """Train and score, in a process of its own."""
    from study_train import train

    return train(config, folder, model, _count_step)


def train(args: argparse.Namespace) -> None:
    """Carry out what has no result yet, `--jobs` at a time.

    A training that fails is reported, and the others go on.
    """
    files, runs = Files(args), planned(args)
    waiting = files.results.missing(runs)
    folders = {data: files.recordings(data) for data in set(map(data_of, waiting))}
    pool, counter = _processes(args.jobs)
    failed = 0
    bar = tqdm(total=sum(run.config["steps"] for run in waiting), unit="step")
    going: Dict["Future[Dict[str, Any]]", plan.Run] = {}
    with bar, pool:
        while waiting or going:
            there = files.results.of(runs)
            for run in ready(waiting, there, args.jobs - len(going)):
                waiting.remove(run)
                config = plan.resolved(run, there)
                task = pool.submit(
                    carry_out, config, folders[data_of(run)], files.model(run.key)
                )
                going[task] = run
            if not going:
                break  # what is left needs results that did not come
            bar.set_description(f"{len(waiting) + len(going)} trainings to go")
            done, _ = wait(going, timeout=1, return_when=FIRST_COMPLETED)
            bar.update(counter.value - bar.n)
            for task in done:
                failed += not _keep(task, going.pop(task), files.results, bar)
    if waiting:
        names = ", ".join(repr(run.key) for run in waiting)
        print(f"study.py: not begun, since they need others' results: {names}")
    if failed:
        sys.exit(f"study.py: {failed} trainings failed")


def _processes(jobs: int) -> Tuple[ProcessPoolExecutor, Any]:
    """Return processes that have imported what a training needs, and their counter."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["study_train"])
    # The server imports what it preloads from there.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    counter = context.Value("q", 0)
    return ProcessPoolExecutor(jobs, context, _start_worker, (counter,)), counter


def commit() -> str:
    """Return which commit of the package trains, "" outside a checkout.

    It is "-dirty" if code differs from it: the results differ as soon as one has come.
    """

    def git(*args: str) -> str:
        command = ["git", *args]
        answer = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        return answer.stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ":/*.py")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _keep(task: Any, run: plan.Run, results: Results, bar: Any) -> bool:
    """Write the result of a training that has ended; return whether it has one."""
    error = task.exception()
    if error is None:
        of = {"key": run.key, "config": run.config, "commit": commit()}
        results.add({**of, **task.result()})
    else:
        text = "".join(traceback.format_exception(error))
        bar.write(f"study.py: {run.key!r} failed:\n{text}", sys.stderr)
    return error is None


def ready(
    waiting: Sequence[plan.Run], there: Collection[str], places: int
) -> List[plan.Run]:
    """Return the first trainings whose needs have results, so many as have a place."""
    able = [run for run in waiting if set(run.needs) <= set(there)]
    return able[:places]


def score(args: argparse.Namespace) -> None:
    """Add the scores that a result lacks and this environment has."""
    from study_score import available, score
    from study_train import SETTING, load_codec

    files = Files(args)
    there = files.results.of(planned(args))
    for run in tqdm(planned(args), unit="training"):
        model = files.model(run.key)
        if run.key not in there or not model.is_file():
            continue
        result = there[run.key]
        if set(available()) - set(result["scores"]):
            rate = {**SETTING, **run.config["setting"]}["rate"]
            test = load(files.recordings(data_of(run)), rate).test
            scores = score(load_codec(model), test, rate)
            files.results.add({**result, "scores": scores})


def report(args: argparse.Namespace) -> None:
    """Write RESULTS.md and images/."""
    from study_report import write

    files, runs = Files(args), planned(args)
    write(runs, files.results.of(runs), files.report)


COMMANDS = {"plan": show_plan, "train": train, "score": score, "report": report}


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=list(COMMANDS))
    numbers = (1, 2, 3, 4, 5)
    parser.add_argument(
        *("--question",),
        **{"type": int, "nargs": "+", "default": numbers, "choices": numbers},
        help="what a question needs (all)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (1)")
    parser.add_argument(
        "--quick", action="store_true", help="three trainings of a few steps"
    )
    parser.add_argument("--wav_dir", type=Path, help="recordings of your own")
    parser.add_argument("--exp_dir", type=Path, help="where recordings and codecs go")
    parser.add_argument(
        "--results", type=Path, help="the folder of results.jsonl and RESULTS.md"
    )
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    args = get_parser().parse_args(argv)
    COMMANDS[args.command](args)


if __name__ == "__main__":
    main()
