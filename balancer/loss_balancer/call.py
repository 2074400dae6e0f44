"""A call in training: new losses and a new state, from the losses and the old state."""

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from balancer._gradients.graph import LossGraph
from balancer._losses.returned import (
    check_scales,
    held_losses,
    measured_losses,
    scaled_losses,
)
from balancer._norms.measurement import measure
from balancer._norms.ranks import check_same_names, has_ranks
from balancer._scales.rule import ScaleRule
from balancer._scales.state import BalancerState
from balancer.quantities.probe import GradientProbe

# The new losses and the scales by name, and the new state.
Outcome = Tuple[Dict[str, Tensor], Dict[str, float], BalancerState]


def run_call(
    losses: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    rule: ScaleRule,
    state: BalancerState,
    probe: Optional[GradientProbe],
) -> Outcome:
    """Measure the losses if it is time to, or go on with the averages as they are."""
    graph = LossGraph(losses, inputs)
    graph.check(rule.options.input_only)
    if _is_due(losses, rule, state):
        return _measure(graph, rule, state, probe)
    return _hold(graph, rule, state)


def _is_due(
    losses: Mapping[str, Tensor], rule: ScaleRule, state: BalancerState
) -> bool:
    interval = rule.options.interval
    if has_ranks(rule.options.process_group):
        # Only what all ranks know may decide whether they communicate.
        known = state.latest(rule.weights)
        since = state.calls - max(state.measured_at.values(), default=0)
        return not known or since >= interval.after(state.averages, known)
    every = interval.after(state.averages, losses)
    return any(
        state.calls - state.measured_at.get(name, -every) >= every for name in losses
    )


def _measure(
    graph: LossGraph,
    rule: ScaleRule,
    state: BalancerState,
    probe: Optional[GradientProbe],
) -> Outcome:
    options, losses = rule.options, graph.losses

    # losses → gradients → norms over ranks
    gradients, found = measure(
        graph,
        _names_on_all_ranks(graph, rule),
        state.norms,
        options.per_batch_item,
        pairs=options.needs_pairs,
        keep_graph=not options.input_only,
        group=options.process_group,
    )
    if not found.norms:
        raise ValueError("input is empty on every rank: leave this call out on all")
    if not sum(rule.weights_of(found.norms).values()) > 0:
        raise ValueError(
            f"the weights of the losses that the ranks bring, {list(found.norms)}, sum "
            "to zero: leave the call out on all ranks while all of them are off"
        )
    if probe is not None and state.probe_is_due(probe.every):
        probed = probe.measure(
            gradients, graph.inputs, found.norms, options.process_group
        )
        if probed is not None:
            state = state.with_probed(probed)

    # norms → norms over time → scales
    stood = options.interval.stood(found.norms, state.calls, state.measured_at)
    averages = state.averages.updated(found.norms, stood)
    scales, state = rule.measured(found, averages, stood, state)

    # scales → returned losses. One that only an empty batch has is in no measurement.
    mine = {name: scales.get(name, 0.0) for name in losses}
    if options.input_only:
        return measured_losses(losses, mine, gradients, graph.inputs), scales, state
    check_scales(losses, mine)
    return scaled_losses(losses, mine), scales, state


def _names_on_all_ranks(graph: LossGraph, rule: ScaleRule) -> List[str]:
    """Return what any rank may bring on any step, in an order that all ranks share."""
    if rule.weights is not None:
        return sorted(rule.weights)
    check_same_names(graph.losses, graph.inputs[0].device, rule.options.process_group)
    return sorted(graph.losses)


def _hold(graph: LossGraph, rule: ScaleRule, state: BalancerState) -> Outcome:
    options, losses = rule.options, graph.losses
    present = list(losses)
    if has_ranks(options.process_group) and rule.weights is not None:
        # Of the other ranks' losses only those of the last measurement are known.
        present = state.latest(rule.weights)
    scales = rule.held(present, state)
    mine = {name: scales.get(name, 0.0) for name in losses}
    if options.input_only:
        return held_losses(graph, mine, state.norms), scales, state.after_call()
    check_scales(losses, mine)
    return scaled_losses(losses, mine), scales, state.after_call()
