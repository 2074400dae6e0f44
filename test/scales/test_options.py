"""A recipe's YAML section."""

import pytest
import yaml

from balancer import Balancer


def test_yaml_section_with_numbers_read_as_text():
    section = yaml.safe_load(
        "{epsilon: 1e-8, total_norm: 2, weights: {mel: 1e1, adv: 3}, update_every: 4}"
    )
    assert section["epsilon"] == "1e-8"  # what YAML 1.1 makes of it
    balancer = Balancer.from_config(section)
    assert (balancer.epsilon, balancer.total_norm) == (1e-8, 2.0)
    assert balancer.weights == {"mel": 10.0, "adv": 3.0}
    assert balancer.update_every == 4


def test_unknown_key_names_the_nearest():
    with pytest.raises(ValueError, match="'ema_decai'.*'ema_decay'"):
        Balancer.from_config({"ema_decai": 0.9})
    with pytest.raises(ValueError, match="'zzz'.*known are.*'update_every'"):
        Balancer.from_config({"zzz": 1})


def test_text_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="epsilon"):
        Balancer.from_config({"epsilon": "small"})


def test_section_with_a_probe_names_the_way_out():
    with pytest.raises(ValueError, match="layer.*balancer.probe = GradientProbe"):
        Balancer.from_config({"probe": {"every": 100}})
