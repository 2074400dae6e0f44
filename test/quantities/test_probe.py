"""The probe against a loop over the samples, and what it leaves behind: nothing."""

import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from balancer import Balancer, GradientProbe
from balancer.quantities.probe import QUANTITIES

ALL = list(QUANTITIES)
DOUBLE = torch.float64


def critic():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.Tanh()).double()


def means(y, judge):
    """Losses that are means over the batch of each sample's own."""
    return {
        "l1": (y - 0.3).abs().mean(),
        "l2": 1e3 * y.square().mean(),
        "adv": (1 - judge(y)).square().mean(),
    }


def layers():
    """Kinds of layers, with what follows each on the way to the output."""
    torch.manual_seed(0)
    return {
        "conv": (nn.Conv1d(3, 2, 5, padding=2), [nn.ELU(inplace=True), nn.Tanh()]),
        "strided conv": (nn.Conv1d(3, 6, 4, stride=2, groups=3), []),
        "transposed": (nn.ConvTranspose1d(3, 2, 4, stride=2), [nn.Tanh()]),
        "conv2d": (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv2d(1, 2, 3)), []),
        "linear": (nn.Linear(8, 4), [nn.ELU()]),
        "weight_norm": (weight_norm(nn.Conv1d(3, 2, 5, padding=2)), [nn.Tanh()]),
        "transposed weight_norm": (weight_norm(nn.ConvTranspose1d(3, 2, 4)), []),
        "parametrized": (
            parametrizations.weight_norm(nn.Conv1d(3, 2, 3)),
            [nn.Tanh()],
        ),
        "frozen bias": (nn.Conv1d(3, 2, 5), [nn.Tanh()]),
        "several": (nn.Sequential(nn.Conv1d(3, 4, 3), nn.ELU(), nn.Linear(6, 2)), []),
    }


def build(kind):
    layer, tail = layers()[kind]
    if kind == "frozen bias":
        layer.bias.requires_grad_(False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 3, 3), nn.ELU(), layer, *tail).double()
    return net, net[2]


def batch(size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 10, generator=generator, dtype=DOUBLE)


def loop(run, layer, x, losses_of):
    """The rows, for each loss, by one plain backward for each sample alone."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    rows = {}
    for sample in x.split(1):
        for name, loss in losses_of(run(sample)).items():
            grads = torch.autograd.grad(
                loss, parameters, retain_graph=True, materialize_grads=True
            )
            row = torch.cat([grad.flatten() for grad in grads])
            rows.setdefault(name, []).append(row)
    return {
        f"{name}_{quantity}": QUANTITIES[quantity](torch.stack(found)).item()
        for name, found in rows.items()
        for quantity in ALL
    }


def probed(stats):
    return {key: value for key, value in stats.items() if key.endswith(tuple(ALL))}


@pytest.mark.parametrize("input_only", [True, False])
@pytest.mark.parametrize("kind", layers())
def test_equals_a_loop_over_the_samples(kind, input_only):
    net, layer = build(kind)
    judge = critic()
    expected = loop(net, layer, batch(), lambda y: means(y, judge))
    balancer = Balancer(input_only=input_only, probe=GradientProbe(layer, ALL))
    y = net(batch())
    _, stats = balancer(means(y, judge), y)
    assert probed(stats) == pytest.approx(expected, rel=1e-9)


def dual(decoder):
    """The outputs of one decoder for two latents, as a dual decoder has them."""
    return lambda x: (decoder(x), decoder(x.tanh() - 0.1))


def dual_losses(outputs):
    y, real = outputs
    return {
        "l1": y.abs().mean(),
        "real": real.square().mean(),
        "both": (y * real).mean(),
    }


def test_calls_of_a_dual_decoder_add_up():
    net, layer = build("weight_norm")
    expected = loop(dual(net), layer, batch(), dual_losses)
    balancer = Balancer(probe=GradientProbe(layer, ALL))
    outputs = dual(net)(batch())
    _, stats = balancer(dual_losses(outputs), outputs)
    assert probed(stats) == pytest.approx(expected, rel=1e-9)


def test_a_layer_that_feeds_itself():
    torch.manual_seed(0)
    layer = nn.Linear(10, 10).double()

    def run(x):
        return layer(layer(x).tanh())

    expected = loop(run, layer, batch(), lambda y: {"l1": y.abs().mean()})
    balancer = Balancer(probe=GradientProbe(layer, ALL))
    y = run(batch())
    _, stats = balancer({"l1": y.abs().mean()}, y)
    assert probed(stats) == pytest.approx(expected, rel=1e-9)


class Run:
    """A training of a small decoder, deterministic in the number of the step."""

    def __init__(self, probe=True, every=4, kind="weight_norm", **options):
        self.net, self.layer = build(kind)
        self.judge = critic()
        self.judge(self.net(batch()))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.balancer = Balancer(ema_decay=0.9, **options)
        if probe:
            self.balancer.probe = GradientProbe(self.layer, ALL, every)
        self.balancer.checkpoint_with(self.optimizer)

    def step(self, step):
        y = self.net(batch(seed=step))
        new_losses, stats = self.balancer(means(y, self.judge), y)
        self.optimizer.zero_grad()
        sum(new_losses.values()).backward()
        self.optimizer.step()
        return stats

    def train(self, steps):
        return [self.step(step) for step in steps]


@pytest.mark.parametrize("input_only", [True, False])
def test_training_is_the_same_to_the_bit(input_only):
    plain, run = (Run(p, every=2, input_only=input_only) for p in (False, True))
    keys = list(run.layer.__dict__)
    expected, found = plain.train(range(5)), run.train(range(5))
    for a, b in zip(plain.net.parameters(), run.net.parameters()):
        assert torch.equal(a, b)
    assert [{k: s[k] for k in expected[0]} for s in found] == expected
    assert list(run.net.state_dict()) == list(plain.net.state_dict())
    assert list(run.layer.__dict__) == keys
    assert run.optimizer.state_dict()["state"].keys() == (
        plain.optimizer.state_dict()["state"].keys()
    )


@pytest.mark.parametrize(
    "update_every, due", [(1, [0, 4, 8]), (3, [0, 6]), (5, [0, 5])]
)
def test_due_when_measuring_and_every_calls_later(update_every, due):
    run = Run(update_every=update_every)
    last, changed = None, []
    for step in range(9):
        stats = run.step(step)
        assert len(probed(stats)) == 3 * len(ALL)
        if probed(stats) != last:
            changed.append(step)
        last = probed(stats)
    assert changed == due
    assert all(isinstance(value, float) for value in stats.values())


def notes(y, probe):
    """How many nodes of a tensor's graph hold a tensor that the probe noted."""
    stack, seen = [y.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
    found = [node.metadata[probe] for node in seen if probe in node.metadata]
    return sum(x is not None for inputs in found for x in inputs.values())


def test_the_layer_is_left_alone_between():
    run = Run(every=2)
    probe = run.balancer.probe
    assert notes(run.net(batch()), probe) == 1
    with torch.no_grad():
        run.net(batch())
    y = run.net(batch())
    run.balancer(means(y, run.judge), y)
    assert notes(y, probe) == 0
    y = run.net(batch())
    assert notes(y, probe) == 0
    run.balancer(means(y, run.judge), y)
    assert notes(run.net(batch()), probe) == 1


@pytest.mark.parametrize("update_every", [1, 2])
@pytest.mark.parametrize("every", [1, 4, 5])
def test_several_forwards_then_several_calls(every, update_every):
    """It is never due later than a step after it would be, and then is right."""
    net, layer = build("weight_norm")
    judge = critic()
    probe = GradientProbe(layer, ALL, every)
    balancer = Balancer(update_every=update_every, probe=probe)
    last, taken = None, []
    for step in range(5):
        outputs = [net(batch(seed=3 * step + call)) for call in range(3)]
        for call, y in enumerate(outputs):
            new_losses, stats = balancer(means(y, judge), y)
            sum(new_losses.values()).backward()
            if probed(stats) != last:
                seed = 3 * step + call
                taken.append(seed)
                last = probed(stats)
                expected = loop(net, layer, batch(seed=seed), lambda y: means(y, judge))
                assert last == pytest.approx(expected, rel=1e-9)
    assert taken == ([0, 6, 12] if every > 1 else list(range(0, 15, update_every)))


def test_a_decoder_of_which_one_call_was_not_noted():
    """The rows of the other alone would be those of another loss."""
    net, layer = build("weight_norm")
    balancer = Balancer(probe=GradientProbe(layer, ALL, every=2))
    early = None
    for step in range(4):
        outputs = net(batch(seed=step)), early if step == 2 else net(batch())
        early = net(batch())
        balancer(dual_losses(outputs), outputs)
        assert balancer.state_dict()["probed_at"] == [0, 0, 0, 3][step]


def test_a_layer_that_is_frozen_for_a_while():
    run = Run(every=2)
    run.train(range(2))
    trained = [p for p in run.layer.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    run.train(range(2, 4))
    assert run.balancer.state_dict()["probed_at"] == 0
    for parameter in trained:
        parameter.requires_grad_(True)
    run.step(4)
    assert run.balancer.state_dict()["probed_at"] == 4


class _Holder(torch.autograd.Function):
    """A node that lives as long as its graph, and says so."""

    @staticmethod
    def forward(ctx, x, alive):
        ctx.held = nn.Identity()
        alive.append(weakref.ref(ctx.held))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def test_no_graph_is_kept_alive():
    """Neither that of a call nor one that never comes to the balancer, as that of a
    discriminator's turn; and none is garbage that waits for a collection."""
    run, alive = Run(every=1), []
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            x = _Holder.apply(batch().requires_grad_(), alive)
            y = run.net(x)
            del x, y
            x = _Holder.apply(batch().requires_grad_(), alive)
            y = run.net(x)
            new_losses, _ = run.balancer(means(y, run.judge), y)
            sum(new_losses.values()).backward()
            del x, y, new_losses
        assert [reference() for reference in alive] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies(copied):
    """A model's copy works without the balancer, and a model with it as a whole."""
    run = Run(every=1, kind="conv")  # torch copies no old weight_norm after a forward
    run.train(range(2))
    net = copied(
        run.net
    )  # while the probe waits for a call, as an average of the model
    assert torch.equal(net(batch()), run.net(batch()))
    net, balancer = copied((run.net, run.balancer))
    y = net(batch(seed=2))
    _, stats = balancer(means(y, run.judge), y)
    assert stats == run.step(2)


@pytest.mark.parametrize("update_every", [1, 3])
def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, update_every):
    whole, part = Run(update_every=update_every), Run(update_every=update_every)
    stats = whole.train(range(12))
    part.train(range(7))
    torch.save([part.net.state_dict(), part.optimizer.state_dict()], tmp_path / "c")
    resumed = Run(update_every=update_every)
    net, optimizer = torch.load(tmp_path / "c", weights_only=True)
    resumed.net.load_state_dict(net)
    resumed.optimizer.load_state_dict(optimizer)
    assert resumed.train(range(7, 12)) == stats[7:]
    assert resumed.balancer.state_dict() == whole.balancer.state_dict()


def test_loaded_state_that_is_due_and_reset():
    """The layer's next call is noted, whatever the probe waited for before."""
    early, late = Run(), Run()
    early.train(range(4))
    late.train(range(5))
    late.balancer.load_state_dict(early.balancer.state_dict())
    late.step(4)
    assert late.balancer.state_dict()["probed_at"] == 4
    late.balancer.reset()
    late.step(0)
    assert late.balancer.state_dict()["probed_at"] == 0


def test_set_later():
    run = Run(probe=False)
    assert not probed(run.step(0))
    run.balancer.probe = GradientProbe(run.layer, ["norm_test"], every=1)
    assert list(probed(run.step(1))) == [
        "adv_norm_test",
        "l1_norm_test",
        "l2_norm_test",
    ]
    run.balancer.probe = None
    assert not probed(run.step(2))


def test_a_loss_that_is_away_keeps_its_values():
    run = Run(probe=False)
    weights = {"l1": 1.0, "l2": 1.0, "adv": 1.0}
    balancer = Balancer(weights=weights, probe=GradientProbe(run.layer, ALL, every=1))
    y = run.net(batch())
    _, first = balancer({"l1": y.abs().mean()}, y)
    assert math.isnan(first["adv_norm_test"]) and first["l1_norm_test"] > 0
    y = run.net(batch(seed=1))
    _, second = balancer({"l2": y.square().mean()}, y)
    assert (
        second["l1_norm_test"] == first["l1_norm_test"] and second["l2_norm_test"] > 0
    )
    assert list(second) == list(first)


def test_hooks_of_others_see_the_trainers_backward_alone():
    run = Run(every=1)
    seen = []
    run.layer.register_forward_hook(lambda *_: seen.append("forward"))
    run.layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    y = run.net(batch())
    y.retain_grad()
    y.register_hook(lambda grad: seen.append("hook"))
    new_losses, stats = run.balancer(means(y, run.judge), y)
    assert y.grad is None and all(p.grad is None for p in run.net.parameters())
    sum(new_losses.values()).backward()
    assert seen.count("forward") == seen.count("hook") == 1
    assert probed(stats) == pytest.approx(
        loop(run.net, run.layer, batch(), lambda y: means(y, run.judge)), rel=1e-9
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_float16_gradients_do_not_underflow(autocast):
    """Of 1e-7 and less on their way from the output to the layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4000), nn.Tanh())
    net[0].bias.requires_grad_(False)
    x = torch.randn(6, 8).half().float()
    quantities = ["norm_test", "critical_batch_size"]

    def losses_of(y):
        return {"l1": 1e-3 * (y - 0.3).abs().mean(), "l2": y.square().mean()}

    half = copy.deepcopy(net) if autocast else copy.deepcopy(net).half()
    balancer = Balancer(probe=GradientProbe(half[0], quantities))
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        y = half(x if autocast else x.half())
        assert y.dtype == torch.float16
        _, stats = balancer(losses_of(y.float()), y)
    expected = loop(net.double(), net[0], x.double(), losses_of)
    for key in (f"{n}_{q}" for n in ("l1", "l2") for q in quantities):
        assert stats[key] == pytest.approx(expected[key], rel=0.02), key


def test_non_finite_gradients_are_nan():
    net, layer = build("conv")
    balancer = Balancer(probe=GradientProbe(layer))
    y = net(batch())
    losses = {"bad": (y * math.inf).mean(), "good": y.abs().mean()}
    _, stats = balancer(losses, y)
    assert math.isnan(stats["bad_norm_test"]) and stats["good_norm_test"] > 0


def test_compiled_and_checkpointed_generators():
    import torch._dynamo
    from torch.utils.checkpoint import checkpoint

    net, layer = build("weight_norm")
    judge = critic()
    expected = loop(net, layer, batch(), lambda y: means(y, judge))
    torch._dynamo.reset()
    runs = {
        "compiled": torch.compile(net, backend="aot_eager"),
        "checkpointed": lambda x: checkpoint(net, x, use_reentrant=False),
    }
    balancer = Balancer(probe=GradientProbe(layer, ALL, every=1))
    with torch._functorch.config.patch(donated_buffer=False):
        for name, run in runs.items():
            for _ in range(2):
                y = run(batch())
                new_losses, stats = balancer(means(y, judge), y)
                assert probed(stats) == pytest.approx(expected, rel=1e-6), name
                sum(new_losses.values()).backward()
    y = checkpoint(net, batch().requires_grad_(), use_reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        balancer(means(y, judge), y)


BAD_PROBES = [
    (nn.Tanh(), {}, r"\(Tanh\) has no parameters"),
    (nn.Linear(2, 2).requires_grad_(False), {}, r"\(Linear\) has no parameters"),
    (nn.BatchNorm1d(2), {}, r"BatchNorm1d \(itself\).*mixes"),
    (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), {}, r"BatchNorm1d \(1\)"),
    (nn.Linear(2, 2), dict(quantities=["norm_tset"]), "'norm_tset'.*'norm_test'"),
    (nn.Linear(2, 2), dict(quantities=["xyz"]), "'xyz'.*known are.*'mean_gsnr'"),
    (nn.Linear(2, 2), dict(quantities="norm_test"), "list of names.*'norm_test'"),
    (nn.Linear(2, 2), dict(quantities=[]), "list of names"),
    (nn.Linear(2, 2), dict(every=0), "every.*0"),
]


@pytest.mark.parametrize("layer, options, message", BAD_PROBES)
def test_bad_probe_is_refused(layer, options, message):
    with pytest.raises(ValueError, match=message):
        GradientProbe(layer, **options)


class Folded(nn.Module):
    """Runs a layer on pieces of the samples, so that its batch is another one."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.reshape(2 * len(x), 1, -1)).reshape(len(x), -1)


BAD_LAYERS = {
    "elsewhere": (lambda layer: nn.Linear(10, 10), ValueError, "no call.*leads"),
    "folded": (Folded, ValueError, r"batches of \[12\].*\[6\]"),
    "two tensors": (lambda layer: nn.Bilinear(10, 10, 3), TypeError, "2 arguments"),
    "tuple": (lambda layer: nn.GRU(10, 3), TypeError, r"\(GRU\) returned.*tuple"),
    "random": (
        lambda layer: nn.Sequential(layer, nn.Dropout()),
        RuntimeError,
        "Sequential.*each sample by itself.*random",
    ),
}


@pytest.mark.parametrize("case", BAD_LAYERS)
def test_bad_layer_is_refused_and_changes_nothing(case):
    make, error, message = BAD_LAYERS[case]
    inner = nn.Linear(10 if case != "folded" else 5, 10)
    made = make(inner).double()
    balancer = Balancer(probe=GradientProbe(made.layer if case == "folded" else made))
    before = balancer.state_dict()
    x = batch()
    with pytest.raises(error, match=message):
        if case == "two tensors":
            y = made(x, x)
        elif case == "elsewhere":
            y = inner.double()(x)
        else:
            y = made(x)
        balancer({"l1": y.abs().mean()}, y)
    assert balancer.state_dict() == before
