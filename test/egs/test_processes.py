"""Several GPUs and several machines: what the run.sh ask of ESPnet for them."""

import itertools
import shlex
import socket
import subprocess

import pytest
import yaml
from espnet2.train.distributed_utils import resolve_distributed_mode
from run_sh import EGS, command, run, trainer_arguments

from balancer.espnet.task import BalancedGANCodecTask


def resolved(arguments):
    """Return the arguments as ESPnet understands them, which fails if it cannot."""
    args = BalancedGANCodecTask.get_parser().parse_args(arguments)
    resolve_distributed_mode(args)
    return args


@pytest.mark.parametrize("recipe", ["mini", "libritts"])
def test_each_gpu_gets_a_process(recipe, tmp_path):
    args = resolved(trainer_arguments(tmp_path, recipe, "--ngpu", 2))
    assert args.distributed and args.multiprocessing_distributed and args.ngpu == 2
    assert args.dist_backend == "nccl" and args.resume
    # ESPnet gives each process a part of a batch.
    assert (args.valid_batch_size or args.batch_size) >= 2
    args = resolved(trainer_arguments(tmp_path, recipe, "--ngpu", 1))
    assert not args.distributed and not args.multiprocessing_distributed


def several_machines(**words):
    """Return the options that --help names for machine R, by ESPnet and by torchrun."""
    text = run("libritts", "--help").stdout
    text = text.partition("Several machines")[2].replace("\\\n", " ")
    for word, value in words.items():
        text = text.replace(word, str(value))
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("  run.sh"):
            while line.count('"') % 2:
                line += "\n" + next(lines)
            yield shlex.split(line)[1:]


def test_machines_of_many_gpus(tmp_path, monkeypatch):
    by_espnet, by_torchrun = several_machines(**{"rank R": "rank 1", "HOST": "a.b"})
    assert "--launcher" in by_torchrun
    args = resolved(trainer_arguments(tmp_path, "libritts", *by_espnet))
    assert args.distributed and args.multiprocessing_distributed
    assert (args.ngpu, args.dist_world_size, args.dist_rank) == (8, 2, 1)
    # What torchrun tells a process.
    for name, value in (("WORLD_SIZE", "16"), ("RANK", "9"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    args = resolved(trainer_arguments(tmp_path, "libritts", *by_torchrun))
    assert args.distributed and not args.multiprocessing_distributed
    assert args.ngpu == 1


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Options for a tiny model on two artificial voices, with the data prepared."""
    folder = tmp_path_factory.mktemp("small")
    config = yaml.safe_load(
        (EGS / "mini/codec1/conf/train_soundstream.yaml").read_text()
    )
    config.update(max_epoch=1, use_matplotlib=False, use_tensorboard=False)
    config.update(chunk_length=4800, chunk_shift_ratio=1.0, num_workers=0)
    config.update(log_interval=1, valid_batch_size=2)
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    options = ["--config", path, "--data_dir", folder / "data", "--ngpu", "0"]
    result = run("mini", *options, "--stop_stage", 1, "--synthetic", "true")
    assert result.returncode == 0, result.stderr
    return options


@pytest.mark.parametrize("launcher", ["by ESPnet", "by torchrun"])
def test_two_processes_stand_for_two_machines(launcher, small, tmp_path):
    """The lines of --help, with a process of the CPU for the GPUs of a machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    number = ["by ESPnet", "by torchrun"].index(launcher)
    machines = []
    for rank in range(2):
        words = {"rank R": f"rank {rank}", "HOST": "127.0.0.1", "29500": port}
        words["nproc_per_node 8"] = "nproc_per_node 1 --local_addr 127.0.0.1"
        words["batch_size 128"] = "batch_size 4"
        options = next(itertools.islice(several_machines(**words), number, None))
        options += [*small, "--exp_dir", tmp_path, "--tag", "two"]
        with open(tmp_path / f"{rank}.txt", "w") as shown:
            machines.append(
                subprocess.Popen(
                    command("libritts", *options), stdout=shown, stderr=shown
                )
            )
    codes = [machine.wait(timeout=400) for machine in machines]
    log = (tmp_path / "two" / "train.log").read_text()
    assert codes == [0, 0], log[-5000:]
    assert "0/2]" in log and "mel_share=" in log
    shown = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert [text.count("epoch 1/1 ") for text in shown].count(1) == 1


def test_arguments_may_be_quoted(tmp_path):
    section = "{ema_decay: 0.9, weights: {mel: 1}}"
    arguments = trainer_arguments(
        tmp_path, "mini", "--train_args", f"--balancer_conf '{section}' --max_epoch 7"
    )
    assert arguments[-4:] == ["--balancer_conf", section, "--max_epoch", "7"]


def test_no_gpu_is_found_out_before_the_work(tmp_path):
    result = run("libritts", "--wav_dir", tmp_path, "--ngpu", 99)
    assert result.returncode == 2 and not result.stdout
    assert "--ngpu 99, but PyTorch finds" in result.stderr
    assert "--ngpu 0" in result.stderr
