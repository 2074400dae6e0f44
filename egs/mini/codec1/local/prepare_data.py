#!/usr/bin/env python3
"""Make ESPnet data folders, train and valid, of a folder of recordings.

Each recording becomes mono at the recipe's rate. Of many, every tenth is held out for
validation; of few, the end of each is, so that two utterances are enough to train on.
A data folder holds ``wav.scp`` (utterance, path) and ``utt2num_samples`` (utterance,
length: ESPnet's shape file).
"""

import argparse
import re
import sys
from math import gcd
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import numpy as np
import soundfile
import yaml
from scipy.signal import resample_poly

SUFFIXES = {".wav", ".flac", ".ogg"}
FEW = 20  # fewer recordings than this are cut rather than held out
HELD_OUT = 0.15  # of each recording, where there are few
EVERY = 10  # the one held out, where there are many


def find(folder: Path) -> List[Path]:
    """All recordings in a folder and in the folders in it."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def names(paths: List[Path], folder: Path) -> Dict[str, Path]:
    """A name for each recording: its path without slashes and blanks, made unique."""
    named: Dict[str, Path] = {}
    for path in paths:
        stem = path.relative_to(folder).with_suffix("").as_posix()
        name = base = re.sub(r"[^\w.-]+", "_", stem)
        count = 1
        while name in named:
            count += 1
            name = f"{base}_{count}"
        named[name] = path
    return named


def read(path: Path, rate: int) -> np.ndarray:
    """A recording as mono samples at this rate."""
    wave, found = soundfile.read(path, dtype="float32", always_2d=True)
    wave = wave.mean(axis=1)
    if found != rate:
        shared = gcd(found, rate)
        wave = resample_poly(wave, rate // shared, found // shared)
    return np.asarray(wave, dtype=np.float32)


def load(path: Path, rate: int, min_samples: int) -> Optional[np.ndarray]:
    """A recording, or None with a message why it is left out."""
    try:
        wave = read(path, rate)
    except (soundfile.LibsndfileError, OSError) as error:
        print(f"skipped, not readable: {path}: {error}", file=sys.stderr)
        return None
    if len(wave) < min_samples:
        print(
            f"skipped, too short: {path}: {len(wave) / rate:.2f} s, "
            f"needed are {min_samples / rate:.2f} s",
            file=sys.stderr,
        )
        return None
    return wave


def split(
    wave: np.ndarray, number: int, few: bool, least: int
) -> Dict[str, np.ndarray]:
    """The parts of a recording by the data folder that they go to."""
    if not few:
        return {"valid" if number % EVERY == 0 else "train": wave}
    held_out = min(max(int(HELD_OUT * len(wave)), least), len(wave) - least)
    return {"train": wave[:-held_out], "valid": wave[-held_out:]}


def lengths_of(config: Path) -> Tuple[int, int]:
    """The sampling rate and the longest chunk of a training configuration."""
    settings = yaml.safe_load(config.read_text())
    rate = int(settings["codec_conf"].get("sampling_rate", 24000))
    # ESPnet takes one number, or text such as "4000,8000" or "4000-8000".
    chunks = re.findall(r"\d+", str(settings.get("chunk_length", 500)))
    return rate, max(int(chunk) for chunk in chunks)


class DataFolder:
    """An ESPnet data folder that utterances are added to."""

    def __init__(self, folder: Path, rate: int):
        self.folder = folder
        self.rate = rate
        self.paths: List[str] = []
        self.lengths: List[str] = []
        (folder / "wav").mkdir(parents=True, exist_ok=True)

    def add(self, name: str, wave: np.ndarray) -> None:
        path = (self.folder / "wav" / f"{name}.wav").resolve()
        soundfile.write(path, wave, self.rate, "PCM_16")
        self.paths.append(f"{name} {path}\n")
        self.lengths.append(f"{name} {len(wave)}\n")

    def close(self) -> None:
        """Write the two lists, last, so that they are there only when all is."""
        if not self.paths:
            sys.exit(f"No usable recording for {self.folder}: longer ones are needed.")
        (self.folder / "wav.scp").write_text("".join(self.paths))
        (self.folder / "utt2num_samples").write_text("".join(self.lengths))
        seconds = sum(int(line.split()[1]) for line in self.lengths) / self.rate
        print(f"{self.folder}: {len(self.paths)} utterances, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recordings", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/ and valid/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    args = parser.parse_args()

    rate, chunk = lengths_of(args.config)
    # The trainer drops what is not longer than a chunk; a fourth more gives it some.
    least = chunk + chunk // 4
    found = names(find(args.recordings), args.recordings)
    if not found:
        sys.exit(f"No {', '.join(sorted(SUFFIXES))} file in {args.recordings}.")
    few = len(found) < FEW
    folders = {x: DataFolder(args.data / x, rate) for x in ("train", "valid")}
    usable = 0
    for name, path in found.items():
        wave = load(path, rate, min_samples=(2 if few else 1) * least)
        if wave is None:
            continue
        for part, samples in split(wave, usable, few, least).items():
            folders[part].add(name, samples)
        usable += 1
    for folder in folders.values():
        folder.close()


if __name__ == "__main__":
    main()
