"""What each loss is multiplied by."""

from dataclasses import dataclass
from typing import Dict, Iterable, Mapping, Optional

from balancer.ema import NormAverages
from balancer.measurement import Measurement
from balancer.state import BalancerState
from balancer.weighting import Weighting

# The name of the one average in BalancerState.combined.
_NORM = "norm"
# A Gram matrix cannot tell a smaller part of its gradients' norms from its rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ScaleRule:
    """The rule that turns averages into scales; see Balancer for its options.

    Attributes:
        weights: those of this call; None weighs all losses alike.
    """

    total_norm: float
    epsilon: float
    weights: Optional[Mapping[str, float]]
    balance_grads: bool
    exact_total_norm: bool
    weighting: Optional[Weighting]

    @property
    def needs_pairs(self) -> bool:
        """Whether it needs to know how the gradients lie to one another."""
        return self.exact_total_norm or self.weighting is not None

    def weights_of(self, present: Iterable[str]) -> Dict[str, float]:
        """Return w_i of the losses that are present."""
        if self.weights is None:
            return dict.fromkeys(present, 1.0)
        return {name: self.weights[name] for name in present}

    def scales(
        self,
        present: Iterable[str],
        averages: NormAverages,
        coefficients: Mapping[str, float],
    ) -> Dict[str, float]:
        """Return s_i = total_norm · w_i / Σ_j w_j / (epsilon + a_i).

        A loss without an average has had a gradient of zero so far, and the scale 0.
        Coefficients of a weighting take the place of w_i / Σ_j w_j.
        """
        weights = self.weights_of(present)
        if not self.balance_grads:
            return weights
        whole = sum(weights.values())
        scales = {}
        for name, weight in weights.items():
            average = averages.get(name)
            share = coefficients.get(name, weight / whole)
            scales[name] = (
                0.0
                if average is None
                else self.total_norm * share / (self.epsilon + average)
            )
        return scales

    def coefficients(
        self, found: Measurement, averages: NormAverages, state: BalancerState
    ) -> Mapping[str, float]:
        """Return what the weighting makes of the normalized gradients' Gram matrix.

        Of gradients that are not finite nothing can be said: the last ones stay.
        """
        if self.weighting is None:
            return {}
        if found.non_finite():
            return state.coefficients
        known = [name for name in found.norms if averages.get(name) is not None]
        if not known:
            return {}
        weights = self.weights_of(found.norms)
        whole = sum(weights.values())
        units = [1 / (self.epsilon + averages[name]) for name in known]
        gram = found.gram(known)
        factors = gram.new_tensor(units)
        return dict(
            zip(
                known,
                self.weighting.coefficients(
                    gram * factors.outer(factors),
                    [weights[name] / whole for name in known],
                    seed=state.calls,
                ),
            )
        )

    def combined(
        self,
        norm: float,
        scales: Mapping[str, float],
        averages: NormAverages,
        found: Measurement,
    ) -> NormAverages:
        """Return the average of the norm of Σ_i s_i g_i, with this call's in it.

        Gradients that cancel one another say nothing, and a factor for them would
        have no bound.
        """
        if not self.exact_total_norm:
            return averages
        parts = sum(scales[name] * part for name, part in found.norms.items())
        return (
            averages if norm <= _ROUNDING * parts else averages.updated({_NORM: norm})
        )

    def factor(self, combined: NormAverages) -> float:
        """Return what brings the norm of Σ_i s_i g_i to total_norm on average."""
        average = combined.get(_NORM) if self.exact_total_norm else None
        return 1.0 if average is None else self.total_norm / (self.epsilon + average)

    def held(self, present: Iterable[str], state: BalancerState) -> Dict[str, float]:
        """Return the scales of a call that measures nothing."""
        factor = self.factor(state.combined)
        scales = self.scales(present, state.averages, state.coefficients)
        return {name: factor * scale for name, scale in scales.items()}
