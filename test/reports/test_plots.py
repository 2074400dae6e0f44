"""The sheet, read back from the figure that was drawn."""

import itertools
import math
import warnings

import pytest
from matplotlib.colors import to_hex

from balancer._scales.weights import Ramp, weights_at
from balancer.reports.plots import COLORS, MOST_POINTS, draw
from balancer.reports.runs import Run
from balancer.reports.stats import QUANTITIES, STATS


def run(losses=3, steps=20, label="run", weights=None, stats=(*STATS, *QUANTITIES)):
    names = [f"loss_{i}" for i in range(losses)]
    points = {step: 0.1 * (1 + step % 3) for step in range(1, steps + 1)}
    series = {(stat.name, n): dict(points) for stat in stats for n in names}
    series["total_grad_norm", ""] = series["outside_to_balanced", ""] = points
    for i, pair in enumerate(itertools.combinations(names, 2)):
        series["cosine", ", ".join(pair)] = dict.fromkeys(points, (-1) ** i / (i + 1.0))
    for step in points:
        now = weights_at(weights or dict.fromkeys(names, 1.0), step - 1)
        for name, weight in now.items():
            target = series.setdefault(("target", name), {})
            target[step] = weight / sum(now.values()) if sum(now.values()) else 0.0
    return Run(label, names, series)


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


def texts(figure):
    return [text.get_text() for part in figure.legends for text in part.get_texts()]


def boxes(figure):
    """The boxes of all texts but those that a tick outside the axes has, in pixels."""
    figure.savefig("/dev/null", format="png")
    found = [t for legend in figure.legends for t in legend.get_texts()]
    for axes in figure.axes:
        found += [axes.title, axes.xaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            found += [t.label1 for t in ticks if low <= t.get_loc() <= high]
    found += [figure._suptitle] if figure._suptitle else []
    return [t.get_window_extent() for t in found if t.get_text().strip()]


@pytest.mark.parametrize(
    "losses, trainings, stats",
    [(1, 1, STATS), (5, 1, (*STATS, *QUANTITIES)), (20, 3, STATS), (40, 1, STATS)],
)
def test_no_text_overlaps_another_or_the_border(losses, trainings, stats):
    names = [f"{i}" + 10 * "_longer" for i in range(trainings)]
    figure = draw([run(losses, steps=3, label=name, stats=stats) for name in names])
    found = boxes(figure)
    width, height = figure.bbox.size
    for box in found:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    for one, other in itertools.combinations(found, 2):
        overlap = one.intersection(one, other)
        assert not overlap or min(overlap.width, overlap.height) < 1


def test_names_are_shown_as_they_are():
    """Whatever a folder or a loss is called, and each pair of such losses."""
    one = run(losses=2, stats=STATS, label="$\\wrong{$")
    one.losses = ["_a", "$b_$c"]
    one.series = {
        (stat, subject.replace("loss_0", "_a").replace("loss_1", "$b_$c")): points
        for (stat, subject), points in one.series.items()
    }
    for trainings in ([one], [one, run(label="_other")]):
        figure = draw(trainings)
        figure.savefig("/dev/null", format="png")
        assert {"_a", "$b_$c", "_a, $b_$c"} < set(texts(figure))
    assert {"$\\wrong{$", "_other"} < set(texts(figure))


def test_each_loss_can_be_told_from_every_other():
    figure = draw([run(losses=40, stats=STATS)])
    norms = panels(figure)["Gradient norm"].get_lines()
    assert len({(line.get_color(), line.get_marker()) for line in norms}) == 40
    assert {to_hex(line.get_color()).upper() for line in norms} == set(COLORS)


def test_lines_hold_the_values_and_dashes_the_targets():
    weights = {"loss_0": 3.0, "loss_1": 1.0, "loss_2": 0.0}
    one, other = run(weights=weights), run(label="other", steps=10)
    for name in other.losses:
        del other.series["target", name]
    shares = panels(draw([one, other]))["Share of the balanced gradient"]
    lines = shares.get_lines()
    assert list(lines[1].get_xdata()) == list(range(1, 21))
    assert list(lines[1].get_ydata()) == list(one.of("share")["loss_1"].values())
    assert lines[1].get_linestyle() == "-" and lines[4].get_linestyle() == ":"
    assert lines[1].get_color() == lines[4].get_color()
    targets = {line.get_color(): line.get_ydata()[0] for line in lines[6:]}
    assert targets == {COLORS[0]: 0.75, COLORS[1]: 0.25, COLORS[2]: 0.0}
    assert all(line.get_linestyle() == "--" for line in lines[6:])
    assert "target" in texts(draw([one])) and "target" not in texts(draw([other]))


def test_targets_of_a_weight_that_changes_are_a_curve():
    ramp = Ramp(start=0.0, end=1.0, from_step=0, to_step=19)
    line = panels(draw([run(losses=2, weights={"loss_0": 1.0, "loss_1": ramp})]))[
        "Share of the balanced gradient"
    ].get_lines()[3]
    assert line.get_ydata()[0] == 0.0 and line.get_ydata()[19] == 0.5
    assert list(line.get_xdata()) == list(range(1, 21))


def test_equal_targets_show_all_their_colors():
    lines = panels(draw([run()]))["Share of the balanced gradient"].get_lines()[3:]
    drawn = set()
    for line in lines:
        offset, (on, off) = line._unscaled_dash_pattern
        period = on + off
        dash = {round(x - offset) % period for x in range(round(on))}
        assert len(lines) == 3 and on < period / 3 and not drawn & dash
        drawn |= dash


def test_what_cannot_be_drawn_is_left_out():
    bad = run(losses=2)
    bad.series["norm", "loss_0"] = {1: 0.0, 2: math.nan, 3: math.inf, 4: 5.0}
    bad.series["scale", "loss_0"] = bad.series["scale", "loss_1"] = {1: 0.0}
    del bad.series["ratio", "loss_0"], bad.series["norm_test", "loss_1"]
    bad.series["early_stopping", "loss_0"] = {1: -1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw([bad])
        figure.savefig("/dev/null", format="png")
    shown = panels(figure)
    alone = shown["Gradient norm"].get_lines()[0]
    assert list(alone.get_xdata()) == [4] and alone.get_marker() == "o"
    assert [text.get_text() for text in shown["Scale"].texts] == ["no value above 0"]
    stops = shown["Early stopping (above 0: stop)"].get_lines()
    assert list(stops[0].get_ydata()) == [-1.0]


def test_long_trainings_are_averaged_in_groups():
    long = run(losses=1, steps=2 * MOST_POINTS)
    line = panels(draw([long]))["Gradient norm"].get_lines()[0]
    values = list(long.of("norm")["loss_0"].values())
    assert list(line.get_xdata()) == [1.5 + 2 * i for i in range(MOST_POINTS)]
    assert line.get_ydata()[1] == pytest.approx((values[2] + values[3]) / 2)


def test_of_many_pairs_the_strongest_are_drawn():
    figure = draw([run(losses=20, stats=STATS)])
    assert "pair (10 of 190)" in texts(figure)
    lines = panels(figure)["Cosine of two gradients"].get_lines()[:-1]
    assert [line.get_ydata()[0] for line in lines] == [
        (-1) ** i / (i + 1.0) for i in range(10)
    ]


def test_panels_without_values_are_not_there():
    plain = run(losses=1, stats=STATS[:1])
    del plain.series["total_grad_norm", ""], plain.series["outside_to_balanced", ""]
    assert list(panels(draw([plain]))) == ["Share of the balanced gradient"]


def test_what_is_of_no_loss_is_one_line():
    figure = panels(draw([run()]))
    for title in ("Norm of the combined gradient", "Losses outside the balance"):
        (axes,) = [axes for name, axes in figure.items() if name.startswith(title)]
        assert len(axes.get_lines()) == 1


def test_too_many_trainings_are_refused():
    with pytest.raises(ValueError, match="6 trainings.*at most 5"):
        draw([run()] * 6)
