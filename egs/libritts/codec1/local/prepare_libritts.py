#!/usr/bin/env python3
"""Make ESPnet data folders, train, valid and test, of LibriTTS or a folder of audio.

Of LibriTTS, the train-* parts that are there are for training, dev-clean for validation
and test-clean for the test. Of any other folder every 20th recording, in the order of
their paths, is for validation, and another every 20th for the test.

A data folder holds ``wav.scp`` (utterance, path) and ``utt2num_samples`` (utterance,
length: ESPnet's shape file). A mono wav or flac file of the recipe's rate is not
copied, only its header is read; what is not so is converted, one file at a time.
"""

import argparse
import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, Iterable, Mapping, Tuple, TypeVar

import yaml
from tqdm import tqdm

from balancer.bin.command import run_command
from balancer.reports.recordings import (
    DataFolder,
    Recording,
    find,
    load,
    long_enough,
    longest_chunk,
    names,
    readable,
)

LIBRITTS = {
    "train": ["train-clean-100", "train-clean-360", "train-other-500"],
    "valid": ["dev-clean"],
    "test": ["test-clean"],
}
EVERY = 20
PLAIN = {"WAV", "WAVEX", "FLAC"}  # what ESPnet reads as it is
Item = TypeVar("Item")


def bar(found: Mapping[str, Item], title: str) -> Iterable[Tuple[str, Item]]:
    """Return the items, with a bar for who waits."""
    # A file is no terminal: there, a line every half minute is enough.
    pace = 0.5 if sys.stderr.isatty() else 30
    items: Iterable[Tuple[str, Item]] = tqdm(
        found.items(), title, unit="file", mininterval=pace, delay=1
    )
    return items


def libritts(corpus: Path, rate: int, least: int) -> Dict[str, Dict[str, Recording]]:
    """Return each data folder's name and its recordings by utterance.

    Args:
        least: the fewest samples, at the rate in Hz, that can be trained on.
    """
    folders = {}
    for folder, parts in LIBRITTS.items():
        there = [corpus / part for part in parts if (corpus / part).is_dir()]
        if not there:
            raise ValueError(
                f"{corpus} has none of the folders {', '.join(parts)}: --libritts is "
                "the folder of the unpacked corpus; for other recordings take --wav_dir"
            )
        # A stem like 84_121123_000007_000001 names its utterance in all of LibriTTS.
        found = {path.stem: path for part in there for path in find(part)}
        recordings = readable(bar(found, f"{folder}: headers"))
        enough = 1 if folder == "test" else least  # inference takes anything
        folders[folder] = long_enough(recordings, enough, rate)
    return folders


def any_folder(folder: Path, rate: int, least: int) -> Dict[str, Dict[str, Recording]]:
    """Return the same of a folder that nobody has split."""
    found = names(find(folder), folder)
    recordings = long_enough(readable(bar(found, "headers")), least, rate)
    if len(recordings) < 3:
        raise ValueError(
            f"{folder} has {len(recordings)} recordings that can be used: needed are "
            "3, one each for training, validation and test; egs/mini/codec1 cuts fewer "
            "in parts"
        )
    every = min(EVERY, len(recordings))
    rests = {0: "valid", every // 2: "test"}
    parts: Dict[str, Dict[str, Recording]] = {"train": {}, "valid": {}, "test": {}}
    for number, (name, recording) in enumerate(recordings.items()):
        parts[rests.get(number % every, "train")][name] = recording
    return parts


def add(folder: DataFolder, name: str, recording: Recording, least: int) -> None:
    """Refer to a recording, or convert it if ESPnet could not read it as it is."""
    path, header = recording
    plain = header.format in PLAIN and header.channels == 1
    if plain and header.samplerate == folder.rate:
        folder.refer(name, path, header.frames)
        return
    wave = load(path, folder.rate, least)
    if wave is not None:
        folder.add(name, wave)


def write(
    parts: Dict[str, Dict[str, Recording]], data: Path, rate: int, least: int
) -> None:
    """Make all data folders, or none."""
    with ExitStack() as stack:
        folders = {x: stack.enter_context(DataFolder(data / x, rate)) for x in parts}
        for part, recordings in parts.items():
            for name, recording in bar(recordings, part):
                add(folders[part], name, recording, 1 if part == "test" else least)
            if not folders[part].paths:
                raise ValueError(
                    f"no recording is left for {data / part}: the lines above say what "
                    "is wrong with each"
                )
        for folder in folders.values():
            print(folder.close())


def prepare(args: argparse.Namespace) -> None:
    """Make the data folders of what the options name."""
    settings = yaml.safe_load(args.config.read_text())
    rate = int(settings["codec_conf"].get("sampling_rate", 24000))
    # The trainer drops what is not longer than a chunk.
    least = longest_chunk(settings.get("chunk_length", 500)) + 1
    if args.libritts:
        parts = libritts(args.libritts, rate, least)
    else:
        parts = any_folder(args.wav_dir, rate, least)
    write(parts, args.data, rate, least)


def main() -> None:
    logging.basicConfig(format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--libritts", type=Path, help="the unpacked corpus")
    source.add_argument("--wav_dir", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/, valid/ and test/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    run_command(parser, prepare)


if __name__ == "__main__":
    main()
