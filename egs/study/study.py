#!/usr/bin/env python3
"""Study on recorded speech what balancing does to a codec's training.

Real ESPnet trainings of a small EnCodec, a condition and a seed each, on five
utterances of a LibriVox reader; the end of each is held out. What was trained stays
trained: started again, the study goes on where it stood. At last the results are
written as JSON, and as tables and charts into RESULTS.md.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Dict, List

import yaml
from study_plan import SEEDS, Run, merged, runs
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent / "shared"
BASES = HERE.parent / "mini/codec1/conf/train_encodec.yaml", HERE / "conf/study.yaml"
QUICK = {"max_epoch": 1, "chunk_shift_ratio": 0.5}  # a fifth of an epoch's steps
FIRST = 50  # steps of which each one is kept


def base(quick: bool) -> Dict[str, Any]:
    """Return the configuration that each training changes."""
    config: Dict[str, Any] = {}
    for path in BASES:
        config = merged(config, yaml.safe_load(path.read_text()))
    return merged(config, QUICK if quick else {})


def folder_of(run: Run, config: Dict[str, Any], exp: Path) -> Path:
    """Return a training's folder: another one for another configuration."""
    text = json.dumps([run.condition, config], sort_keys=True)
    return exp / "runs" / hashlib.sha256(text.encode()).hexdigest()[:16]


def carry_out(run: Run, config: Dict[str, Any], data: Path, folder: Path) -> None:
    """Train and score, in a process of its own; the result is written last."""
    import numpy as np
    import torch
    from study_score import distances, shares
    from study_train import train

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "train.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    steps = train(config, data, folder).steps
    names = [key[: -len("_share")] for key in steps[0] if key.endswith("_share")]
    late = steps[len(steps) // 2 :]
    result = {
        "condition": run.condition,
        "seed": run.seed,
        "steps": len(steps),
        "distances": distances(folder, data),
        "shares": shares(folder, data),
        "first_steps": {
            key: [step[key] for step in steps[:FIRST]]
            for key in ("grad_norm", "step_size")
        },
        "shares_in_training": {
            name: float(np.mean([step[f"{name}_share"] for step in late]))
            for name in names
        },
    }
    for path in folder.glob("*.pth"):
        path.unlink()
    part = folder / "result.json.part"
    part.write_text(json.dumps(result))
    part.replace(folder / "result.json")


def carry_out_all(args: argparse.Namespace, data: Path) -> List[Dict[str, Any]]:
    """Train what has no result yet, `--jobs` at a time; return all results."""
    planned = []
    for run in runs(args.questions, args.seeds):
        config = {**merged(base(args.quick), run.changes), "seed": run.seed}
        planned.append((run, config, folder_of(run, config, args.exp_dir)))
    missing = [one for one in planned if not (one[2] / "result.json").is_file()]
    # The server imports ESPnet once, and each training is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["study_score"])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
    bar = tqdm(total=len(planned), initial=len(planned) - len(missing), unit="training")
    with bar, ProcessPoolExecutor(args.jobs, context, max_tasks_per_child=1) as pool:
        waiting = {
            pool.submit(carry_out, run, config, data, folder): (run, folder)
            for run, config, folder in missing
        }
        for done in as_completed(waiting):
            run, folder = waiting[done]
            bar.update()
            if done.exception():
                for other in waiting:
                    other.cancel()
                sys.exit(
                    f"study.py: {run.condition!r}, seed {run.seed}: "
                    f"{done.exception()}; see {folder / 'train.log'}"
                )
    return [json.loads((one[2] / "result.json").read_text()) for one in planned]


def prepare(args: argparse.Namespace) -> Path:
    """Fetch the recordings, make the data folders, return their folder."""
    data: Path = args.exp_dir / "data"
    if not (data / "valid" / "wav.scp").is_file():
        wavs = args.wav_dir or args.exp_dir / "downloads"
        config = args.exp_dir / "train.yaml"
        args.exp_dir.mkdir(parents=True, exist_ok=True)
        config.write_text(yaml.safe_dump(base(args.quick)))
        commands = [[SHARED / "prepare_data.py", wavs, data, config]]
        if args.wav_dir is None:
            commands.insert(0, [SHARED / "fetch_speech.py", "--set", "librivox", wavs])
        for command in commands:
            subprocess.run([sys.executable, *map(str, command)], check=True)
    return data


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the shape of the study in six minutes: one seed, a tenth of the steps",
    )
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 3, 4, 6, 7])
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--wav_dir", type=Path, help="recordings of your own")
    parser.add_argument("--exp_dir", type=Path, help="where trainings go (exp/study)")
    parser.add_argument(
        "--results", type=Path, help="where RESULTS.md and RESULTS.json go"
    )
    return parser


def main() -> None:
    args = get_parser().parse_args()
    args.seeds = args.seeds or (SEEDS[:1] if args.quick else SEEDS)
    name = "study_quick" if args.quick else "study"
    args.exp_dir = (args.exp_dir or HERE / "exp" / name).resolve()
    results = carry_out_all(args, prepare(args))
    from study_report import write

    write(results, args.results or (args.exp_dir if args.quick else HERE))


if __name__ == "__main__":
    main()
