"""Measure the raw gradients of a recipe's losses before a long run.

    python -m balancer.bin.inspect conf/train.yaml --wav_dir recordings
    python -m balancer.bin.inspect exp/DIR/config.yaml --model_file exp/DIR/latest.pth

Prints each loss's gradient norm at the decoder's output, its share of the gradient
without a balancer and with one, the cosine of each pair, what looks wrong, the
total_norm to start from, and the weights that keep the gradient as it is. The recipe
may be a stock one, without a balancer.

The nets are not trained, so without --model_file they are as they were initialized. The
adversarial losses' norms change most as the discriminator learns: ask again with the
model file of a short run, or with --train_steps.
"""

import argparse
import contextlib
import io
import itertools
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional, Sequence

import torch
import yaml
from tqdm import tqdm

from balancer.bin.command import at_least, run_command
from balancer.reports.files import read_yaml
from balancer.reports.inspection import Inspection

if TYPE_CHECKING:  # ESPnet takes long to import, and --help does not need it.
    from balancer.espnet.recipe import Batch


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m balancer.bin.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="a recipe's YAML, or config.yaml")
    add(
        "--wav_dir",
        type=Path,
        help="wav, flac and ogg files (default: the training data that CONFIG names)",
    )
    add("--steps", type=at_least(1), default=20, help="batches to measure (20)")
    add(
        "--train_steps",
        type=at_least(0),
        default=0,
        help="train for so many steps first, as CONFIG says (0)",
    )
    add("--model_file", type=Path, help="a model's *.pth to measure")
    add("--seed", type=int, help="of initialization and batches (CONFIG's)")
    add("--ngpu", type=int, choices=[0, 1], default=0, help="number of GPUs (0)")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run the command; see `python -m balancer.bin.inspect --help`."""
    run_command(get_parser(), lambda options: print(report(options)), cmd)


def report(options: argparse.Namespace) -> str:
    """Measure and return what is printed."""
    if options.ngpu and not torch.cuda.is_available():
        raise ValueError("--ngpu 1 needs a GPU, and PyTorch finds none: take --ngpu 0")
    read_yaml(options.config)  # says what is wrong before ESPnet's long import
    warnings.filterwarnings("ignore")  # of ESPnet and torch, about their own code
    with quiet():
        from espnet2.torch_utils.set_all_random_seed import set_all_random_seed

        from balancer.espnet import inspection, kinds, recipe

        args = recipe.read_config(options.config)
    args.ngpu = options.ngpu
    args.seed = args.seed if options.seed is None else options.seed
    set_all_random_seed(args.seed)
    model = recipe.build_model(args, options.model_file)
    with tempfile.TemporaryDirectory() as folder:
        if options.wav_dir:
            most = (options.train_steps + options.steps) * args.batch_size
            data = Path(folder) / "train"
            recipe.use_recordings(args, options.wav_dir, data, model, most)
        batches = recipe.batches(args)
        if options.train_steps:
            first = some(batches, "training", options.train_steps)
            inspection.train(model, args, first)
        found = inspection.measure(
            model, args, some(batches, "measuring", options.steps)
        )
    return "\n\n".join(lines(options, args, kinds.kind_of(args), found))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what ESPnet's import says of packages that it can do without.

    Raises:
        ImportError: ESPnet, or what it needs, is not installed; with what to do.
    """
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            yield
    except ImportError as error:
        raise ImportError(
            f"{error}: install ESPnet beside the extra, `pip install "
            "'espnet-balancer[espnet]'` and `pip install --no-deps espnet==202511`"
        ) from error


def some(batches: "Iterator[Batch]", what: str, count: int) -> "Iterator[Batch]":
    """Return so many of the batches, with a progress bar where a person watches."""
    bar = tqdm(
        itertools.islice(batches, count), what, count, unit="batch", disable=None
    )
    return iter(bar)


def lines(
    options: argparse.Namespace, args: argparse.Namespace, kind: str, found: Inspection
) -> Iterator[str]:
    """Yield the report, a paragraph at a time."""
    model = getattr(args, kind)
    files = [options.model_file] if options.model_file else args.init_param
    state = f"of {', '.join(map(str, files))}" if files else "as initialized"
    if options.train_steps:
        state += f" and trained for {options.train_steps} steps"
    yield (
        f"Gradients at the output of the {model} decoder, {state}; means over "
        f"{options.steps} batches, seed {args.seed}."
    )
    yield from found.findings()
    yield "To balance and keep the gradient as it is, put this into the recipe:"
    section = {"balancer": "grad_norm", "balancer_conf": found.section()}
    yield yaml.safe_dump(section, indent=4, sort_keys=False).rstrip()
    if found.lambdas:
        listed = ", ".join(f"{key}: {value:g}" for key, value in found.lambdas.items())
        yield (
            f"The weights hold {listed} already: set them to 1 in {kind}_conf, since "
            "a balancer divides them out."
        )
    if not files and not options.train_steps:
        yield (
            "Shares change as the nets learn, the adversarial losses' most: ask again "
            "with --train_steps N, or with --model_file of a run."
        )


if __name__ == "__main__":
    main()
