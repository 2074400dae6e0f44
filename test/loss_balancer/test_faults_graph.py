"""Graphs that cannot be walked as a call does: each works or is named."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from balancer import Balancer

X = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)


class Step:
    """A generator, a discriminator, and a balancer that held its last call, or not."""

    def __init__(self, held=False, **options):
        torch.manual_seed(0)
        self.generator = nn.Linear(4, 3).double()
        self.discriminator = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
        weights = {"adv": 1.0, "feat": 1.0, "rec": 1.0}
        self.balancer = Balancer(weights=weights, update_every=9, **options)
        if held:
            self.balancer(*self.losses())

    def losses(self):
        y = self.generator(X)
        scores = self.discriminator(y)
        return {
            "adv": scores.mean(),
            "feat": scores.square().mean(),
            "rec": y.square().mean(),
        }, y

    def total(self):
        return sum(self.balancer(*self.losses())[0].values())


@pytest.mark.parametrize("held", [False, True])
def test_second_derivative_is_refused_where_it_would_be_wrong(held):
    """The returned losses carry their gradient as a constant."""
    step = Step(held)
    parameters = list(step.generator.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, of cycles that create_graph makes
        first = torch.autograd.grad(step.total(), parameters, create_graph=True)
    with pytest.raises(RuntimeError, match="create_graph.*input_only=False"):
        torch.autograd.grad(sum(g.square().sum() for g in first), parameters)


@pytest.mark.parametrize("held", [False, True])
def test_second_derivative_on_the_whole_graph_is_right(held):
    step = Step(held, input_only=False)
    parameters = list(step.generator.parameters())

    def twice(total):
        first = torch.autograd.grad(total, parameters, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)

    found = twice(step.total())
    scales = {n: step.balancer.metrics[f"{n}_scale"] for n in ("adv", "feat", "rec")}
    losses, _ = step.losses()
    expected = twice(sum(scales[name] * loss for name, loss in losses.items()))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_call_within_a_transform_of_torch_func_is_refused():
    step = Step()

    def total(parameters):
        y = torch.func.functional_call(step.generator, parameters, (X,))
        return sum(step.balancer({"rec": y.square().mean()}, y)[0].values())

    with pytest.raises(ValueError, match="'rec'.*torch.func"):
        torch.func.grad(total)(dict(step.generator.named_parameters()))


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_call_within_a_checkpoint_is_refused(held, told, monkeypatch):
    if not told:  # as in PyTorch 2.6
        hooks = "_top_saved_tensors_default_hooks"
        monkeypatch.delattr(torch._C._autograd, hooks, raising=False)
    step = Step(held)
    before = step.balancer.state_dict()
    with pytest.raises(RuntimeError, match="inside of torch.utils.checkpoint"):
        checkpoint(lambda _: step.total(), X, use_reentrant=False)
    assert step.balancer.state_dict() == before


def test_discriminators_step_before_the_backward():
    """A measuring call has the gradients already; one that holds says what to do."""
    for held in (False, True):
        step = Step(held)
        total = step.total()
        with torch.no_grad():
            step.discriminator[0].weight.add_(1.0)
        if held:
            with pytest.raises(RuntimeError, match="adv.*changed in place.*before the"):
                total.backward()
        else:
            total.backward()


def test_graph_that_is_gone_is_named():
    step = Step()
    losses, y = step.losses()
    losses["adv"].backward()
    with pytest.raises(RuntimeError, match="'adv'.*earlier backward.*retain_graph"):
        step.balancer(losses, y)
    losses, y = step.losses()
    Balancer()({"adv": losses["adv"]}, y)
    with pytest.raises(RuntimeError, match="'adv'.*another balancer's"):
        step.balancer(losses, y)
    assert step.balancer.state_dict()["calls"] == 0


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("lost")


@pytest.mark.parametrize("held", [False, True])
def test_loss_whose_own_backward_raises_is_named(held):
    step = Step(held)
    losses, y = step.losses()
    losses["rec"] = Broken.apply(losses["rec"])
    with pytest.raises(RuntimeError, match="rec.*KeyError: 'lost'") as caught:
        sum(step.balancer(losses, y)[0].values()).backward()
    assert isinstance(caught.value.__cause__, KeyError)


KINDS = {
    "sparse": (
        lambda: torch.eye(3).to_sparse().requires_grad_(),
        torch.sparse.sum,
        "sparse_coo.*to_dense",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor(
            [torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True
        ),
        torch.sum,
        "nested.*to_padded_tensor",
    ),
    "float8": (
        lambda: torch.ones(2, 3, requires_grad=True).to(torch.float8_e4m3fn),
        lambda y: y.float().sum(),
        "float8_e4m3fn.*bfloat16",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_have_no_gradient_of_their_own_kind_are_refused(kind):
    make, loss_of, message = KINDS[kind]
    y = make()
    with pytest.raises(ValueError, match=f"input is .*{message}"):
        Balancer()({"a": loss_of(y)}, y)


def test_sparse_gradient_of_a_dense_input():
    table = nn.Embedding(5, 3, sparse=True)
    loss = table(torch.tensor([1, 3])).sum()
    new_losses, stats = Balancer(epsilon=0.0)({"a": loss}, table.weight)
    new_losses["a"].backward()
    assert stats["a_norm"] == pytest.approx(2 * 3**0.5 / 5)  # two rows of five
    assert table.weight.grad.norm(dim=1).mean().item() == pytest.approx(1.0)


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize("update_every", [1, 2])
def test_leaf_of_a_tensor_subclass(update_every):
    balancer = Balancer(update_every=update_every, epsilon=0.0)
    for _ in range(update_every):
        y = torch.ones(2, 3).as_subclass(Named).requires_grad_()
        new_losses, _ = balancer({"a": (2 * y).sum()}, y)
        new_losses["a"].backward()
    assert y.grad.norm(dim=1).mean().item() == pytest.approx(1.0)
