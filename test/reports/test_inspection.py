"""What is measured of raw gradients in any loop, and how it is said."""

import pytest
import torch
import yaml

from balancer import Balancer
from balancer.reports import Inspection, LossInspector, inspect_losses


def batch(seed, late=True):
    """Losses, times their factors, of an output that a net made; and both."""
    torch.manual_seed(seed)
    net = torch.nn.Linear(3, 5).double()
    y = net(torch.randn(4, 3).double())
    losses = {"mel": 45 * y.square().mean(), "adv": 0.1 * (y.sin() * y).sum()}
    if late:
        losses["feat"] = (y - 1).abs().mean()
    return net, losses, y


def by_hand(seeds, per_batch_item=True):
    """Loss → the mean over batches and items of its gradient's norm, by float64."""
    norms = {}
    for seed in seeds:
        _, losses, y = batch(seed)
        for name, loss in losses.items():
            (g,) = torch.autograd.grad(loss, y, retain_graph=True)
            one = g.norm(dim=1).mean() if per_batch_item else g.norm()
            norms[name] = norms.get(name, 0.0) + one.item() / len(seeds)
    return norms


@pytest.mark.parametrize("per_batch_item", [True, False])
def test_norms_and_shares_are_those_taken_by_hand(per_batch_item):
    found = inspect_losses(
        (batch(seed)[1:] for seed in range(5)), per_batch_item=per_batch_item
    )
    norms = by_hand(range(5), per_batch_item)
    assert found.norms == pytest.approx(norms, rel=1e-6)
    total = sum(norms.values())
    shares = {name: norm / total for name, norm in norms.items()}
    assert found.shares == pytest.approx(shares, rel=1e-6)
    assert found.targets == pytest.approx(dict.fromkeys(norms, 1 / 3))
    assert list(found.norms) == ["mel", "adv", "feat"] and found.batches == 5
    _, losses, y = batch(0)
    one = inspect_losses([(losses, y)])
    _, losses, y = batch(0)
    a, b = (torch.autograd.grad(losses[n], y)[0] for n in ("mel", "feat"))
    cosine = ((a * b).sum() / a.norm() / b.norm()).item()
    assert one.cosine("mel", "feat") == pytest.approx(cosine, rel=1e-6)
    assert one.cosine("mel", "feat") == one.cosine("feat", "mel")


def test_the_loop_goes_on_as_it_is():
    """The same gradients in the model after the inspector's look as without it."""
    grads = []
    for look in (False, True):
        net, losses, y = batch(1)
        inspector = LossInspector()
        if look:
            inspector(losses, y)
        sum(losses.values()).backward()
        grads.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_the_printed_weights_keep_the_shares():
    found = inspect_losses(batch(seed)[1:] for seed in range(3))
    text = str(found)
    section = yaml.safe_load(text[text.index("weights:") :])
    balancer = Balancer.from_config({**section, "ema_decay": 1.0})
    for seed in range(3):
        _, losses, y = batch(seed)
        stats = balancer(losses, y)[1]
    targets = {n: w / sum(section["weights"].values()) for n, w in found.shares.items()}
    assert section["weights"] == pytest.approx(targets, rel=1e-3)
    ratios = {name: stats[f"{name}_ratio"] for name in found.norms}
    assert section["weights"] == pytest.approx(ratios, rel=1e-3)


def meeting_batch(seed):
    """Losses of the output, times their factors, and one of the latent; the net."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)).double()
    latent = net[0](torch.randn(6, 3).double())
    y = net[1](latent)
    losses = {"mel": 45 * y.square().mean(), "adv": 0.1 * (y.sin() * y).sum()}
    return net, losses, y, latent.square().mean()


def norm_in_encoder(net, loss):
    grads = torch.autograd.grad(loss, list(net[0].parameters()), retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads]).norm().item()


def test_the_printed_total_norms_keep_the_gradient_beside_the_other_losses():
    """One of the given weights, and one of the weights that keep the shares."""
    weights = {"mel": 1.0, "adv": 3.0}
    inspector = LossInspector(weights=weights)
    net, losses, y, outside = meeting_batch(0)
    inspector(losses, y, outside=outside, module=net)
    found = inspector.inspection()
    unbalanced = norm_in_encoder(net, sum(losses.values()))
    meeting = found.meeting
    assert meeting.outside == pytest.approx(norm_in_encoder(net, outside), rel=1e-9)
    assert meeting.unbalanced == pytest.approx(unbalanced, rel=1e-6)
    section = yaml.safe_load(str(found)[str(found).index("weights:") :])
    said = float(str(found).split("`total_norm: ")[1].split("`")[0])
    assert said == pytest.approx(meeting.total_norm, rel=1e-2)
    for options in (section, {"weights": weights, "total_norm": meeting.total_norm}):
        net, losses, y, _ = meeting_batch(0)
        balancer = Balancer.from_config({**options, "input_only": False})
        balanced = sum(balancer(losses, y)[0].values())
        assert norm_in_encoder(net, balanced) == pytest.approx(unbalanced, rel=1e-3)


def test_meetings_are_geometric_means_and_may_be_missing():
    inspector, ratios = LossInspector(), []
    for seed in range(3):
        net, losses, y, outside = meeting_batch(seed)
        inspector(losses, y, outside=outside, module=net)
        ratios.append(norm_in_encoder(net, outside))
    net, losses, y, outside = meeting_batch(3)
    inspector(losses, y, outside=0 * outside, module=net)  # tells no ratio
    product = ratios[0] * ratios[1] * ratios[2]
    assert inspector.inspection().meeting.outside**3 == pytest.approx(product)
    net, losses, y, _ = meeting_batch(0)
    inspector = LossInspector()
    inspector(losses, y, outside=torch.ones(3, requires_grad=True).sum(), module=net)
    assert inspector.inspection().meeting is None
    with pytest.raises(ValueError, match="`outside` and `module` go together"):
        inspector(losses, y, outside=y.sum())
    inspector = LossInspector(weights={"mel": 1.0})
    with pytest.raises(ValueError, match="'adv' has no weight"):
        inspector(losses, y, outside=outside, module=net)
    assert inspector.balancer.state_dict()["calls"] == 0


def test_a_loss_that_comes_later_is_averaged_over_its_own_batches():
    found = inspect_losses(batch(seed, late=seed > 0)[1:] for seed in range(3))
    norms = by_hand(range(3))
    later = by_hand([1, 2])["feat"]
    assert found.norms == pytest.approx({**norms, "feat": later}, rel=1e-6)
    assert set(found.cosines) == {"adv, feat", "adv, mel", "feat, mel"}


def test_targets_are_of_the_weights_and_of_a_ramps_end():
    ramp = {"start": 0, "end": 3, "from_step": 5, "to_step": 9}
    weights = {"mel": 1, "adv": ramp, "feat": 0, "unused": 9}
    found = inspect_losses([batch(0)[1:]], weights=weights)
    assert found.targets == {"mel": 0.25, "adv": 0.75, "feat": 0.0}
    assert "as weighted" in str(found) and "all alike" not in str(found)


def test_one_loss_has_no_table_of_cosines():
    _, losses, y = batch(0)
    text = str(inspect_losses([({"mel": losses["mel"]}, y)]))
    assert "cosine" not in text and "over 1 batch." in text
    assert "WARNING: mel supplies 100.00%" in text


def test_what_cannot_be_inspected():
    with pytest.raises(ValueError, match="no batch to inspect"):
        inspect_losses([])
    _, losses, y = batch(0)
    with pytest.raises(ValueError, match="'feat' has no weight: weights has"):
        inspect_losses([(losses, y)], weights={"mel": 1, "adv": 1})
    with torch.no_grad(), pytest.raises(ValueError, match="outside of torch.no_grad"):
        inspect_losses([batch(0)[1:]])
    with pytest.raises(ValueError, match="'mel'"):
        inspect_losses([({"mel": torch.ones(1, requires_grad=True).sum()}, y)])


def test_pairs_that_oppose_and_gradients_that_are_not_finite():
    found = Inspection(
        norms={"a": 1.0, "b": float("nan")},
        shares={"a": 0.94, "b": 0.06},
        targets={"a": 0.5, "b": 0.5},
        cosines={"a, b": -0.51},
    )
    assert found.cosine("b", "a") == -0.51
    warnings = found.warnings()
    assert "b has a gradient that is not finite" in warnings[0]
    assert "a, b pull against each other: cosine -0.51" in warnings[1]
    found.cosines, found.norms = {"a, b": -0.49}, {"a": 1.0, "b": 1.0}
    assert found.warnings() == []
    y = torch.ones(2, 2, requires_grad=True)
    bad = inspect_losses([({"a": y.sum(), "b": (0 * y).sqrt().sum()}, y)])
    assert "b has a gradient that is not finite" in str(bad) and bad.shares["a"] == 1.0
    assert bad.weights() == {"a": 1.0, "b": 0.0}
