#!/usr/bin/env python3
"""Write artificial voices into a folder, for where no recording can be had.

A voiced source (a harmonic series that falls by 6 dB an octave, on a moving f0) goes
through a few moving formants, syllable by syllable, with a little breath noise. The
same seed writes the same samples.
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000  # Hz
SECONDS = 4.0
SYLLABLES_PER_SECOND = 4
FORMANTS = ((300.0, 800.0), (900.0, 2200.0), (2300.0, 3200.0))  # Hz, lowest to highest
BANDWIDTH = 120.0  # Hz, of the first formant; the others are wider


def wander(
    rng: np.random.Generator, low: float, high: float, samples: int
) -> np.ndarray:
    """A curve through random points between low and high, one a syllable."""
    points = int(SECONDS * SYLLABLES_PER_SECOND) + 1
    values = rng.uniform(low, high, points)
    return np.interp(np.linspace(0, points - 1, samples), np.arange(points), values)


def voice(rng: np.random.Generator) -> np.ndarray:
    """One utterance of one voice, at a peak of 0.7."""
    samples = int(RATE * SECONDS)
    base = rng.uniform(90.0, 220.0)
    f0 = wander(rng, 0.85 * base, 1.2 * base, samples)
    phase = 2 * np.pi * np.cumsum(f0) / RATE
    formants = [wander(rng, low, high, samples) for low, high in FORMANTS]

    wave = np.zeros(samples)
    for k in range(1, int(RATE / 2 / f0.max())):
        frequency = k * f0
        gain = sum(
            1.0 / (1.0 + ((frequency - center) / (BANDWIDTH * (i + 1))) ** 2)
            for i, center in enumerate(formants)
        )
        wave += gain / k * np.sin(k * phase)

    tempo = wander(rng, 0.8, 1.2, samples) * SYLLABLES_PER_SECOND
    loudness = np.abs(np.sin(np.pi * np.cumsum(tempo) / RATE))
    wave = wave * loudness + 0.003 * rng.standard_normal(samples)
    return 0.7 * wave / np.abs(wave).max()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the wav files go")
    parser.add_argument("--voices", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for i in range(args.voices):
        # A generator of its own for each, so that more voices change none before.
        wave = voice(np.random.default_rng([args.seed, i]))
        soundfile.write(args.folder / f"voice{i:02d}.wav", wave, RATE, "PCM_16")


if __name__ == "__main__":
    main()
