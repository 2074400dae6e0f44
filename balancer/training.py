"""A call in training: new losses and a new state, from the losses and the old state."""

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from balancer.distributed import check_same_names, has_ranks
from balancer.gradients import Gradients
from balancer.measurement import Measurement
from balancer.quantities.probe import GradientProbe
from balancer.scales import ScaleRule
from balancer.state import BalancerState
from balancer.surrogate import held_losses, measured_losses, scaled_losses
from balancer.walks import take_gradients

# The new losses in the order of the old ones, the new state, the scales by name.
Outcome = Tuple[Sequence[Tensor], BalancerState, Dict[str, float]]


@dataclass(frozen=True)
class TrainingCall:
    """What a balancer is when it is called; see there for its options."""

    rule: ScaleRule
    state: BalancerState
    per_batch_item: bool
    monitor: bool
    input_only: bool
    update_every: int
    group: Any
    probe: Optional[GradientProbe]

    def run(self, losses: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Outcome:
        """Measure if it is time to, and return what follows."""
        if self._is_due(losses):
            return self._measure(losses, inputs)
        return self._hold(losses, inputs)

    def _is_due(self, losses: Mapping[str, Tensor]) -> bool:
        state = self.state
        if has_ranks(self.group):
            # Only what all ranks know may decide whether they communicate.
            known = state.latest(self.rule.weights)
            return not (known and state.calls % self.update_every)
        never = -self.update_every
        return any(
            state.calls - state.measured_at.get(name, never) >= self.update_every
            for name in losses
        )

    def _measure(
        self, losses: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> Outcome:
        rule = self.rule
        gradients, found = self._take(losses, inputs)
        state = self._probed(gradients, inputs, found)
        averages = state.averages.updated(found.norms)
        coefficients = rule.coefficients(found, averages, state)
        scales = rule.scales(found.norms, averages, coefficients)
        combined, monitored = state.combined, {}
        if self.monitor or rule.exact_total_norm:
            norm = found.total_norm(scales)
            combined = rule.combined(norm, scales, combined, found)
            factor = rule.factor(combined)
            scales = {name: factor * scale for name, scale in scales.items()}
            if self.monitor:
                monitored = {**found.cosines, "total_grad_norm": factor * norm}
        # A loss that only an empty batch has is in no measurement.
        mine = [scales.get(name, 0.0) for name in losses]
        if self.input_only:
            new_losses = measured_losses(
                list(losses.values()), mine, list(gradients.values()), inputs
            )
        else:
            new_losses = scaled_losses(losses.values(), mine)
        state = state.after_measurement(
            averages, combined, found.norms, monitored, coefficients
        )
        return new_losses, state, scales

    def _take(
        self, losses: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> Tuple[Mapping[str, Gradients], Measurement]:
        # What any rank may bring on any step, in an order that all ranks share.
        if self.rule.weights is None:
            check_same_names(losses, inputs[0].device, self.group)
        names = sorted(losses if self.rule.weights is None else self.rule.weights)
        gradients, found = take_gradients(
            losses,
            inputs,
            names,
            self.state.norms,
            self.per_batch_item,
            pairs=self.monitor or self.rule.needs_pairs,
            keep_graph=not self.input_only,
            group=self.group,
        )
        if not found.norms:
            raise ValueError("input is empty on every rank: leave this call out on all")
        return gradients, found

    def _probed(
        self,
        gradients: Mapping[str, Gradients],
        inputs: Sequence[Tensor],
        found: Measurement,
    ) -> BalancerState:
        if self.probe is None or not self.state.probe_is_due(self.probe.every):
            return self.state
        return self.state.with_probed(
            self.probe.measure(gradients, inputs, found.norms, self.group)
        )

    def _hold(self, losses: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Outcome:
        present: Any = losses
        if has_ranks(self.group):
            # Of the other ranks' losses only those of the last measurement are known.
            present = self.state.latest(self.rule.weights)
        scales = self.rule.held(present, self.state)
        mine = [scales.get(name, 0.0) for name in losses]
        if self.input_only:
            new_losses = held_losses(list(losses.values()), mine, inputs)
        else:
            new_losses = scaled_losses(losses.values(), mine)
        return new_losses, self.state.after_call(), scales
