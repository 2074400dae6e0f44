#!/usr/bin/env python3
"""Make ESPnet data folders, train and valid, of recordings with their texts.

What is said in a.wav stands in a.txt beside it. Each recording becomes mono at the
recipe's rate, and its text small letters of the recipe's token_list. Every tenth
recording is held out for validation, the first one too, so two are enough. A data
folder holds ``wav.scp`` (utterance, path), ``text`` (utterance, words) and
``utt2num_samples`` (utterance, length: ESPnet's shape file).
"""

import argparse
import logging
from pathlib import Path
from typing import Any, Dict, Mapping

import yaml

from balancer.bin.command import run_command
from balancer.reports.recordings import (
    DataFolder,
    find,
    load,
    long_enough,
    names,
    readable,
    warn_of,
)

EVERY = 10  # the recording that is held out


def read_text(recording: Path, letters: str) -> str:
    """The words that belong to a recording, of these letters; none if no text is there.

    Digits and other signs become blanks, so numbers must be written out.
    """
    path = recording.with_suffix(".txt")
    if not path.is_file():
        return ""
    said = path.read_text(encoding="utf-8").lower()
    return " ".join("".join(x if x in letters else " " for x in said).split())


def prepare(recordings: Path, data: Path, settings: Mapping[str, Any]) -> None:
    """Make both data folders.

    Raises:
        ValueError: fewer than two recordings can be used.
    """
    conf = settings["tts_conf"]
    rate = int(conf["sampling_rate"])
    # The decoder trains on segments of so many samples.
    least = (
        conf["generator_params"]["segment_size"] * conf["mel_loss_params"]["hop_length"]
    )
    letters = "".join(token for token in settings["token_list"] if len(token) == 1)
    named = names(find(recordings), recordings)
    texts = {name: read_text(path, letters) for name, path in named.items()}
    warn_of([named[name] for name in named if not texts[name]], "without a text")
    with_text = [(name, path) for name, path in named.items() if texts[name]]
    found = long_enough(readable(with_text), least, rate)
    written: Dict[str, Dict[str, str]] = {"train": {}, "valid": {}}
    with DataFolder(data / "train", rate) as train, DataFolder(
        data / "valid", rate
    ) as valid:
        for name, recording in found.items():
            wave = load(recording.path, rate, least)
            if wave is None:
                continue
            usable = sum(map(len, written.values()))
            folder = train if usable % EVERY else valid
            folder.add(name, wave)
            written[folder.folder.name][name] = texts[name]
        if not written["train"]:
            raise ValueError(
                f"{recordings} has not two recordings that can be used: the lines "
                "above say what is wrong with each. What is said in a.wav is to stand "
                "in a.txt"
            )
        for folder in (train, valid):
            print(folder.close())
            lines = [f"{n} {text}\n" for n, text in written[folder.folder.name].items()]
            (folder.folder / "text").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    logging.basicConfig(format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recordings", type=Path, help="searched with all folders in it")
    parser.add_argument("data", type=Path, help="where train/ and valid/ go")
    parser.add_argument("config", type=Path, help="the training configuration")
    run_command(
        parser,
        lambda args: prepare(
            args.recordings, args.data, yaml.safe_load(args.config.read_text())
        ),
    )


if __name__ == "__main__":
    main()
