"""A plain Python function as a reward."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlzoo.errors import UserError, nearest, one_line
from rlzoo.rewards.base import Reward, Sample

_ROW = {
    "completion": "completion",
    "prompt": "prompt",
    "target": "target",
    "answer": "target",  # what data sets call it
    "terminated": "terminated",
    "num_tokens": "num_tokens",
    "row": "row",
}
_BATCH = {
    "completions": "completion",
    "prompts": "prompt",
    "targets": "target",
    "answers": "target",
    "terminated": "terminated",
    "num_tokens": "num_tokens",
    "rows": "row",
}


class FunctionReward(Reward):
    """Calls a function with the arguments that it names.

    Available names are ``completion``, ``prompt``, ``target`` (or ``answer``, as data sets call
    it), ``terminated``, ``num_tokens``, ``row`` and every column of the dataset; ``**kwargs`` takes
    all of them. A function that names ``completions`` is called once per batch, with lists:
    ``completions``, ``prompts``, ``targets`` (or ``answers``), ``terminated``, ``num_tokens``,
    ``rows`` and each column under its own name.

    Example:
        ``{class_path: FunctionReward, init_args: {function: my_pkg.my_function, weight: 0.5}}``

    Args:
        function: The function, or where to import it from.
        **kwargs: Options of every reward.
    """

    def __init__(self, function: Callable[..., Any] | str, **kwargs: Any) -> None:
        self.function = _resolve(function) if isinstance(function, str) else function
        super().__init__(**kwargs)
        if not callable(self.function):
            raise UserError(f"{self.name}.function={function!r}: is not callable")
        self._required, self._optional, self._all = _arguments(self.name, self.function)
        self._batched = "completions" in (*self._required, *self._optional)

    def _default_name(self) -> str:
        return getattr(self.function, "__name__", "function").strip("<>")

    @property
    def batched(self) -> bool:
        """Whether the function names ``completions``."""
        return self._batched

    def reward(self, sample: Sample) -> Any:
        """Call the function for one row."""
        if self._batched:
            return self.reward_all([sample])[0]
        values = {
            **sample.columns,
            **{name: getattr(sample, attribute) for name, attribute in _ROW.items()},
        }
        return self.function(**self._choose(values))

    def reward_all(self, samples: Sequence[Sample]) -> Any:
        """Call the function once for all rows, or once per row."""
        if not self._batched:
            return [self.reward(sample) for sample in samples]
        shared = set(samples[0].columns).intersection(*(sample.columns for sample in samples))
        values: dict[str, list[Any]] = {
            name: [sample.columns[name] for sample in samples] for name in shared
        }
        for name, attribute in _BATCH.items():
            values[name] = [getattr(sample, attribute) for sample in samples]
        return self.function(**self._choose(values))

    def _choose(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in self._required:
            if name not in values:
                raise UserError(
                    f"reward '{self.name}' asks for '{name}', which is neither a field nor a "
                    f"column; present: {', '.join(sorted(values))}"
                )
        if self._all:
            return values
        names = (*self._required, *self._optional)
        return {name: values[name] for name in names if name in values}


def _arguments(name: str, function: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name}.function: its arguments cannot be read ({error}); wrap it in a def"
        ) from error
    required, optional, everything = [], [], False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            everything = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise UserError(
                f"{name}.function: argument '{parameter.name}' cannot be passed by name; "
                "wrap it in a def with named arguments"
            )
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    return required, optional, everything


def _resolve(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise UserError(f"FunctionReward.function='{path}': write module.function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            f"FunctionReward.function='{path}': cannot import '{module_name}' "
            f"({type(error).__name__}: {one_line(error, 200)}); install it or put it on PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        hint = nearest(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise UserError(
            f"FunctionReward.function='{path}': '{module_name}' has no '{attribute}'; {hint}"
        )
    function: Callable[..., Any] = getattr(module, attribute)
    return function
