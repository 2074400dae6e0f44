"""TorchJD's weightings against TorchJD's own aggregation of the same gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import spawn
from torchjd import aggregation

from balancer import Balancer

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}
AGGREGATORS = {
    "upgrad": (aggregation.UPGrad, {}),
    "dualproj": (aggregation.DualProj, {}),
    "aligned_mtl": (aggregation.AlignedMTL, {}),
    "mgda": (aggregation.MGDA, {}),
    "pcgrad": (aggregation.PCGrad, {}),
    "cagrad": (aggregation.CAGrad, {"c": 0.5}),
    "imtl_g": (aggregation.IMTLG, {}),
    "fairgrad": (aggregation.FairGrad, {"alpha": 1.0}),
    "mean": (aggregation.Mean, {}),
    "sum": (aggregation.Sum, {}),
}


def conflicting(seed):
    """Three gradients [2, 3, 4] of very different sizes, pairs of which oppose."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(3, 2, 3, 4, generator=generator, dtype=torch.float64)
    return {"a": 1e-4 * a, "b": -30 * a + 20 * b, "c": 1e3 * (c - b)}


def balance(balancer, grads):
    y = torch.zeros_like(grads["a"]).requires_grad_()
    new_losses, stats = balancer({n: (y * g).sum() for n, g in grads.items()}, y)
    sum(new_losses.values()).backward()
    return y.grad, stats


@pytest.mark.parametrize("name", AGGREGATORS)
def test_equals_torchjds_aggregation(name):
    make, conf = AGGREGATORS[name]
    grads = conflicting(0)
    options = dict(weights=WEIGHTS, epsilon=0.0, weighting={"name": name, **conf})
    grad, _ = balance(Balancer(2.0, **options), grads)
    shares = torch.tensor([w / 6 for w in WEIGHTS.values()], dtype=torch.float64)
    rows = [g / g.flatten(1).norm(dim=1).mean() for g in grads.values()]
    jacobian = torch.stack(rows).flatten(1)
    aggregator = make(**conf)
    if hasattr(aggregator, "pref_vector"):
        aggregator.pref_vector = shares
    else:
        jacobian = shares[:, None] * jacobian
    # The Gram matrix is a mean over the two batch items.
    torch.manual_seed(0)
    expected = 2.0 * math.sqrt(2) * aggregator(jacobian / math.sqrt(2))
    torch.testing.assert_close(grad.flatten(), expected, rtol=1e-6, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_upgrad_lets_no_loss_rise(seed):
    """To first order, on a held call as well; plain balancing does let one rise."""
    grads = conflicting(seed)
    options = dict(weights=WEIGHTS, update_every=2)
    careful, plain = Balancer(**options, weighting="upgrad"), Balancer(**options)
    for _ in range(2):
        grad, _ = balance(careful, grads)
        falls = {name: (grad * g).sum().item() for name, g in grads.items()}
        assert all(
            fall >= -1e-6 * grad.norm() * grads[name].norm()
            for name, fall in falls.items()
        )
    grad, _ = balance(plain, grads)
    assert min((grad * g).sum().item() for g in grads.values()) < 0


def test_without_conflict_upgrad_is_plain_balancing():
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(3, 2, 3, 4, generator=generator, dtype=torch.float64)
    grads = dict(zip("abc", rows))
    careful, _ = balance(Balancer(weights=WEIGHTS, weighting="upgrad"), grads)
    plain, _ = balance(Balancer(weights=WEIGHTS), grads)
    torch.testing.assert_close(careful, plain, rtol=1e-6, atol=1e-9)


def test_loss_without_a_gradient_is_left_out():
    """The first of all, so that the others' places in the Gram matrix differ."""
    grads = conflicting(0)
    balancer = Balancer(weights=WEIGHTS, weighting="upgrad")
    with_zero, _ = balance(balancer, {**grads, "a": 0 * grads["a"]})
    y = torch.zeros_like(grads["b"]).requires_grad_()
    losses = {name: (y * grads[name]).sum() for name in "bc"}
    two = Balancer(weights={"b": 2.0, "c": 3.0}, weighting="upgrad")
    sum(two(losses, y)[0].values()).backward()
    # The two share all of the gradient, with the third 5 of 6 parts.
    torch.testing.assert_close(with_zero, y.grad * 5 / 6, rtol=1e-6, atol=1e-9)


def test_none_is_no_weighting():
    balancer = Balancer.from_config({"weighting": "none", "balance_grads": False})
    assert balance(balancer, conflicting(0))[1]["a_scale"] == 1.0


def test_non_finite_gradient_leaves_the_coefficients():
    balancer = Balancer(weights=WEIGHTS, weighting="upgrad", ema_decay=0.0)
    grads = conflicting(0)
    first, _ = balance(balancer, grads)
    coefficients = balancer.state_dict()["coefficients"]
    grad, _ = balance(balancer, {**grads, "b": grads["b"] * math.nan})
    assert not torch.isfinite(grad).any()
    assert balancer.state_dict()["coefficients"] == coefficients
    zero, stats = balance(balancer, {**grads, "b": 0 * grads["b"]})
    assert torch.isfinite(zero).all()
    resumed = Balancer(weights=WEIGHTS, weighting="upgrad", ema_decay=0.0)
    resumed.load_state_dict(balancer.state_dict())
    assert balance(resumed, grads)[1] == balance(balancer, grads)[1]


def _on_ranks(rank, name):
    torch.manual_seed(rank)  # what is drawn by lot is drawn alike all the same
    grads = {key: grad[rank : rank + 1] for key, grad in conflicting(0).items()}
    balancer = Balancer(weights=WEIGHTS, weighting=name)
    drawn = torch.random.get_rng_state()
    grad, stats = balance(balancer, grads)
    assert torch.equal(drawn, torch.random.get_rng_state())
    return grad, stats


@pytest.mark.parametrize("name", ["upgrad", "pcgrad"])
def test_ranks_agree_with_one_process(tmp_path, name):
    grad, stats = balance(Balancer(weights=WEIGHTS, weighting=name), conflicting(0))
    for rank, (part, found) in enumerate(spawn(tmp_path, _on_ranks, 2, name)):
        assert found == pytest.approx(stats, rel=1e-9)
        torch.testing.assert_close(part, grad[rank : rank + 1], rtol=1e-9, atol=0)


BAD_OPTIONS = [
    (dict(weighting="upgrade"), "'upgrade'.*'upgrad'"),
    (dict(weighting="gradvac"), "'gradvac'.*memory"),
    (dict(weighting="cagrad"), "'cagrad'.*arguments {}.*'c'"),
    (dict(weighting="upgrad", balance_grads=False), "weighting is 'upgrad'"),
    (dict(weighting={"c": 1.0}), "weighting None.*`name`"),
    (dict(weighting=aggregation.UPGrad()), "UPGrad.*UPGradWeighting"),
]


@pytest.mark.parametrize("options, message", BAD_OPTIONS)
def test_bad_weighting_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Balancer(**options)


def test_no_device_is_seeded(monkeypatch):
    """torch.manual_seed would seed every GPU: its dropout would follow our steps."""
    seeded = []
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    monkeypatch.setattr(torch.random, "manual_seed", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    balance(Balancer(weights=WEIGHTS, weighting="pcgrad"), conflicting(0))
    assert not seeded


def test_an_object_of_torchjds_is_taken():
    made = Balancer(weights=WEIGHTS, weighting=aggregation.UPGradWeighting())
    named = Balancer(weights=WEIGHTS, weighting="upgrad")
    for found, expected in zip(*(balance(b, conflicting(0)) for b in (made, named))):
        assert (
            found == expected
            if isinstance(found, dict)
            else torch.equal(found, expected)
        )
