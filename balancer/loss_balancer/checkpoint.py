"""State that travels in an optimizer's state dict, which every trainer saves."""

from typing import Any, Dict, List, Mapping, Optional, Protocol

import torch


class Stateful(Protocol):
    """Anything that can be saved, loaded, and put back to its beginning.

    check_state_dict raises what load_state_dict would raise, and loads nothing.
    """

    def state_dict(self) -> Dict[str, Any]: ...

    def check_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def reset(self) -> None: ...


def save_with(optimizer: torch.optim.Optimizer, key: str, owner: Stateful) -> None:
    """Save and load `owner` in optimizer.state_dict()[key].

    A checkpoint without the key resets the owner; one that the owner refuses changes
    neither. An optimizer without the owner loads a checkpoint with the key, since
    torch.optim.Optimizer reads its own keys alone. An optimizer that Accelerate or
    Lightning has wrapped will do as well.

    Raises:
        ValueError: the optimizer's state dict has that key already.
    """
    # Accelerate's wrapper lacks torch's hooks, and saves and loads what it wraps.
    optimizer = getattr(optimizer, "optimizer", optimizer)
    if key in optimizer.state_dict():
        raise ValueError(
            f"a {key} is saved with this optimizer already: save the second one with "
            "another optimizer, or by its own state_dict()"
        )
    found: List[Optional[Mapping[str, Any]]] = []

    def save(_: Any, state: Dict[str, Any]) -> Dict[str, Any]:
        return {**state, key: owner.state_dict()}

    def look(_: Any, state: Dict[str, Any]) -> None:
        found[:] = [state.get(key)]
        if found[0] is not None:  # refused here, it leaves the optimizer as it was
            owner.check_state_dict(found[0])

    def load(_: Any) -> None:
        # Not before, so that a checkpoint that the optimizer refuses changes nothing.
        state = found.pop()
        if state is None:
            owner.reset()
        else:
            owner.load_state_dict(state)

    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(look)
    optimizer.register_load_state_dict_post_hook(load)
