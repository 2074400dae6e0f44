#!/usr/bin/env python3
"""Make ESPnet data folders, train and valid, of a folder of recordings.

Each recording becomes mono at the recipe's rate. Of many, every tenth is held out for
validation; of few, the end of each is, so that two utterances are enough to train on.
A data folder holds ``wav.scp`` (utterance, path) and ``utt2num_samples`` (utterance,
length: ESPnet's shape file).
"""

import argparse
import logging
from pathlib import Path
from typing import Dict, Tuple

import yaml

from balancer.bin.command import run_command
from balancer.reports.recordings import (
    DataFolder,
    Wave,
    find,
    load,
    long_enough,
    longest_chunk,
    names,
    readable,
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


def prepare(recordings: Path, data: Path, rate: int, chunk: int) -> None:
    """Make both data folders.

    Raises:
        ValueError: no recording can be used.
    """
    # The trainer drops what is not longer than a chunk; a fourth more gives it some.
    least = chunk + chunk // 4
    named = names(find(recordings), recordings)
    found = long_enough(readable(named.items()), least, rate)
    few = len(found) < FEW
    if few:
        found = long_enough(found, 2 * least, rate)  # each is cut in two
    usable = 0
    with DataFolder(data / "train", rate) as train, DataFolder(
        data / "valid", rate
    ) as valid:
        for name, recording in found.items():
            wave = load(recording.path, rate, (2 if few else 1) * least)
            if wave is None:
                continue
            for part, samples in split(wave, usable, few, least).items():
                {"train": train, "valid": valid}[part].add(name, samples)
            usable += 1
        if not usable:
            raise ValueError(
                f"{recordings} has no recording that can be used: the lines above say "
                f"what is wrong with each. One of {2 * least / rate:.2f} s is enough"
            )
        for folder in (train, valid):
            print(folder.close())


def main() -> None:
    logging.basicConfig(format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recordings", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/ and valid/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    run_command(
        parser,
        lambda args: prepare(args.recordings, args.data, *lengths_of(args.config)),
    )


if __name__ == "__main__":
    main()
