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
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import soundfile
import yaml
from tqdm import tqdm

from balancer.reports.recordings import DataFolder, find, load, longest_chunk, names

LIBRITTS = {
    "train": ["train-clean-100", "train-clean-360", "train-other-500"],
    "valid": ["dev-clean"],
    "test": ["test-clean"],
}
EVERY = 20
PLAIN = {"WAV", "WAVEX", "FLAC"}  # what ESPnet reads as it is


class CorpusFolder(DataFolder):
    """A data folder that may also refer to recordings where they lie."""

    def refer(self, name: str, path: Path, length: int) -> None:
        """Add a recording of this many samples without copying it."""
        self.paths.append(f"{name} {path.resolve()}\n")
        self.lengths.append(f"{name} {length}\n")


def libritts(corpus: Path) -> Iterator[Tuple[str, Dict[str, Path]]]:
    """Each data folder's name and its recordings by utterance."""
    for folder, parts in LIBRITTS.items():
        there = [corpus / part for part in parts if (corpus / part).is_dir()]
        if not there:
            raise ValueError(
                f"{corpus} has none of the folders {', '.join(parts)}: --libritts is "
                "the folder of the unpacked corpus; for other recordings take --wav_dir"
            )
        found = [path for part in there for path in find(part)]
        # A stem like 84_121123_000007_000001 names its utterance in all of LibriTTS.
        yield folder, {path.stem: path for path in found}


def any_folder(recordings: Path) -> Iterator[Tuple[str, Dict[str, Path]]]:
    """Each data folder's name and its recordings by utterance."""
    found = list(names(find(recordings), recordings).items())
    if len(found) < 3:
        raise ValueError(
            f"{recordings} has {len(found)} recordings: needed are 3, one each for "
            "training, validation and test; egs/mini/codec1 cuts fewer in parts"
        )
    every = min(EVERY, len(found))
    rests = {0: "valid", every // 2: "test"}
    parts: Dict[str, Dict[str, Path]] = {"train": {}, "valid": {}, "test": {}}
    for number, (name, path) in enumerate(found):
        parts[rests.get(number % every, "train")][name] = path
    yield from parts.items()


def add(folder: CorpusFolder, name: str, path: Path, least: int) -> bool:
    """Add a recording of at least so many samples; whether it was added."""
    try:
        header = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError) as error:
        logging.warning(f"skipped, not readable: {path}: {error}")
        return False
    # Without reading what is too short; a sample more or less comes of resampling.
    if header.frames * folder.rate < (least - 1) * header.samplerate:
        return False
    plain = header.format in PLAIN and header.channels == 1
    if plain and header.samplerate == folder.rate:
        if header.frames >= least:
            folder.refer(name, path, header.frames)
        return header.frames >= least
    wave = load(path, folder.rate, least)
    if wave is not None:
        folder.add(name, wave)
    return wave is not None


def prepare(
    recordings: Iterator[Tuple[str, Dict[str, Path]]], data: Path, rate: int, chunk: int
) -> None:
    """Make all data folders."""
    for part, found in recordings:
        folder = CorpusFolder(data / part, rate)
        # The trainer drops what is not longer than a chunk; inference takes anything.
        least = 1 if part == "test" else chunk + 1
        # A file is no terminal: there, a line every half minute is enough.
        bar = tqdm(
            found.items(),
            desc=part,
            unit="file",
            mininterval=0.5 if sys.stderr.isatty() else 30,
        )
        left_out: List[Path] = [
            path for name, path in bar if not add(folder, name, path, least)
        ]
        print(folder.close())
        if left_out:
            print(
                f"{part}: {len(left_out)} left out, not readable or shorter than "
                f"{least} samples, the first of them {left_out[0]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--libritts", type=Path, help="the unpacked corpus")
    source.add_argument("--wav_dir", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/, valid/ and test/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    args = parser.parse_args()

    settings = yaml.safe_load(args.config.read_text())
    rate = int(settings["codec_conf"].get("sampling_rate", 24000))
    chunk = longest_chunk(settings.get("chunk_length", 500))
    try:
        if args.libritts:
            prepare(libritts(args.libritts), args.data, rate, chunk)
        else:
            prepare(any_folder(args.wav_dir), args.data, rate, chunk)
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
