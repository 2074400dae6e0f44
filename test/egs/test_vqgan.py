"""The balancer in the place of VQGAN's adaptive weight."""

import re

from trainer_recipes import script


def test_each_way_holds_the_share_where_it_measures(tmp_path, capsys):
    """Without memory the balancer does at the output what VQGAN does at the layer."""
    chart = tmp_path / "chart.png"
    script("pytorch", "vqgan").main(
        ["--steps", "8", "--batch_size", "4", "--ema_decay", "0", "--plot", str(chart)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", lines[1]) == [
        *("steps", "balancer, output", "balancer, last layer"),
        *("adaptive weight, output", "adaptive weight, last layer"),
    ]
    for line in lines[2:6]:
        cells = re.split(r"\s{2,}", line)[1:]
        held, free = [cells[0], cells[3]], [cells[1], cells[2]]
        assert held == ["0.500 ± 0.000"] * 2
        assert not set(free) & set(held)
    assert chart.stat().st_size > 1000
