"""Thousands of training steps with faults in them, and what the balancer made of it.

    python tools/soak.py --steps 3000 --ranks 2 --seed 0

A small GAN trains on each rank. Every third step brings one more fault; their kinds
and times follow from the seed. Ends with 1 if anything came out that must not.
"""

import argparse
import gc
import json
import math
import os
import statistics
import sys
import tempfile
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from soak_faults import COPIED, PICKLED, REFUSED, RESTORED, VALIDATION, Schedule
from soak_training import DECAY, UPDATE_EVERY, WEIGHTS, Training
from tqdm import tqdm

# A norm adds at least this part of itself to its own average.
BOUND = 1 / (1 - DECAY**UPDATE_EVERY)
SAMPLES = 40  # of the memory
MEMORY_SLACK = 4.0  # MiB, by which an allocator's own pages may grow
COUNTS = (
    "non-finite averages",
    "non-finite scales",
    "non-finite parameters",
    "states that differ between ranks",
)
MUST_BE_ZERO = (*COUNTS, "growth of live tensors")


class Watch:
    """Looks at the balancer after each step."""

    def __init__(self, training: Training, steps: int):
        self.training = training
        self.every = max(1, steps // SAMPLES)
        self.found: Dict[str, Any] = {
            **dict.fromkeys(("steps", *COUNTS), 0),
            "largest scale times norm": 0.0,
            "broken": [],
        }
        self.memory: List[float] = []
        self.tensors: List[int] = []

    def event(self, kind: str, went_well: bool, step: int) -> None:
        """Note what came of a fault between two steps."""
        if not went_well:
            self.found["broken"].append(f"{kind} before step {step}")

    def step(self, step: int, stats: Dict[str, float]) -> None:
        """Note what a step left."""
        found, training = self.found, self.training
        found["steps"] += 1
        averages = training.balancer.state_dict()["averages"]
        for total, fix in averages.values():
            found["non-finite averages"] += not 0 < total / fix < math.inf
        for name in WEIGHTS:
            scale, norm = stats[f"{name}_scale"], stats[f"{name}_norm"]
            found["non-finite scales"] += not math.isfinite(scale)
            if math.isfinite(norm):
                key = "largest scale times norm"
                found[key] = max(found[key], scale * norm)
        finite = all(torch.isfinite(p).all() for p in training.parameters())
        found["non-finite parameters"] += not finite
        if step % self.every == self.every - 1:
            self._sample()

    def _sample(self) -> None:
        gc.collect()
        tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
        self.tensors.append(len(tensors))
        self.memory.append(resident_mib())
        if dist.is_initialized():
            states: List[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(states, self.training.state())
            self.found["states that differ between ranks"] += len(set(states)) > 1

    def result(self) -> Dict[str, Any]:
        """Return what was found; growth is from the second quarter to the last one."""
        quarter = len(self.memory) // 4
        early, late = slice(quarter, 2 * quarter), slice(-quarter, None)
        return {
            **self.found,
            "skipped": self.training.skipped,
            "memory growth": statistics.median(self.memory[late])
            - statistics.median(self.memory[early]),
            # The fewest: a GradScaler, there for a while, has tensors of its own.
            "growth of live tensors": min(self.tensors[late])
            - min(self.tensors[early]),
            "resident": self.memory[-1],
        }


def resident_mib() -> float:
    """Return the memory that this process holds, in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(rank: int, ranks: int, steps: int, seed: int) -> Dict[str, Any]:
    """Run the steps on one rank; return what was found there."""
    gc.freeze()  # what was imported is not searched for tensors
    training = Training(rank, ranks)
    schedule = Schedule(list(WEIGHTS), rank, ranks, seed)
    watch = Watch(training, steps)
    events = {
        REFUSED: training.refuse,
        VALIDATION: training.validate,
        RESTORED: training.restore,
        COPIED: training.deepcopy,
        PICKLED: training.pickle,
    }
    bar = tqdm(range(steps), desc="steps", leave=False, disable=rank > 0)
    for step in bar:
        faults = schedule.step(step)
        try:
            for kind in faults.keys() & events.keys():
                watch.event(kind, events[kind](), step)
            watch.step(step, training.step(step, faults))
        except Exception as error:
            where = f"step {step}, rank {rank}, seed {seed}, {faults}"
            raise RuntimeError(f"the training broke at {where}") from error
    return {**watch.result(), "injected": schedule.injected}


def _rank(rank: int, args: argparse.Namespace, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}.store", rank=rank, world_size=args.ranks
    )
    results: List[Any] = [None] * args.ranks
    found = soak(rank, args.ranks, args.steps, args.seed)
    dist.all_gather_object(results, found)
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> List[Dict[str, Any]]:
    """Return what each rank found."""
    if args.ranks == 1:
        return [soak(0, 1, args.steps, args.seed)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        mp.spawn(_rank, (args, path), nprocs=args.ranks)
        with open(path, encoding="utf-8") as file:
            results: List[Dict[str, Any]] = json.load(file)
    return results


def verdict(results: List[Dict[str, Any]], steps: int) -> List[Tuple[str, str, bool]]:
    """Return what was found, in words, and whether it is as it must be."""

    def most(key: str) -> Any:
        return max(result[key] for result in results)

    survived = min(result["steps"] for result in results)
    rows = [("steps survived", f"{survived} of {steps}", survived == steps)]
    for key in MUST_BE_ZERO:
        rows.append((key, str(most(key)), most(key) <= 0))
    broken = [what for result in results for what in result["broken"]]
    rows.append(("refusals, copies, restarts gone wrong", f"{broken or 0}", not broken))
    largest, growth = most("largest scale times norm"), most("memory growth")
    found = f"{largest:.3f} (at most {BOUND:.3f})"
    rows.append(("largest scale times norm", found, largest <= BOUND * (1 + 1e-9)))
    found = f"{growth:.1f} MiB of {most('resident'):.0f} (at most {MEMORY_SLACK:.0f})"
    rows.append(("memory growth", found, growth <= MEMORY_SLACK))
    return rows


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    results = run(args)
    print(f"ranks {args.ranks}, seed {args.seed}, torch {torch.__version__}\n")
    print("| fault | injected |\n| --- | --- |")
    for kind, count in results[0]["injected"].items():
        print(f"| {kind} | {count} |")
    print(f"\nThe trainer skipped {results[0]['skipped']} turns.\n")
    print("| must hold | found | |\n| --- | --- | --- |")
    rows = verdict(results, args.steps)
    for what, found, good in rows:
        print(f"| {what} | {found} | {'yes' if good else '**NO**'} |")
    return 0 if all(good for _, _, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
