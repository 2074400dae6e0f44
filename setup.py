"""Distribution of the package ``balancer``."""

import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent


class SourceDistribution(sdist):
    """All that git tracks, so that recipes, tests and tools work from it too."""

    def make_distribution(self):
        command = ["git", "ls-files", "-z"]
        try:
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"A source distribution is made of a git checkout: {error}. A wheel "
                "can be built without: `python -m build --wheel`."
            ) from error
        for path in answer.stdout.decode().rstrip("\0").split("\0"):
            self.filelist.append(path)
        self.filelist.remove_duplicates()
        super().make_distribution()


# What egs/pytorch and its like read, report and draw with.
RECIPES = ["matplotlib", "scikit-learn", "soundfile", "soxr", "tensorboard", "tqdm"]

EXTRAS = {
    # What ESPnet 202511's GAN tasks import. ESPnet itself is not listed: pip
    # refuses the metadata of one of its dependencies, so it is installed beside
    # these with `pip install --no-deps espnet==202511`.
    # NumPy 2.4 breaks ESPnet's chunk iterator.
    "espnet": [
        "einops",
        "espnet_tts_frontend",
        "g2p-en",
        "h5py",
        "humanfriendly",
        "jamo",
        "kaldiio",
        "librosa",
        "matplotlib",
        "numpy<2.4",
        "packaging",
        # pyworld itself, which TTS and SVS import, as wheels: no compiler is needed.
        "pyworld-prebuilt",
        "scipy",
        "sentencepiece",
        "soundfile",
        "soxr",
        "tensorboard",
        "torch_complex",
        "torchaudio",
        "tqdm",
    ],
    "plot": ["matplotlib", "tensorboard"],
    # With what its weightings need for solving quadratic programs.
    "torchjd": ["torchjd[cagrad,fairgrad,quadprog-projector]>=0.18"],
    "recipes": RECIPES,
    "accelerate": ["accelerate", *RECIPES],
    "lightning": ["lightning", *RECIPES],
    # What DAC's model and losses import. DAC is not listed: audiotools asks for a
    # protobuf of before 3.20, which no current TensorBoard takes, so both are installed
    # beside these: `pip install --no-deps descript-audio-codec descript-audiotools`.
    "dac": [
        "argbind",
        "einops",
        "ffmpy",
        "flatten-dict",
        "importlib_resources",
        "julius",
        "librosa",
        "pystoi",
        "randomname",
        "rich",
        "scipy",
        "torchaudio",
        *RECIPES,
    ],
    # egs/study. It scores PESQ too where `pesq` is, which needs a compiler.
    "study": [
        "auraloss",
        "G722",
        "matplotlib",
        "pystoi",
        "scipy",
        "soundfile",
        "soxr",
        "torchjd[cagrad,fairgrad,quadprog-projector]>=0.18",
        "tqdm",
    ],
    "benchmark": ["matplotlib", "torchjd", "tqdm"],
    "test": [
        "black",
        "flake8",
        "hypothesis",
        "isort",
        "mypy",
        "numpy",
        "pytest",
        "pytest-random-order",
        "pytest-xdist",
        "types-PyYAML",
    ],
}

setup(
    name="espnet-balancer",
    version="0.1.0",
    description="A loss balancer for GAN codecs and other models of several losses",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["balancer", "balancer.*"]),
    package_data={"balancer": ["py.typed"]},
    python_requires=">=3.10",
    install_requires=["pyyaml", "torch>=2.6", "typeguard>=4"],
    extras_require=EXTRAS,
    zip_safe=False,
    cmdclass={"sdist": SourceDistribution},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
