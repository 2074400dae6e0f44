"""The recipes of three trainers, run on tiny networks and recordings."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from accelerate.state import AcceleratorState

EGS = Path(__file__).parents[2] / "egs"
LAUNCHERS = {
    "pytorch": "torch.distributed.run --standalone --nproc_per_node 2",
    "accelerate": "accelerate.commands.launch --multi_gpu --num_processes 2 "
    "--num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0",
    "lightning": "",  # its Trainer starts the other process
}
TINY = {
    "segment": "2000",
    "batch_size": "2",
    "codec": "{channels: 2, strides: [2, 5], dim: 4, entries: 8}",
    "discriminator": "{channels: 2, n_ffts: [128, 64]}",
    "balancer": "{weights: {l1: 1, stft: 4, adv: 1, feat: 1}, ema_decay: 0.9, "
    "update_every: 2}",
    "lr": "1e-4",
}


def script(recipe, name):
    """Return a script of a recipe as a module."""
    folder = EGS / recipe
    if str(folder) not in sys.path:  # where Python looks first if it runs the script
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(trainer, wav_dir, out_dir, epochs, amp=None, **other):
    """Train in this process, with other options, too."""
    AcceleratorState._reset_state(reset_partial_state=True)
    command = options(trainer, wav_dir, out_dir, epochs, ranks=1, amp=amp)
    command += [word for key, text in other.items() for word in (f"--{key}", text)]
    script(trainer, "train").main(command)


def train_on_two(trainer, wav_dir, out_dir, epochs):
    """Train on two processes, as a user starts them."""
    command = [sys.executable]
    if LAUNCHERS[trainer]:
        command += ["-m", *LAUNCHERS[trainer].split()]
    command += [EGS / trainer / "train.py"]
    command += options(trainer, wav_dir, out_dir, epochs, ranks=2)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-5000:]


def options(trainer, wav_dir, out_dir, epochs, ranks, amp=None):
    """Return the command line, in the trainer's own words."""
    found = {**TINY, "wav_dir": str(wav_dir), "out_dir": str(out_dir)}
    if trainer == "pytorch":
        found.update(epochs=str(epochs), amp=amp or "null")
    elif trainer == "accelerate":
        half = {None: "no", "bfloat16": "bf16"}[amp]
        found.update(epochs=str(epochs), mixed_precision=half)
    else:
        half = {None: "32-true", "bfloat16": "bf16-mixed"}[amp]
        strategy = "auto" if ranks == 1 else "ddp_find_unused_parameters_true"
        found["trainer"] = (
            f"{{max_epochs: {epochs}, accelerator: cpu, devices: {ranks}, "
            f"strategy: {strategy}, precision: {half}}}"
        )
    return [word for key, text in found.items() for word in (f"--{key}", text)]


def scalars(out_dir):
    """Return name → values by step of what the trainer's logger wrote."""
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(out_dir)).Reload()
    names = events.Tags()["scalars"]
    found = {
        name: {event.step: event.value for event in events.Scalars(name)}
        for name in names
        if name.startswith(("loss/", "balancer/"))
    }
    return {name: [by[step] for step in sorted(by)] for name, by in found.items()}
