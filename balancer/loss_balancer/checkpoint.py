"""State that travels in an optimizer's state dict, which every trainer saves."""

import json
import weakref
from typing import Any, Dict, List, Mapping, Optional, Protocol, Set

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

# The keys that are saved with an optimizer.
_KEYS: "weakref.WeakKeyDictionary[Optimizer, Set[str]]" = weakref.WeakKeyDictionary()


class Stateful(Protocol):
    """Anything that can be saved, loaded, and put back to its beginning.

    check_state_dict raises what load_state_dict would raise, and loads nothing.
    """

    def state_dict(self) -> Dict[str, Any]: ...

    def check_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def reset(self) -> None: ...


def save_with(optimizer: Any, key: str, owner: Stateful) -> None:
    """Save and load `owner` in optimizer.state_dict(); `saved_in` finds it there.

    It is a text in the first parameter group, as one more option. What saves a state
    dict in another form, as torch.distributed.checkpoint does, keeps the options, and
    a text whole where it drops the keys of a dict that the new owner does not know.

    A checkpoint without the key resets the owner; one that the owner refuses changes
    neither. One that was loaded before reaches the owner now. An optimizer without the
    owner loads a checkpoint with the key, and nothing reads that option.

    Args:
        optimizer: one of torch.optim, or what wraps one and has it as its `optimizer`,
            as those of Accelerate and Lightning.
        key: the name of the option.
        owner: has a state of dicts, lists, texts and plain numbers.

    Raises:
        TypeError: there is no optimizer of torch.optim.
        ValueError: another owner has that key; what wraps the optimizer saves a state
            dict without it; or the owner refuses what was loaded before.
    """
    inner = _unwrapped(optimizer)
    keys = _KEYS.setdefault(inner, set())
    if key in keys:
        raise ValueError(
            f"a {key} is saved with this optimizer already: save the second one with "
            "another optimizer, or by its own state_dict()"
        )
    options = inner.param_groups[0]
    text = options.get(key)
    earlier = saved_in({"param_groups": [options]}, key)
    if earlier is not None:
        owner.check_state_dict(earlier)
    rider = _Rider(key, owner)
    handles = rider.mount(inner)
    if _loses(optimizer, key):
        for handle in handles:
            handle.remove()
        options.pop(key)
        if text is not None:
            options[key] = text
        raise ValueError(
            f"the state dict of this {type(optimizer).__name__} has not the {key} that "
            f"is saved with its {type(inner).__name__}, so a checkpoint would lose it: "
            f"save and load the {key} by its own state_dict() and load_state_dict()"
        )
    keys.add(key)
    if earlier is not None:
        owner.load_state_dict(earlier)


class _Rider:
    """The hooks of an optimizer that save and load an owner."""

    def __init__(self, key: str, owner: Stateful):
        self._key = key
        self._owner = owner
        self._found: Optional[Mapping[str, Any]] = None

    def mount(self, optimizer: Optimizer) -> List[RemovableHandle]:
        self._hold_place(optimizer)
        return [
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._look),
            optimizer.register_load_state_dict_post_hook(self._load),
        ]

    def _save(self, _: Optimizer, state: Dict[str, Any]) -> Dict[str, Any]:
        first, *others = state["param_groups"]
        text = json.dumps(self._owner.state_dict())
        return {**state, "param_groups": [{**first, self._key: text}, *others]}

    def _look(self, _: Optimizer, state: Dict[str, Any]) -> None:
        self._found = saved_in(state, self._key)
        if self._found is not None:  # refused here, it leaves the optimizer as it was
            self._owner.check_state_dict(self._found)

    def _load(self, optimizer: Optimizer) -> None:
        # Not before, so that a checkpoint that the optimizer refuses changes nothing.
        self._hold_place(optimizer)
        if self._found is None:
            self._owner.reset()
        else:
            self._owner.load_state_dict(self._found)
        self._found = None

    def _hold_place(self, optimizer: Optimizer) -> None:
        """Have the option among the optimizer's own.

        With flatten_optimizer_state_dict, torch loads those alone that it finds there.
        """
        optimizer.param_groups[0][self._key] = None


def saved_in(state: Mapping[str, Any], key: str) -> Optional[Dict[str, Any]]:
    """Return what was saved under a key in an optimizer's state dict, or None.

    Args:
        state: what optimizer.state_dict() returned, by this version or one that saved
            a dict beside the parameter groups.
        key: what `save_with` was given.

    Raises:
        ValueError: the text is damaged.

    Example:
        >>> groups = [{"lr": 0.1, "balancer": '{"calls": 3}', "params": [0]}]
        >>> saved_in({"state": {}, "param_groups": groups}, "balancer")
        {'calls': 3}
    """
    for group in state.get("param_groups", []):
        text = group.get(key)
        if text is not None:
            try:
                return dict(json.loads(text))
            except (TypeError, ValueError):
                raise ValueError(
                    f"the {key} saved with the optimizer is {text!r}, which is no "
                    "dict in JSON: the checkpoint is damaged"
                ) from None
    return state.get(key)


def _unwrapped(optimizer: Any) -> Optimizer:
    """Return the optimizer that has torch's hooks; what wraps one may lack them."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise TypeError(
            "checkpoint_with needs an optimizer of torch.optim, or one that has it as "
            f"its `optimizer`, but was given {optimizer!r}: save and load "
            "balancer.state_dict() beside it"
        )
    return inner


def _loses(optimizer: Any, key: str) -> bool:
    """Tell whether what was saved does not come back out of a state dict."""
    try:
        state = optimizer.state_dict()
    except RuntimeError:  # ZeroRedundancyOptimizer has none before it is consolidated
        return False
    return not _has(state, key)


def _has(value: Any, key: str) -> bool:
    """Tell whether a text stands under the key, however deep in dicts and lists."""
    if isinstance(value, Mapping):
        if isinstance(value.get(key), str):
            return True
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return any(_has(part, key) for part in value)
