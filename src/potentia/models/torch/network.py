"""`Network`: any PyTorch module as a potential; modules built from classes and keywords, and their state as arrays."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ...base.progress import note
from ...base.saving import SavedFunction
from ...base.schema import Kind, Schema
from ...base.types import Floats, PotentiaError, check_count, check_number, shown
from ...kernels.linear_losses import loss_rows
from ...potentials.base import Differentiable
from ...potentials.inputs import Inputs
from ...potentials.problem import Batch, Problem
from .layer import to_numpy

_LOG = logging.getLogger(__name__)

#: Rows or examples per step where `batch` is None.
_BATCH = {"row": 256, "example": 4}
#: Batches of rows that are gathered together.
_DRAWN = 64
#: State of Adam per parameter.
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_PREFIX = "module__"


class Network(Differentiable):
    """f(x) = module(x) for any class of `torch.nn.Module`, fitted by Adam on the biased logistic loss.

    `Network(UNet, per="example", module__channels=3)` builds `UNet(channels=3)`. The class and its keywords are stored
    unchanged; files hold the name of the class, the keywords and the `state_dict` as arrays.

    - `per="row"`: the module is given features (n, d) of some regions and returns scores (n, K), where K is the number
      of configurations of a region.
    - `per="example"`: it is given `Example.inputs` of the kind. Inputs of equal shape are stacked to a batch
      (B, *shape), and the module returns (B, n_regions, K) in the order of the graph, or (B, K, *sides) for the pixels
      of an image, row by row. It sees all of an example, even where labels are hidden.

    Floating-point inputs arrive in the precision of the module's parameters, others in their own type. Each fit passes
    `epochs` times over the data, with steps that fall from `rate` to zero; the next fit continues from its network and
    Adam's state, at the full rate. Passes are in training mode (dropout, batch normalisation), everything else, also
    the loss by which a fit is judged, is in evaluation mode. Unlike other potentials it starts as the module does, not
    at zero.

    Args:
        module: a class derived from `torch.nn.Module`.
        per: "row" or "example".
        epochs: passes over the data per fit.
        batch: rows or examples per step; None for 256 rows or 4 examples. Also the most inputs in a stack.
        rate: first step size of Adam; also that of `MarginalRisk(batch=...)` for the network's parameters.
        ridge: the penalty is half of it times the sum of squares of all parameters with two or more dimensions
            (weights, not biases or scales), added to the summed loss as `Linear`'s is.
        device: such as "cuda"; None for PyTorch's default device.
        seed: of initial parameters, the order of batches and dropout; PyTorch's global random state is left as it is.
        module__...: keywords of the module.
    """

    own_optimiser: ClassVar[bool] = True
    saved: ClassVar[Schema] = {**Differentiable.saved, "weights_": Kind((dict,)), "moments_": Kind((dict,))}

    weights_: dict[str, Any]
    moments_: dict[str, Any]

    def __init__(
        self,
        module: Any,
        per: Literal["row", "example"] = "row",
        epochs: int = 1,
        batch: int | None = None,
        rate: float = 1e-3,
        ridge: float = 0.0,
        device: str | None = None,
        seed: int = 0,
        **options: Any,
    ):
        self.module = module
        self.per = per
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.ridge = ridge
        self.device = device
        self.seed = seed
        self._set_options(options)

    # -- options -------------------------------------------------------------------------------------------------

    @property
    def unit(self) -> Literal["row", "example"]:  # type: ignore[override]
        """Whether the module reads rows or whole examples."""
        return self.per

    @property
    def full_precision(self) -> bool:  # type: ignore[override]
        """Whether all parameters are float64."""
        return all(p.dtype == torch.float64 for p in self._ready_module().parameters())

    def _set_options(self, options: dict[str, Any]) -> None:
        """Take keywords of the module, which have a prefix."""
        for name, value in options.items():
            if not name.startswith(_PREFIX):
                raise PotentiaError(
                    f"Network has no parameter {name!r}; keywords of the module are written {_PREFIX}{name}."
                )
            setattr(self, name, value)

    def _module_options(self) -> dict[str, Any]:
        """The module's keywords, with their prefix."""
        return {name: value for name, value in vars(self).items() if name.startswith(_PREFIX)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All hyper-parameters by name, keywords of the module as module__name."""
        return super().get_params(deep) | self._module_options()

    def set_params(self, **params: Any) -> Self:
        """Set hyper-parameters by name, keywords of the module as module__name."""
        options = {name: value for name, value in params.items() if name.startswith(_PREFIX)}
        super().set_params(**{name: value for name, value in params.items() if name not in options})
        self._set_options(options)
        self._forget_module()
        return self

    @classmethod
    def decode_option(cls, name: str, value: Any) -> Any:
        """Classes of modules that a file names are those that the running program has defined."""
        if not isinstance(value, SavedFunction):
            return value
        module = find_module(value.name)
        if module is None and name == "module":
            raise PotentiaError(f"the file names the module {value.name}, which is unknown: import or define it first.")
        return module or value

    def __repr__(self) -> str:
        """The constructor call, with the arguments that differ from their defaults."""
        text = super().__repr__().removesuffix(")")
        more = [f"{name}={value!r}" for name, value in self._module_options().items()]
        return f"{', '.join([text, *more])})"

    def _check_settings(self) -> None:
        """Refuse bad options."""
        if self.per not in _BATCH:
            raise PotentiaError(f"per must be 'row' or 'example', not {shown(self.per)}.")
        check_count("epochs", self.epochs, 1)
        check_count("seed", self.seed)
        check_count("batch", self.batch, 1, optional=True)
        for name in ("rate", "ridge"):
            check_number(name, getattr(self, name))

    # -- the module ------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # the module is rebuilt from the arrays: copies must not share it
        return {name: value for name, value in vars(self).items() if name not in ("_module", "_loaded")}

    def _forget_module(self) -> None:
        """Let go of the module, which is made again from the weights when it is needed."""
        for name in ("_module", "_loaded"):
            self.__dict__.pop(name, None)

    def _ready_module(self) -> torch.nn.Module:
        """The module with the fitted weights, on its device and in evaluation mode."""
        if "_module" not in vars(self):
            options = {n.removeprefix(_PREFIX): v for n, v in self._module_options().items()}
            if self.is_fitted:
                check_without_memory(self.module, options, self.weights_)
            self._module = build_module(self.module, options, self.device, self.seed)
            self._loaded: Any = None
        if self.is_fitted and self._loaded is not self.weights_:
            load_arrays(self._module, self.weights_)
            self._loaded = self.weights_
        return self._module.eval()

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The parameters that are not frozen, by name."""
        return [(n, p) for n, p in self._ready_module().named_parameters() if p.requires_grad]

    def check_options(self) -> None:
        """Refuse another module than the one that the weights belong to."""
        self._forget_module()
        self._ready_module()

    def _begin(self, problem: Problem) -> None:
        """A freshly initialised module, drawn with the seed."""
        self._check_settings()
        self._forget_module()
        self.weights_, self.moments_ = to_arrays(self._ready_module().state_dict()), {}
        self._loaded = self.weights_
        if not self._trained():
            raise PotentiaError(f"the module {self.module.__name__} has no parameters to train.")

    def ready(self, n_rows: int) -> None:
        """Load the weights before threads ask for scores."""
        self._ready_module()

    def _tensor(self, x: Any) -> Tensor:
        """Scores (n, K) of some rows or inputs, through which gradients can be taken."""
        return scores_of(self._module, x, self.n_outputs_, self.batch or _BATCH[self.per])

    def _scores(self, x: Any) -> Floats:
        """The module's output for some rows."""
        self._ready_module()
        with torch.no_grad():
            return to_numpy(self._tensor(x))

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, problem: Problem) -> None:
        """Epochs of Adam, which resumes from the moments of the fit before."""
        self._check_settings()
        module = self._ready_module()
        optimiser = self._optimiser()
        device = next(module.parameters()).device
        with seeded(device, self.seed, 1 + self.n_fits_):
            for epoch in range(self.epochs):
                note(f"epoch {epoch + 1} of {self.epochs}")
                mean = self._pass(problem, optimiser, epoch)
                _LOG.info("epoch %d of %d: loss %.6g per row", epoch + 1, self.epochs, mean)
        self.weights_, self.moments_ = to_arrays(module.state_dict()), self._moments(optimiser)
        self._loaded = self.weights_

    def _pass(self, problem: Problem, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One pass over the data in random order; the mean loss of its rows, each at the weights of its turn."""
        self._module.train()
        done = total = 0.0
        for batch, share in self._batches(problem, np.random.default_rng([self.seed, self.n_fits_, epoch])):
            optimiser.zero_grad()
            optimiser.param_groups[0]["lr"] = self.rate * (1 - (epoch + done) / self.epochs)
            done += share
            tensor = self._tensor(batch.x)
            scores = to_numpy(tensor)
            residual = np.empty_like(scores)
            total += loss_rows(scores, *batch.targets, residual) / problem.total_weight
            residual /= share * problem.total_weight
            tensor.backward(torch.from_numpy(residual).to(tensor))
            for parameter in self._module.parameters():
                if parameter.requires_grad and parameter.dim() > 1 and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self.ridge / problem.total_weight)
            optimiser.step()
        return total

    def _batches(self, problem: Problem, rng: np.random.Generator) -> Iterator[tuple[Batch, float]]:
        """Batches in random order, each with its share of the rows or examples."""
        size = self.batch or _BATCH[self.per]
        if self.per == "row":
            order = rng.permutation(problem.n_rows)
            for batch in problem.batches(order, size, _DRAWN):
                yield batch, batch.n_rows / len(order)
            return
        ptr = problem.example_ptr()
        order = rng.permutation(len(ptr) - 1)
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            rows = np.concatenate([np.arange(ptr[k], ptr[k + 1]) for k in chosen])
            yield problem.draw(rows), len(chosen) / len(order)

    def _optimiser(self) -> torch.optim.Adam:
        """Adam where the last fit left it."""
        optimiser = torch.optim.Adam([p for _, p in self._trained()], lr=self.rate)
        for name, parameter in self._trained():
            if f"{name}.step" in self.moments_:
                saved = {key: torch.from_numpy(self.moments_[f"{name}.{key}"].copy()) for key in _MOMENTS}
                optimiser.state[parameter] = {
                    key: value if key == "step" else value.to(parameter) for key, value in saved.items()
                }
        return optimiser

    def _moments(self, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
        """Adam's state as arrays."""
        return to_arrays(
            {
                f"{name}.{key}": optimiser.state[parameter][key]
                for name, parameter in self._trained()
                if parameter in optimiser.state
                for key in _MOMENTS
            }
        )

    # -- parameters ------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Floats:
        """All parameters that are not frozen, flat, in the order of the module."""
        return np.concatenate([self.weights_[name].ravel() for name, _ in self._trained()]).astype(np.float64)

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        """Take all trained weights from one vector."""
        values, first, changed = self._checked(vector), 0, dict(self.weights_)
        for name, parameter in self._trained():
            part = values[first : first + parameter.numel()].reshape(tuple(parameter.shape))
            changed[name] = part.astype(changed[name].dtype)
            first += parameter.numel()
        self.weights_ = changed

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """ridge / 2 times the sum of squares of parameters with two or more dimensions, and its gradient."""
        factor = self.ridge if ridge is None else ridge
        values = [self.weights_[n].astype(np.float64) * (p.dim() > 1) for n, p in self._trained()]
        flat = np.concatenate([value.ravel() for value in values])
        return 0.5 * factor * float(flat @ flat), factor * flat

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The gradient by all trained weights, flat, by autograd."""
        parameters = [p for _, p in self._trained()]
        with torch.enable_grad():
            tensor = self._tensor(x)
            slopes = torch.autograd.grad(
                tensor, parameters, torch.from_numpy(np.ascontiguousarray(d_scores)).to(tensor),
                allow_unused=True, materialize_grads=True,
            )  # fmt: skip
        return np.concatenate([to_numpy(slope).ravel() for slope in slopes])

    def step_size(self, rate: float) -> float:
        """The network's own rate, whatever the learner's."""
        return self.rate


# -- modules --------------------------------------------------------------------------------------------------


def find_module(name: str) -> type[torch.nn.Module] | None:
    """The class of modules of this name, among those that the running program has defined."""
    classes: list[type[torch.nn.Module]] = [torch.nn.Module]
    for cls in classes:  # which grows meanwhile
        classes += cls.__subclasses__()
    # the last one, where a notebook has defined it again
    return next((c for c in reversed(classes) if f"{c.__module__}.{c.__qualname__}" == name), None)


def build_module(cls: Any, options: Mapping[str, Any], device: str | None, seed: int) -> torch.nn.Module:
    """A module of the class with these keywords, its parameters drawn by the seed, on a device."""
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise PotentiaError(f"module must be a class derived from torch.nn.Module, not {shown(cls)}.")
    place = _device(device)
    try:
        with seeded(torch.device("cpu"), seed, 0), torch.device("cpu"):
            built = cls(**options)
    except Exception as error:
        raise PotentiaError(
            f"the module {cls.__name__} cannot be built with {dict(options)}: {first_line(error)}."
        ) from error
    kinds = {p.dtype for p in built.parameters()} - {torch.float32, torch.float64}
    if kinds:
        raise PotentiaError(f"parameters of {cls.__name__} must be float32 or float64, not {kinds.pop()}.")
    return built.to(place)


def _device(name: str | None) -> torch.device:
    """The device of a name; refuses one that cannot be used here."""
    if name is not None and not isinstance(name, str):
        raise PotentiaError(f"device must be a text such as 'cuda' or None, not {shown(name)}.")
    try:
        place = torch.get_default_device() if name is None else torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise PotentiaError(f"device {name!r} cannot be used: {first_line(error)}.") from None
    return place


def first_line(error: Exception) -> str:
    """The first line of an error's message, without the full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def seeded(device: torch.device, *numbers: int) -> Iterator[None]:
    """PyTorch's random numbers follow from these numbers; afterwards its global state is as before."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for cuda in devices:
            with torch.cuda.device(cuda):
                torch.cuda.manual_seed(seed)
        yield


def to_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by name as copied arrays."""
    arrays = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise PotentiaError(f"{name} of the module's state is a {type(value).__name__}, not a tensor.")
        try:
            arrays[name] = value.detach().cpu().numpy().copy()
        except TypeError:
            raise PotentiaError(f"{name} of the module's state has the type {value.dtype}.") from None
    return arrays


def check_without_memory(cls: Any, options: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Refuse keywords by which a module has another state than these arrays, before its parameters take memory."""
    try:
        with torch.device("meta"):
            state = cls(**options).state_dict()
    except Exception:  # the module computes with its numbers while it is built; it is checked after that
        return
    _check_arrays(cls.__name__, state, arrays)


def load_arrays(module: torch.nn.Module, arrays: Mapping[str, Any]) -> None:
    """Give a module the state that `to_arrays` made."""
    _check_arrays(type(module).__name__, module.state_dict(), arrays)
    module.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in arrays.items()})


def _check_arrays(name: str, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of this module."""
    if set(state) != set(arrays):
        odd = sorted(set(state) ^ set(arrays))[0]
        raise PotentiaError(f"the weights belong to another module than {name}: {odd} is in one of them only.")
    for key, tensor in state.items():
        array = arrays[key]
        if not isinstance(array, np.ndarray) or array.shape != tuple(tensor.shape):
            shape = getattr(array, "shape", None)
            raise PotentiaError(
                f"the weights belong to another module than {name}: {key} has the shape {shape}, not "
                f"{tuple(tensor.shape)}."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PotentiaError(f"the weights are damaged: {key} holds numbers that are not finite.")


def scores_of(module: torch.nn.Module, x: Any, n_outputs: int, most: int) -> Tensor:
    """Scores (n, K) of rows of features, or of the rows of `Inputs`, of which at most `most` are stacked."""
    if not isinstance(x, Inputs):
        out = _call(module, np.asarray(x))
        if out.shape != (len(x), n_outputs):
            raise PotentiaError(
                f"the module {type(module).__name__} returned the shape {tuple(out.shape)} for {len(x)} rows; "
                f"expected {(len(x), n_outputs)}."
            )
        return out
    tables: list[Tensor] = [torch.empty(0)] * len(x.arrays)
    for group in _equal_shapes(x, most):
        stack = np.stack([x.arrays[k] for k in group])
        for k, table in zip(group, _tables(module, stack, x.sizes[group[0]], n_outputs), strict=True):
            tables[k] = table
    joined = torch.cat(tables)
    return joined if x.rows is None else joined[torch.from_numpy(x.rows).to(joined.device)]


def _equal_shapes(x: Inputs, most: int) -> list[list[int]]:
    """Examples whose inputs can be stacked, at most `most` at a time."""
    groups: dict[Any, list[int]] = {}
    for k, array in enumerate(x.arrays):
        groups.setdefault((array.shape, array.dtype, x.sizes[k]), []).append(k)
    return [group[a : a + most] for group in groups.values() for a in range(0, len(group), most)]


def _tables(module: torch.nn.Module, stack: Any, n_regions: int, n_outputs: int) -> Tensor:
    """Scores (B, n_regions, K) of a stack of inputs."""
    out = _call(module, stack)
    shape = tuple(out.shape)
    if shape == (len(stack), n_regions, n_outputs):
        return out
    if len(shape) > 3 and shape[:2] == (len(stack), n_outputs) and math.prod(shape[2:]) == n_regions:
        return out.flatten(2).transpose(1, 2)
    raise PotentiaError(
        f"the module {type(module).__name__} returned the shape {shape} for inputs of shape {stack.shape}; expected "
        f"{(len(stack), n_regions, n_outputs)}, or ({len(stack)}, {n_outputs}, height, width) with {n_regions} pixels."
    )


def _call(module: torch.nn.Module, values: Any) -> Tensor:
    """The module's output; floating-point inputs get the device and precision of its first parameter."""
    name, like = type(module).__name__, next(module.parameters(), torch.empty(0))
    # PyTorch warns of arrays that it must not write to
    inputs = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    inputs = inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    try:
        out = module(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise PotentiaError(
            f"the module {name} fails on inputs of shape {tuple(inputs.shape)} and {inputs.dtype}: {first_line(error)}."
        ) from error
    if not isinstance(out, Tensor):
        raise PotentiaError(f"the module {name} returned a {type(out).__name__}, not a tensor of scores.")
    return out
