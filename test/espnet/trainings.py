"""Tiny recordings, and ESPnet's task and inference run in this process."""

import copy
import logging

import numpy as np
import pytest
import soundfile
import yaml
from mini_recipe import recipe, tts_recipe


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with wav.scp, utt2num_samples and text of two recordings of 0.6 s."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    time = np.arange(9600) / 16000
    scp, shapes = [], []
    for i in range(2):
        wave = sum(
            np.sin(2 * np.pi * k * (100 + 20 * i) * time) / k for k in range(1, 9)
        )
        wave = 0.1 * wave + 0.01 * random.standard_normal(len(time))
        soundfile.write(folder / f"utt{i}.wav", wave, 16000)
        scp.append(f"utt{i} {folder}/utt{i}.wav\n")
        shapes.append(f"utt{i} {len(wave)}\n")
    (folder / "wav.scp").write_text("".join(scp))
    (folder / "utt2num_samples").write_text("".join(shapes))
    (folder / "text").write_text("utt0 a voice\nutt1 another one\n")
    return folder


@pytest.fixture
def train(data, tmp_path):
    """Train: train(task, config, name, *arguments) returns the output folder."""
    return lambda *arguments: _train(data, tmp_path, *arguments)


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """The output folder of two epochs of two steps with TensorBoard and the cosines."""
    from balancer.espnet.task import BalancedGANCodecTask

    config = recipe("soundstream")
    config["balancer_conf"].update(monitor=True, update_every=1)
    config.update(use_tensorboard=True, max_epoch=2)
    folder = tmp_path_factory.mktemp("trained")
    return _train(data, folder, BalancedGANCodecTask, config, "exp")


@pytest.fixture(scope="session")
def trained_tts(data, tmp_path_factory):
    """That of two epochs of one step of a VITS, with a probe, too."""
    from balancer.espnet.tts import BalancedGANTTSTask

    config = tts_recipe()
    config["balancer_conf"].update(monitor=True, update_every=1, probe={"every": 1})
    config["balancer_conf"]["outside_every"] = 1
    config.update(use_tensorboard=True, max_epoch=2)
    folder = tmp_path_factory.mktemp("trained_tts")
    return _train(data, folder, BalancedGANTTSTask, config, "exp")


def _train(data, folder, task, config, name, *arguments):
    config = copy.deepcopy(config)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    command = ["--config", str(path), "--output_dir", str(folder / name)]
    command += of_data(data, config)
    logging.getLogger().setLevel(logging.INFO)
    task.main(cmd=[*command, "--ngpu", "0", *arguments])
    return folder / name


def of_data(data, config):
    """The arguments that make `data` a task's training and validation data."""
    kinds = ["wav.scp,audio,sound"]
    if "tts" in config:
        kinds = ["text,text,text", "wav.scp,speech,sound"]
    command = []
    for part in ("train", "valid"):
        for kind in kinds:
            command += [f"--{part}_data_path_and_name_and_type", f"{data}/{kind}"]
        command += [f"--{part}_shape_file", f"{data}/utt2num_samples"]
    return command


@pytest.fixture
def decode(data, tmp_path):
    """Decode with ESPnet's own inference: decode(output folder) returns the waves."""

    def run(folder, model="latest.pth"):
        from espnet2.bin.gan_codec_inference import main

        output = tmp_path / "decoded"
        command = f"--train_config {folder}/config.yaml --model_file {folder}/{model} "
        command += f"--data_path_and_name_and_type {data}/wav.scp,audio,sound "
        main(cmd=f"{command} --output_dir {output} --ngpu 0".split())
        waves = sorted((output / "wav").glob("*.wav"))
        return [soundfile.read(path)[0] for path in waves]

    return run
