"""The recipe of DAC: the real model, discriminators and losses, tiny."""

import numpy as np
import pytest
import soundfile
import torch
from trainer_recipes import scalars, script

from balancer.loss_balancer.checkpoint import saved_in

dac = pytest.importorskip("dac", reason="needs the extra `dac`")
audiotools = pytest.importorskip("audiotools")

TINY = {
    "segment": "500",
    "batch_size": "2",
    "save_every": "10",
    "dac": "{encoder_dim: 2, encoder_rates: [2, 4], decoder_dim: 8, "
    "decoder_rates: [4, 2], n_codebooks: 2, codebook_size: 8, codebook_dim: 2}",
    "discriminator": "{periods: [], fft_sizes: [64]}",
    "mel_loss": "{n_mels: [5, 10], window_lengths: [32, 64]}",
    "lr": "1e-3",
}
FACTORS = {"mel": 15.0, "feat": 2.0, "adv": 1.0}


@pytest.fixture(scope="module")
def recipe():
    return script("dac", "train")  # which finds what recipes share


@pytest.fixture(scope="module")
def wav_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    times = np.arange(2000) / 16000
    tone = 0.3 * np.sin(2 * np.pi * 150 * times) * np.linspace(0.1, 1, 2000)
    noise = 0.03 * np.random.default_rng(0).standard_normal(2000)
    soundfile.write(folder / "tone.wav", tone + noise, 16000)
    return folder


def options(**more):
    """Return the command line of a tiny training."""
    found = {**TINY, **more}
    return [word for key, text in found.items() for word in (f"--{key}", str(text))]


def training(recipe, **more):
    """Return a tiny training that begins, and a batch for it."""
    from small_training.options import read_options

    file = recipe.Path(recipe.__file__).with_suffix(".yaml")
    read = read_options(file, "", options(**more))
    new = recipe.Training(read, torch.device("cpu"))
    random = torch.Generator().manual_seed(1)
    return new, 0.1 * torch.randn(2, 1, 500, generator=random)


def generator_gradients(new, wave, monkeypatch):
    """Return each parameter's gradient in the generator's turn, before clipping."""
    found = {}

    def note(parameters, clip):
        if clip == 1e3:
            named = new.generator.named_parameters()
            found.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    monkeypatch.setitem(vars_of(new), "clip_grad_norm_", note)
    torch.manual_seed(2)  # of the quantizer's dropout
    new.turns(wave)
    return found


def vars_of(new):
    """Return the names that the recipe's functions see."""
    return type(new).turns.__globals__


@pytest.fixture
def float64(monkeypatch):
    """Let audiotools, which takes signals, windows and filters as float32, keep
    float64."""
    signal = audiotools.AudioSignal
    window, filters = signal.get_window, signal.get_mel_filters

    def keep(self, audio, rate, device=None):
        self.audio_data, self.sample_rate = audio, rate
        self.original_signal_length = self.signal_length
        return self

    monkeypatch.setattr(signal, "load_from_array", keep)
    monkeypatch.setattr(
        signal, "get_window", staticmethod(lambda *a: window(*a).double())
    )
    monkeypatch.setattr(
        signal,
        "get_mel_filters",
        staticmethod(lambda *a, **k: filters(*a, **k).astype(np.float64)),
    )


def test_gradients_of_the_sum_with_their_factors(recipe, monkeypatch, float64):
    """With balance_grads off the weights are the factors; in float64."""
    conf = f"{{weights: {FACTORS}, balance_grads: false}}".replace("'", "")
    found = []
    for more in ({"balancer": "none"}, {"balancer_conf": conf}):
        new, wave = training(recipe, **more)
        for network in (new.generator, new.discriminator):
            network.double()
        found.append(generator_gradients(new, wave.double(), monkeypatch))
    expected, balanced = found
    assert balanced.keys() == expected.keys()
    size = max(grad.norm() for grad in expected.values())
    assert size > 1e-3
    for name, grad in expected.items():
        assert grad.dtype == torch.float64
        assert (balanced[name] - grad).norm() <= 1e-10 * size, name


def test_codebooks_are_trained_outside_the_balance(recipe, monkeypatch):
    """A hundred times the factors of their losses, a hundred times their gradient."""
    found = []
    for times in (1, 100):
        lambdas = f"{{commitment: {0.25 * times}, codebook: {times}}}"
        new, wave = training(recipe, lambdas=lambdas)
        grads = generator_gradients(new, wave, monkeypatch)
        found.append(grads["quantizer.quantizers.0.codebook.weight"])
    assert found[0].norm() > 0
    torch.testing.assert_close(found[1], 100 * found[0])


def test_discriminator_gets_no_gradient_in_the_generators_turn(recipe):
    new, wave = training(recipe)
    before = []
    step = new.step

    def note(optimizer, *rest):
        if optimizer is new.optimizer_g:
            before.extend(p.grad.clone() for p in new.discriminator.parameters())
        step(optimizer, *rest)

    new.step = note
    new.turns(wave)
    after = [p.grad for p in new.discriminator.parameters()]
    assert before and all(torch.equal(a, b) for a, b in zip(after, before))


def test_resumed_equals_the_uninterrupted_run(recipe, wav_dir, tmp_path):
    """Bit for bit: the scalars, the networks, the averages and the decoded wave."""
    for folder, runs in (("whole", (20,)), ("resumed", (10, 20))):
        for steps in runs:
            where = {"wav_dir": wav_dir, "out_dir": tmp_path / folder}
            recipe.main(options(steps=steps, **where))
    whole, resumed = (tmp_path / folder for folder in ("whole", "resumed"))
    expected = scalars(whole)
    assert scalars(resumed) == expected
    assert {len(values) for values in expected.values()} == {20}
    states = [torch.load(x / "checkpoint.pt") for x in (whole, resumed)]
    assert_equal(*states)
    assert saved_in(states[0]["optimizer_g"], "balancer")["calls"] == 20
    decoded = [soundfile.read(x / "decoded.wav")[0] for x in (whole, resumed)]
    assert len(decoded[0]) == 2000 and np.array_equal(*decoded)
    assert np.abs(decoded[0]).max() > 0

    for loss, weight in FACTORS.items():
        shares = np.array(expected[f"balancer/{loss}_share"])
        target = weight / sum(FACTORS.values())
        assert expected[f"balancer/{loss}_target"] == pytest.approx([target] * 20)
        assert shares[0] == pytest.approx(target, rel=1e-6)
        assert shares.mean() == pytest.approx(target, rel=0.2)


def assert_equal(found, expected):
    """Tensors to the bit, whatever they are nested in."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            assert_equal(*pair)
    else:
        assert found == expected


def test_float16_with_a_grad_scaler(recipe):
    """It measures what float32 does; a scale that overflows is skipped and halved."""
    less = {
        "discriminator": "{periods: [], fft_sizes: [32], bands: [[0.0, 1.0]]}",
        "mel_loss": "{n_mels: [5], window_lengths: [32], mel_fmin: [0], "
        "mel_fmax: [null]}",
        "lr": "1e-9",  # so that both meet the same discriminator
    }
    stats = []
    for amp in ("null", "float16"):
        new, wave = training(recipe, amp=amp, **less)
        torch.manual_seed(2)
        _, found = new.turns(wave[:1, :, :128])
        stats.append(found)
    for name, value in stats[0].items():
        assert stats[1][name] == pytest.approx(value, rel=0.02), name
    before = [p.detach().clone() for p in new.generator.parameters()]
    new.scaler.update(2.0**60)
    new.turns(wave[:1, :, :128])
    assert all(map(torch.equal, before, new.generator.parameters()))
    assert new.scaler.get_scale() == 2.0**59


def test_what_is_refused(recipe, wav_dir, tmp_path, capsys):
    where = {"wav_dir": wav_dir, "out_dir": tmp_path}
    for more, said in (
        ({"balancer": "gradnorm"}, "invalid choice: 'gradnorm'"),
        ({"batch_size": "50"}, "--batch_size 50 is more than the data have"),
    ):
        with pytest.raises(SystemExit) as end:
            recipe.main(options(**more, **where))
        assert said in f"{end.value} {capsys.readouterr().err}"
