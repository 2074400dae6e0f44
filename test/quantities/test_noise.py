"""The quantities against the real Cockpit's values, and what their formulas imply."""

import json
import math
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.functional import hessian

from balancer import quantities as q

DOUBLE = torch.float64
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "cockpit_quantities.json").read_text()
)
EXPECTED = GOLDEN["expected"]
STEPS = [
    {key: torch.tensor(value, dtype=DOUBLE) for key, value in step.items()}
    for step in GOLDEN["steps"]
]
# Those that need nothing else than the gradients.
OF_GRADS = {
    "NormTest": q.norm_test,
    "InnerTest": q.inner_product_test,
    "OrthoTest": q.orthogonality_test,
    "MeanGSNR": q.mean_gsnr,
    "EarlyStopping": q.early_stopping,
}
OF_MORE = ["CABS", "TICTrace", "TICDiag", "GradHist1d", "GradHist2d"]
OF_PARAMETERS = ["GradNorm", "UpdateSize", "Distance", "Alpha"]


def by_parameter(flat):
    """Split the last axis of [..., D] into the net's parameters, flat."""
    sizes = [math.prod(shape) for shape in GOLDEN["param_shapes"]]
    return flat.split(sizes, dim=-1)


def curvature_diag(step):
    """The diagonal of the mean loss's Hessian, by the net itself."""
    x, target = (
        torch.tensor(GOLDEN[k][step], dtype=DOUBLE) for k in ("inputs", "targets")
    )

    def loss(flat):
        parts = zip(by_parameter(flat), GOLDEN["param_shapes"])
        w1, b1, w2, b2 = (part.view(shape) for part, shape in parts)
        y = torch.sigmoid(x @ w1.T + b1) @ w2.T + b2
        return (y - target).square().mean()

    diag = hessian(loss, STEPS[step]["params"]).diagonal()
    traces = [part.sum().item() for part in by_parameter(diag)]
    assert traces == pytest.approx(EXPECTED["HessTrace"][str(step)], rel=1e-4)
    return diag


def close(value):
    return pytest.approx(value, rel=1e-4)


def test_every_golden_entry_is_compared():
    # Cockpit's largest eigenvalue is no quantity of this package.
    compared = {*OF_GRADS, *OF_MORE, *OF_PARAMETERS, "HessTrace"}
    assert compared == set(EXPECTED) - {"HessMaxEV"}
    assert len(STEPS) == 4


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("step", range(4))
def test_statistics_equal_cockpits(step, dtype):
    grads, loss = STEPS[step]["per_sample_grads"].to(dtype), STEPS[step]["loss"].item()
    diag = curvature_diag(step)
    found = {name: quantity(grads) for name, quantity in OF_GRADS.items()}
    found["CABS"] = q.cabs(grads, GOLDEN["lr"], loss)
    found["TICTrace"] = q.tic_trace(grads, diag.sum().item())
    found["TICDiag"] = q.tic_diag(grads, diag.to(dtype))
    for name, value in found.items():
        assert value.dtype == DOUBLE and value.shape == ()
        # The Hessian's diagonal has elements near 0, where float32 is no better.
        rel = 1e-3 if name == "TICDiag" and dtype != DOUBLE else 1e-4
        assert value.item() == pytest.approx(EXPECTED[name][str(step)], rel=rel), name


@pytest.mark.parametrize("step", range(4))
def test_histograms_equal_cockpits(step):
    grads, params = STEPS[step]["per_sample_grads"], STEPS[step]["params"]
    expected = EXPECTED["GradHist1d"][str(step)]
    counts, edges = q.grad_hist_1d(grads, 8, (-2.0, 2.0))
    assert counts.tolist() == expected["hist"]
    assert edges.tolist() == close(expected["edges"])
    expected = EXPECTED["GradHist2d"][str(step)]
    counts, both = q.grad_hist_2d(grads, params, (5, 4), ((-1.0, 1.0), (-2.0, 2.0)))
    assert counts.tolist() == expected["hist"]
    assert [edges.tolist() for edges in both] == [close(e) for e in expected["edges"]]


@pytest.mark.parametrize("step", range(4))
def test_norms_and_distances_equal_cockpits(step):
    """By parameter: the mean gradient, the step, the way from the training's start."""
    grads = by_parameter(STEPS[step]["per_sample_grads"])
    norms = [q.grad_norm(part).item() for part in grads]
    assert norms == close(EXPECTED["GradNorm"][str(step)])
    params = [by_parameter(one["params"]) for one in STEPS]
    far = [q.distance(a, b).item() for a, b in zip(params[0], params[step])]
    assert far == close(EXPECTED["Distance"][str(step)])
    if step < 3:
        size = [q.distance(a, b).item() for a, b in zip(params[step], params[step + 1])]
        assert size == close(EXPECTED["UpdateSize"][str(step)])


@pytest.mark.parametrize("step", range(3))
def test_alpha_equals_cockpits(step):
    start, end = STEPS[step], STEPS[step + 1]
    direction = end["params"] - start["params"]
    points = [
        q.StepPoint.measure(
            point["individual_losses"], point["per_sample_grads"], direction, position
        )
        for point, position in [(start, 0.0), (end, direction.norm().item())]
    ]
    assert q.alpha(*points) == close(EXPECTED["Alpha"][str(step)])


FUNCTIONS = {
    **OF_GRADS,
    "critical_batch_size": q.critical_batch_size,
    "cabs": lambda grads: q.cabs(grads, 0.1, 1.0),
    "tic_trace": lambda grads: q.tic_trace(grads, 1.0),
    "tic_diag": lambda grads: q.tic_diag(grads, torch.ones(grads.shape[-1])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_says_nothing_about_noise_is_nan_without_a_warning(name):
    quantity = FUNCTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for grads in (torch.randn(1, 5), torch.zeros(4, 5), torch.zeros(0, 5)):
            assert math.isnan(quantity(grads)), grads
        assert not math.isnan(quantity(torch.randn(2, 5)))
        nan = torch.tensor([[1.0, math.nan], [2.0, 3.0]])
        assert math.isnan(quantity(nan))
    with pytest.raises(ValueError, match=r"\[B, D\].*\(5,\)"):
        quantity(torch.randn(5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, DOUBLE])
def test_samples_that_cancel_or_agree_to_rounding(dtype):
    """Whatever the sums' order leaves behind, as in 0.1 + 0.2 − 0.3."""
    whole = torch.tensor([[0.1, 3.3], [0.2, -1.1], [-0.3, -2.2]], dtype=dtype)
    for grads in (whole, whole.roll(1, 0), whole.flip(0), whole[:, :1]):
        assert q.norm_test(grads) == q.critical_batch_size(grads) == math.inf
        assert q.early_stopping(grads) == 1.0 and q.mean_gsnr(grads) == 0.0
        assert math.isnan(q.inner_product_test(grads))
        assert math.isnan(q.orthogonality_test(grads))
    same = torch.tensor([[0.1, -0.7]], dtype=dtype).expand(3, 2)
    assert q.norm_test(same) == q.critical_batch_size(same) == 0.0
    assert q.mean_gsnr(same, epsilon=0.0) == math.inf


@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_squares_that_leave_float32(factor):
    torch.manual_seed(0)
    grads = torch.randn(5, 7) + 1
    for quantity in (q.norm_test, q.inner_product_test, q.orthogonality_test):
        assert quantity(factor * grads).item() == pytest.approx(
            quantity(grads).item(), rel=1e-5
        )


def test_small_noise_around_a_large_mean():
    """mean(g²) − mean(g)² cancels here, even in float64."""
    torch.manual_seed(0)
    noise = 1e-6 * torch.randn(6, 9, dtype=DOUBLE)
    grads = 1e4 + noise - noise.mean(0)
    expected = (grads.mean(0).square() / grads.var(0, correction=0)).mean()
    assert q.mean_gsnr(grads, epsilon=0.0).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


sizes = st.tuples(st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**16))


def random_grads(size):
    samples, width, seed = size
    generator = torch.Generator().manual_seed(seed)
    mean, noise = torch.randn(2, samples, width, generator=generator, dtype=DOUBLE)
    return mean[0] + noise


def rotation(width, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(
        torch.randn(width, width, generator=generator, dtype=DOUBLE)
    )[0]


@settings(max_examples=60, deadline=None)
@given(size=sizes, factor=st.floats(1e-3, 1e3))
def test_what_depends_on_lengths_and_angles_alone(size, factor):
    """An orthogonal map of the parameters, an order of the samples, a unit."""
    grads = random_grads(size)
    turned = (grads @ rotation(grads.shape[1], size[2])).flip(0)
    tests = [q.norm_test, q.inner_product_test, q.orthogonality_test]
    # The two parts of the norm test may cancel: of one parameter, none is across.
    rounding = 1e-12 * q.norm_test(grads).item()
    for quantity in [*tests, q.critical_batch_size]:
        expected = pytest.approx(quantity(grads).item(), rel=1e-7, abs=rounding)
        assert quantity(turned).item() == expected
        assert quantity(factor * grads).item() == expected
    expected = q.cabs(grads, 0.1, 2.0).item()
    assert q.cabs(turned, 0.1, 2.0).item() == pytest.approx(expected, rel=1e-9)
    assert q.cabs(factor * grads, 0.1, 2.0 * factor**2).item() == pytest.approx(
        expected
    )
    expected = q.tic_trace(grads, 3.0, epsilon=0.0).item()
    assert q.tic_trace(turned, 3.0, epsilon=0.0).item() == pytest.approx(expected)
    ones = torch.full(grads.shape[1:], 3.0)
    assert q.tic_diag(grads, ones, epsilon=0.0).item() == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(size=sizes)
def test_what_depends_on_each_parameter_alone(size):
    """Each parameter may have a unit of its own."""
    grads = random_grads(size)
    units = torch.logspace(-2, 2, grads.shape[1], dtype=DOUBLE)
    for quantity in (q.mean_gsnr, q.early_stopping):
        expected = quantity(grads, epsilon=0.0).item()
        assert quantity((grads * units).flip(0, 1), epsilon=0.0).item() == (
            pytest.approx(expected, rel=1e-9, abs=1e-12)
        )


@settings(max_examples=60, deadline=None)
@given(size=sizes)
def test_how_they_hang_together(size):
    grads = random_grads(size)
    whole = q.norm_test(grads).item() ** 2
    along, across = q.inner_product_test(grads), q.orthogonality_test(grads)
    assert along.item() ** 2 + across.item() ** 2 == pytest.approx(whole, rel=1e-9)
    critical = q.critical_batch_size(grads).item()
    assert critical == pytest.approx(len(grads) * whole, rel=1e-9)
    lr, loss = 0.1, q.grad_norm(grads).item() ** 2
    biased = q.cabs(grads, lr, loss).item() * len(grads) / (len(grads) - 1)
    assert biased == pytest.approx(lr * critical, rel=1e-9)


variances = st.just(0.0) | st.floats(1e-6, 10.0)
four_variances = st.lists(variances, min_size=4, max_size=4)


def conditioning(start, end):
    """The slopes' parts over the first slope, times a rounding's 2e-16."""
    t = end.position
    parts = 2 * (abs(start.loss) + abs(end.loss)) / t + abs(start.slope)
    return 2e-16 * (parts + abs(end.slope)) / abs(start.slope)


@settings(max_examples=100, deadline=None)
@given(
    minimum=st.floats(1e-6, 10.0), length=st.floats(0.1, 30.0), variances=four_variances
)
def test_alpha_of_a_quadratic(minimum, length, variances):
    """α + 1 is the step over the way to the minimum, whatever the noise."""

    def point(tau, loss_variance, slope_variance):
        slope = 2 * (tau - minimum)
        loss = (tau - minimum) ** 2
        return q.StepPoint(tau, loss, loss_variance, slope, slope_variance)

    start, end = point(0.0, *variances[:2]), point(length, *variances[2:])
    expected = length / minimum - 1
    assert q.alpha(start, end) == pytest.approx(
        expected, rel=10 * conditioning(start, end), abs=1e-12
    )
    concave = [p._replace(loss=-p.loss, slope=-p.slope) for p in (start, end)]
    assert q.alpha(*concave) == -1.0


@settings(max_examples=100, deadline=None)
@given(
    level=st.floats(-1e6, 1e6),
    curvature=st.just(0.0) | st.floats(-10.0, 10.0),
    length=st.floats(0.1, 30.0),
    variances=four_variances,
    ulps=st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=2),
)
def test_alpha_without_a_slope_at_the_start(level, curvature, length, variances, ulps):
    """Up to the last bits of the numbers, which would else say −1 or 1e16."""
    exact = [
        Fraction(level),
        Fraction(level) + Fraction(curvature) * Fraction(length) ** 2,
    ]
    losses = [
        math.nextafter(float(loss), up * math.inf) if up else float(loss)
        for loss, up in zip(exact, ulps)
    ]
    known = [float(abs(Fraction(loss) - e)) for loss, e in zip(losses, exact)]
    start = q.StepPoint(0.0, losses[0], variances[0], 0.0, variances[1], known[0])
    end = q.StepPoint(
        length, losses[1], variances[2], 2 * curvature * length, variances[3], known[1]
    )
    assert math.isnan(q.alpha(start, end))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_points_know_their_rounding(dtype):
    """Samples of one loss have no variance; slopes that cancel are none."""
    step = torch.tensor([0.1, 0.7, 0.3], dtype=dtype)
    grads = torch.tensor([[7.0, -1.0, 0.0], [3.0, 0.0, -1.0], [0.0, 3.0, -7.0]])
    losses = torch.full((3,), 0.1, dtype=dtype)
    level = 0.1 + torch.finfo(dtype).eps / 64
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        start, end = (
            q.StepPoint.measure(loss, grads[order].to(dtype), step, position)
            for loss, position in [(losses, 0.0), (torch.full_like(losses, level), 1.0)]
        )
        assert start.loss_variance == start.slope_variance == 0.0
        assert math.isnan(q.alpha(start, end))
    steep = start._replace(slope=-1e-5)
    assert q.alpha(steep, end) > -1.0


def test_alpha_where_it_is_not_defined():
    start = q.StepPoint(0.0, 1.0, 0.1, -2.0, 0.1)
    assert math.isnan(q.alpha(start, start))
    assert math.isnan(q.alpha(start, start._replace(position=1.0, loss=math.nan)))
    one = q.StepPoint.measure(torch.ones(1), torch.ones(1, 2), torch.ones(2), 0.0)
    assert one.loss == 1.0 and math.isnan(one.slope_variance)
    assert math.isnan(q.alpha(one, one._replace(position=1.0)))
    flattest = q.StepPoint(0.0, 1.0, 0.1, -5e-324, 5e-324)
    steepest = q.StepPoint(1e-300, 1.0, 10.0, 1e308, 10.0)
    assert q.alpha(flattest, steepest) == math.inf
    with pytest.raises(ValueError, match=r"\(3,\), \(2, 4\) and \(4,\)"):
        q.StepPoint.measure(torch.ones(3), torch.ones(2, 4), torch.ones(4), 0.0)


MISFITS = [
    (lambda g: q.tic_diag(g, torch.ones(2, 3)), r"curvature_diag.*\(2, 3\).*\(4, 3\)"),
    (lambda g: q.tic_diag(g, torch.ones(1)), r"curvature_diag.*\(1,\).*\(4, 3\)"),
    (lambda g: q.tic_trace(g, torch.ones(3)), r"curvature_trace.*\(3,\)"),
    (lambda g: q.cabs(g, 0.1, torch.ones(4)), r"loss.*one number.*\(4,\)"),
    (lambda g: q.cabs(g, torch.ones(3), 1.0), r"lr.*one number.*\(3,\)"),
    (lambda g: q.distance(torch.zeros(3), torch.ones(3, 1)), r"\(3,\) and \(3, 1\)"),
]


@pytest.mark.parametrize("call, message", MISFITS)
def test_what_would_broadcast_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(4, 3))


@settings(max_examples=30, deadline=None)
@given(size=sizes, bins=st.integers(1, 6))
def test_histograms_count_each_element_once(size, bins):
    grads = random_grads(size)
    params = grads[0].flip(0)
    counts, _ = q.grad_hist_1d(grads, bins, (-0.5, 0.5))
    both, _ = q.grad_hist_2d(grads, params, (bins, 3), ((-0.5, 0.5), (-1.0, 1.0)))
    assert counts.sum() == grads.numel()
    assert torch.equal(both.sum(1), counts)
    columns, _ = q.grad_hist_1d(params, 3, (-1.0, 1.0))
    assert torch.equal(both.sum(0), columns * len(grads))


@pytest.mark.parametrize("end", [1.7e308, sys.float_info.max])
def test_histogram_of_all_numbers(end):
    counts, edges = q.grad_hist_1d(torch.tensor([-1e308, -1.0, 1e308]), 4, (-end, end))
    assert edges.tolist() == [-end, -end / 2, 0.0, end / 2, end]
    assert counts.tolist() == [1, 1, 0, 1]


def test_histograms_edges_nan_and_refusals():
    grads = torch.tensor([[0.0, 0.5, 1.0, math.inf, -math.inf, math.nan]])
    assert q.grad_hist_1d(grads, 2, (0.0, 1.0))[0].tolist() == [2, 3]
    counts, _ = q.grad_hist_2d(grads, torch.zeros(6), (2, 1), ((0.0, 1.0), (-1.0, 1.0)))
    assert counts.tolist() == [[2], [3]]
    with pytest.raises(ValueError, match="bins.*0"):
        q.grad_hist_1d(grads, 0, (0.0, 1.0))
    with pytest.raises(ValueError, match=r"range.*\(1.0, 1.0\)"):
        q.grad_hist_1d(grads, 2, (1.0, 1.0))
    with pytest.raises(ValueError, match=r"\(1, 6\) and \(5,\)"):
        q.grad_hist_2d(grads, torch.zeros(5), (1, 1), ((0.0, 1.0), (0.0, 1.0)))
