"""What each loss is multiplied by."""

from typing import Dict, Iterable, Mapping, Tuple

from balancer._norms.ema import NormAverages
from balancer._norms.measurement import Measurement
from balancer._scales.options import Options
from balancer._scales.state import BalancerState

# The name of the one average in BalancerState.combined.
_NORM = "norm"


class ScaleRule:
    """The rule that turns averages into scales in one call; Balancer has the formula.

    Args:
        options: the balancer's.
        step: the number of the call, which weights that change depend on.

    Attributes:
        weights: those of this call; None weighs all losses alike.
    """

    def __init__(self, options: Options, step: int):
        self.options = options
        self.weights = options.weights_at(step)

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
        if not self.options.balance_grads:
            return weights
        whole = sum(weights.values())
        scales = {}
        for name, weight in weights.items():
            average = averages.get(name)
            share = coefficients.get(name, weight / whole if whole else 0.0)
            scales[name] = (
                0.0
                if average is None
                else self.options.total_norm * share / (self.options.epsilon + average)
            )
        return scales

    def measured(
        self,
        found: Measurement,
        averages: NormAverages,
        stood: Mapping[str, int],
        state: BalancerState,
    ) -> Tuple[Dict[str, float], BalancerState]:
        """Return the scales of a call that measured, and the state after it.

        Args:
            found: what it measured.
            averages: those that have taken it in.
            stood: name → the number of calls that a norm stands for.
            state: the one before the call.
        """
        now = averages.for_call(found.norms)
        coefficients = self._coefficients(found, now, state)
        scales = self.scales(found.norms, now, coefficients)
        combined, monitored = state.combined, {}
        if self.options.monitor or self.options.exact_total_norm:
            norm = found.total_norm(scales)
            combined = self._combined(norm, scales, combined, found, stood)
            factor = self._factor(combined)
            scales = {name: factor * scale for name, scale in scales.items()}
            if self.options.monitor:
                monitored = {**found.cosines, "total_grad_norm": factor * norm}
        return scales, state.after_measurement(
            averages, combined, found.norms, monitored, coefficients
        )

    def held(self, present: Iterable[str], state: BalancerState) -> Dict[str, float]:
        """Return the scales of a call that measures nothing."""
        factor = self._factor(state.combined)
        scales = self.scales(present, state.averages, state.coefficients)
        return {name: factor * scale for name, scale in scales.items()}

    def _coefficients(
        self, found: Measurement, averages: NormAverages, state: BalancerState
    ) -> Mapping[str, float]:
        """Return what the weighting makes of the normalized gradients' Gram matrix.

        Of gradients that are not finite nothing can be said: the last ones stay.
        """
        if self.options.weighting is None:
            return {}
        if found.non_finite():
            return state.coefficients
        known = [name for name in found.norms if averages.get(name) is not None]
        if not known:
            return {}
        weights = self.weights_of(found.norms)
        whole = sum(weights.values())
        units = [1 / (self.options.epsilon + averages[name]) for name in known]
        gram = found.gram(known)
        factors = gram.new_tensor(units)
        coefficients = self.options.weighting.coefficients(
            gram * factors.outer(factors),
            [weights[name] / whole for name in known],
            seed=state.calls,
        )
        return dict(zip(known, coefficients))

    def _combined(
        self,
        norm: float,
        scales: Mapping[str, float],
        averages: NormAverages,
        found: Measurement,
        stood: Mapping[str, int],
    ) -> NormAverages:
        """Return the average of the norm of Σ_i s_i g_i, with this call's in it.

        Gradients that cancel one another say nothing, and a factor for them would
        have no bound.
        """
        if not self.options.exact_total_norm:
            return averages
        parts = sum(scales[name] * part for name, part in found.norms.items())
        if norm <= found.rounding * parts:
            return averages
        return averages.updated({_NORM: norm}, {_NORM: max(stood.values())})

    def _factor(self, combined: NormAverages) -> float:
        """Return what brings the norm of Σ_i s_i g_i to total_norm on average."""
        options = self.options
        average = combined.get(_NORM) if options.exact_total_norm else None
        if average is None:
            return 1.0
        return options.total_norm / (options.epsilon + average)
