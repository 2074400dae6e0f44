"""Any sequence of calls against a plain float64 model of what should come out."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import Reference

from balancer import Balancer

# What the dtype's rounding may do to a norm, and to an element of a gradient.
RTOL = {
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
    torch.float32: 2e-6,
    torch.float64: 1e-12,
    torch.complex64: 2e-6,
}
# Half of the smallest float16, which an element of a gradient is rounded to.
ATOL = {torch.float16: 3e-8}
# Decimal exponents of the gradients. float16 has fewer, and a jump of a gradient by a
# factor that is unknown before the walk is beyond it.
EXPONENTS = {torch.float16: (-6, 1)}
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass
class Call:
    """Which losses are in a call, in which order, and what is wrong with them."""

    names: list
    seed: int
    evaluate: bool
    reload: bool
    faults: dict


@dataclass
class Scenario:
    dtype: torch.dtype
    options: dict
    input_only: bool
    shapes: list
    layout: str
    half_losses: bool  # of an input in half precision
    uses: dict  # name → whether it depends on each input
    exponents: dict
    calls: list = field(default_factory=list)


@st.composite
def scenarios(draw):
    dtype = draw(st.sampled_from(list(RTOL)))
    names = draw(st.permutations("abcdef"))[: draw(st.integers(1, 6))]
    number = st.floats(0.1, 10)
    weights = {name: draw(st.one_of(st.just(0.0), number)) for name in names}
    weights[names[0]] = draw(number)
    balance_grads = draw(st.booleans())
    options = dict(
        total_norm=draw(number),
        ema_decay=draw(st.sampled_from([0.0, 0.5, 0.999, 1.0])),
        per_batch_item=draw(st.booleans()),
        epsilon=draw(st.sampled_from([0.0, 1e-12, 1e-3])),
        weights=draw(st.sampled_from([None, weights])),
        balance_grads=balance_grads,
        exact_total_norm=balance_grads and draw(st.booleans()),
        monitor=draw(st.booleans()),
        # Its horizon hangs on a comparison, which rounding may turn.
        average=(
            draw(st.sampled_from(["ema", "adaptive"]))
            if dtype == torch.float64
            else "ema"
        ),
        update_every=draw(st.integers(1, 3)),
    )
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3), max_size=3))
    batch = [draw(st.integers(1, 4))] if options["per_batch_item"] else []
    shapes = [batch + shape for shape in shapes or [[5]]]
    whether = st.lists(st.booleans(), min_size=len(shapes), max_size=len(shapes))
    low, high = EXPONENTS.get(dtype, (-8, 8))
    fault = st.sampled_from(["", "", "", "", "zero", "nan", "inf"])
    jump = st.just(0) if dtype == torch.float16 else st.integers(-4, 4)
    scenario = Scenario(
        dtype,
        options,
        draw(st.booleans()),
        shapes,
        draw(st.sampled_from(["leaf", "output", "view", "reversed"])),
        draw(st.booleans()),
        {name: draw(whether.filter(any)) for name in names},
        {name: draw(st.integers(low, high)) for name in names},
    )
    for _ in range(draw(st.integers(1, 6))):
        present = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
        faults = {name: (draw(fault), draw(jump)) for name in present}
        flags = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
        call = Call(
            present, draw(st.integers(0, 999)), not flags[0], not flags[1], faults
        )
        scenario.calls.append(call)
    return scenario


def gradients(scenario, call):
    """{name: [array or None for each input]}, in the widest precision of the dtype."""
    generator = np.random.default_rng(call.seed)
    kind = np.float64 if scenario.dtype == torch.float64 else np.float32
    grads = {}
    for name in call.names:
        fault, jump = call.faults[name]
        grads[name] = []
        for shape, used in zip(scenario.shapes, scenario.uses[name]):
            grad = generator.standard_normal(shape)
            if scenario.dtype.is_complex:
                grad = grad + 1j * generator.standard_normal(shape)
            grad = np.asarray(grad * 10.0 ** (scenario.exponents[name] + jump))
            if fault == "zero":
                grad = np.zeros_like(grad)
            elif fault:  # an infinite complex number times another is not a number
                grad.flat[0] = math.nan if np.iscomplexobj(grad) else float(fault)
            complex_kind = np.result_type(kind, np.complex64)
            kinds = complex_kind if np.iscomplexobj(grad) else kind
            grads[name].append(grad.astype(kinds) if used else None)
    return grads


def make_inputs(scenario):
    """Tensors of the scenario's shapes, dtype and layout."""
    inputs = []
    for shape in scenario.shapes:
        full = shape[::-1] if scenario.layout == "reversed" else shape
        full = [*shape, 2] if scenario.layout == "view" else full
        leaf = torch.ones(full, dtype=scenario.dtype, requires_grad=True)
        make = {
            "leaf": lambda: leaf,
            "output": lambda: leaf * 1,
            "view": lambda: leaf[..., 1],
            "reversed": lambda: (leaf * 1).permute(list(range(leaf.dim()))[::-1]),
        }
        inputs.append(make[scenario.layout]())
        inputs[-1].retain_grad()
    return inputs


def losses_with(inputs, grads, dtype=None):
    """Losses whose gradients are the given ones, reduced in float32 at least."""
    losses = {}
    for name, arrays in grads.items():
        terms = []
        for y, array in zip(inputs, arrays):
            if array is not None:
                product = y.to(WIDE.get(y.dtype, y.dtype)).conj() * torch.tensor(array)
                terms.append((product.real if product.is_complex() else product).sum())
        losses[name] = sum(terms).to(dtype)
    return losses


def assert_same_stats(stats, expected, rtol, total_norm_atol=0.0):
    assert stats.keys() == expected.keys()
    for key, value in expected.items():
        if math.isfinite(value):
            atol = max(rtol, total_norm_atol if key == "total_grad_norm" else 0.0)
            assert stats[key] == pytest.approx(value, rel=rtol, abs=atol), key
        else:
            assert not math.isfinite(stats[key]), key


def assert_same_gradient(got, expected, size, rtol, scenario):
    """Non-finite in the same places, and elsewhere equal to rounding of the parts."""
    if expected is None:
        assert got is None or not got.any()
        return
    got = got.to(torch.promote_types(got.dtype, torch.float64)).numpy()
    finite = np.isfinite(expected)
    assert (np.isfinite(got) == finite).all()
    if scenario.dtype == torch.float16 and not finite.all():
        return  # the power of two that kept it from underflow was given up
    error = np.linalg.norm(got[finite] - expected[finite])
    floor = ATOL.get(scenario.dtype, 0.0) * got.size * len(scenario.uses)
    assert error <= rtol * size + floor


def finite_size(grads, scales):
    """Σ s_i ‖g_i‖, what the rounding errors of the sum are measured by."""
    arrays = [(scales[n], a) for n in grads for a in grads[n] if a is not None]
    return sum(s * np.linalg.norm(a[np.isfinite(a)].astype(complex)) for s, a in arrays)


def check_values(losses, new_losses, scales, rtol):
    assert list(new_losses) == list(losses)
    for name, loss in losses.items():
        half = loss.dtype == torch.float16  # its scaled value may be none
        value = loss.detach().double() * scales[name]
        value = value.to(torch.float32 if half else loss.dtype)
        got = new_losses[name].detach()
        torch.testing.assert_close(got, value, rtol=rtol, atol=0, equal_nan=True)


def train(balancer, reference, scenario, call):
    grads, inputs = gradients(scenario, call), make_inputs(scenario)
    # On the whole graph a float16 loss takes no scale that is no float16.
    half = scenario.half_losses and scenario.input_only and scenario.dtype in WIDE
    losses = losses_with(inputs, grads, scenario.dtype if half else None)
    y = inputs[0] if len(inputs) == 1 else inputs
    scales, stats, gradient = reference.train(grads)
    new_losses, got = balancer(losses, y)
    sum(new_losses.values()).backward()
    rtol = reference.scale_rtol
    assert_same_stats(got, stats, rtol, reference.total_norm_atol)
    check_values(losses, new_losses, scales, rtol)
    size = finite_size(grads, scales)
    for tensor, expected in zip(inputs, gradient):
        assert_same_gradient(tensor.grad, expected, size, rtol, scenario)


def evaluate(balancer, reference, scenario, call):
    inputs = make_inputs(scenario)
    with torch.no_grad():
        losses = losses_with(inputs, gradients(scenario, call))
        new_losses, stats = balancer(losses, inputs)
    scales, rtol = reference.evaluate(call.names), reference.scale_rtol
    assert_same_stats(stats, {f"{n}_scale": s for n, s in scales.items()}, rtol)
    check_values(losses, new_losses, scales, rtol)


# Many of these are beside epsilon as small as it is.
@pytest.mark.filterwarnings("ignore:the gradient of loss")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_any_sequence_of_calls(scenario):
    reference = Reference(RTOL[scenario.dtype], **scenario.options)
    options = {**scenario.options, "input_only": scenario.input_only}
    balancer = Balancer(**options)
    for call in scenario.calls:
        if call.reload:
            state, balancer = balancer.state_dict(), Balancer(**options)
            balancer.load_state_dict(state)
        if not sum(reference.weight(name) for name in call.names):
            inputs = make_inputs(scenario)
            with pytest.raises(ValueError, match="sum to zero"):
                balancer(losses_with(inputs, gradients(scenario, call)), inputs)
        else:
            step = evaluate if call.evaluate else train
            step(balancer, reference, scenario, call)
    averages = balancer.state_dict()["averages"]
    assert averages.keys() == reference.averages.keys()
    for name, (total, fix, *_) in reference.averages.items():
        average = averages[name][0] / averages[name][1]
        assert average == pytest.approx(total / fix, rel=RTOL[scenario.dtype])
