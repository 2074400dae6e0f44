#!/usr/bin/env python3
"""Make ESPnet data folders, train and valid, of a folder of recordings.

Each recording becomes mono at the recipe's rate. Of many, every tenth is held out for
validation; of few, the end of each is, so that two utterances are enough to train on.
A data folder holds ``wav.scp`` (utterance, path) and ``utt2num_samples`` (utterance,
length: ESPnet's shape file).
"""

import argparse
import sys
from pathlib import Path
from typing import Dict, Tuple

import yaml

from balancer.reports.recordings import (
    DataFolder,
    Wave,
    find,
    load,
    longest_chunk,
    names,
)

FEW = 20  # fewer recordings than this are cut rather than held out
HELD_OUT = 0.15  # of each recording, where there are few
EVERY = 10  # the one held out, where there are many


def split(wave: Wave, number: int, few: bool, least: int) -> Dict[str, Wave]:
    """The parts of a recording by the data folder that they go to."""
    if not few:
        return {"valid" if number % EVERY == 0 else "train": wave}
    held_out = min(max(int(HELD_OUT * len(wave)), least), len(wave) - least)
    return {"train": wave[:-held_out], "valid": wave[-held_out:]}


def lengths_of(config: Path) -> Tuple[int, int]:
    """The sampling rate and the longest chunk of a training configuration."""
    settings = yaml.safe_load(config.read_text())
    rate = int(settings["codec_conf"].get("sampling_rate", 24000))
    return rate, longest_chunk(settings.get("chunk_length", 500))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recordings", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/ and valid/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    args = parser.parse_args()

    try:
        prepare(args.recordings, args.data, *lengths_of(args.config))
    except ValueError as error:
        sys.exit(str(error))


def prepare(recordings: Path, data: Path, rate: int, chunk: int) -> None:
    # The trainer drops what is not longer than a chunk; a fourth more gives it some.
    least = chunk + chunk // 4
    found = names(find(recordings), recordings)
    few = len(found) < FEW
    folders = {x: DataFolder(data / x, rate) for x in ("train", "valid")}
    usable = 0
    for name, path in found.items():
        wave = load(path, rate, min_samples=(2 if few else 1) * least)
        if wave is None:
            continue
        for part, samples in split(wave, usable, few, least).items():
            folders[part].add(name, samples)
        usable += 1
    for folder in folders.values():
        print(folder.close())


if __name__ == "__main__":
    main()
