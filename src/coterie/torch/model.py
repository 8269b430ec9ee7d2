"""A PyTorch module as a model of ours."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array
from torch import nn

from coterie.errors import LearnerError, SettingError
from coterie.torch import modules
from coterie.torch.seeds import seed_of, seeded

Params = dict[str, Array]


@dataclass(frozen=True)
class TorchModel:
    """A model whose parameters are the weights of a PyTorch module, by the names of its state dict.

    It is for the server of a federation of PyTorch clients, which needs the shapes of the weights and their
    initial values: `Learner(TorchModel(Net), ...)`. All else works too, gradients and whole simulations, but
    slowly: every use is a call from JAX to PyTorch on the CPU, one client after another. There the module is
    always in eval mode: dropout drops nothing, and batch norm keeps the statistics that it started with.

    Parameters
    ----------
    make
        Makes the module: a class or another function that takes no arguments, or its name, as in
        `"mypackage.net:Net"`. It should draw initial weights from PyTorch's own generator, as layers do: a
        seed is set for it.
    """

    make: str | Callable[[], nn.Module]
    in_torch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.make, nn.Module):
            name = type(self.make).__name__
            raise SettingError(f"TorchModel is given what makes a module: {name}, not {name}().")
        if not callable(_found(self.make)):
            raise SettingError(
                f"make must be a function that makes a module, or its name, not {self.make!r}."
            )

    def module(self) -> nn.Module:
        """A new module."""
        make, name = _found(self.make), _name(self.make)
        try:
            made = make()
        except TypeError as error:
            raise SettingError(
                f"{name} cannot make a module without being told more ({error}): give a function that needs "
                "no arguments, such as functools.partial(Net, ...)."
            ) from error
        if not isinstance(made, nn.Module):
            raise SettingError(f"{name} makes a {type(made).__name__}, not a torch.nn.Module.")
        return made

    def init(self, key: Any, x: Any) -> Params:
        """The weights that PyTorch draws for a key."""
        run = _Run(self, x.shape[1:], jnp.dtype(x.dtype).name)
        drawn: Params = _called(run.draw, run.shapes(), jax.random.key_data(key))
        return drawn

    def apply(self, params: Params, x: Any) -> Array:
        """The module's outputs in eval mode."""
        outputs: Array = _applied(_Run(self, x.shape[1:], jnp.dtype(x.dtype).name), params, jnp.asarray(x))
        return outputs


@dataclass(frozen=True)
class _Run:
    """A model and the shape of an example: what JAX calls back. Equal ones share a compiled program."""

    model: TorchModel
    x_shape: tuple[int, ...]
    x_dtype: str

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        module, _ = _made(self)
        return {name: _float32(tensor.shape) for name, tensor in modules.weights(module).items()}

    def outputs(self, examples: int) -> jax.ShapeDtypeStruct:
        return _float32((examples, *_made(self)[1]))

    def new(self) -> nn.Module:
        module = self.model.module()
        modules.materialise(module, self.blank())
        return module.eval()

    def blank(self) -> np.ndarray:
        return np.zeros((1, *self.x_shape), self.x_dtype)

    def draw(self, words: Any) -> dict[str, np.ndarray]:
        with seeded(seed_of(np.asarray(words).tolist())):
            return modules.arrays(modules.weights(self.new()))

    def forward(self, params: Params, x: Any) -> np.ndarray:
        with seeded(0), torch.no_grad():
            return _array(modules.apply(*self._given(params, x)))

    def backward(
        self, params: Params, x: Any, towards: Any
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """The gradient with respect to parameters and features; None for features that are whole numbers."""
        with seeded(0):
            module, features = self._given(params, x)
            features.requires_grad_(features.is_floating_point())
            own = modules.weights(module)
            # statistics and frozen weights are moved by no gradient
            of = [tensor for tensor in (*own.values(), features) if tensor.requires_grad]
            outputs = modules.apply(module, features)
            found = torch.autograd.grad(outputs, of, _tensor(towards).to(outputs), allow_unused=True)
            gradient = {id(tensor): g for tensor, g in zip(of, found, strict=True) if g is not None}
        by_tensor = {name: gradient.get(id(tensor), torch.zeros_like(tensor)) for name, tensor in own.items()}
        towards_x = gradient.get(id(features), torch.zeros_like(features))
        return modules.arrays(by_tensor), _array(towards_x) if features.requires_grad else None

    def _given(self, params: Params, x: Any) -> tuple[nn.Module, torch.Tensor]:
        module, _ = _made(self)
        modules.put(module, {name: _tensor(array) for name, array in params.items()})
        return module, modules.converted(module, _tensor(x))


@lru_cache(maxsize=16)
def _made(run: _Run) -> tuple[nn.Module, tuple[int, ...]]:
    """A module to put weights into, and the shape of its output for one example."""
    name = _name(run.model.make)
    with seeded(0), torch.no_grad():
        module = run.new()
        if run.new() is module:
            raise SettingError(f"{name} gives the same module each time: let it make a new one.")
        if not modules.weights(module):
            raise SettingError(f"{name} makes a module without weights: there is nothing to train.")
        shape = tuple(modules.apply(module, modules.converted(module, torch.tensor(run.blank()))).shape)
    if shape[:1] != (1,):
        raise LearnerError(
            f"the module {type(module).__name__} gives outputs of shape {shape} for a batch of one: it "
            "must have one row per example, which squeeze() takes away and squeeze(-1) does not."
        )
    return module, shape[1:]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _applied(run: _Run, params: Params, x: Array) -> Any:
    return _called(run.forward, run.outputs(len(x)), params, x)


def _forward(run: _Run, params: Params, x: Array) -> tuple[Any, tuple[Params, Array]]:
    return _applied(run, params, x), (params, x)


def _backward(run: _Run, given: tuple[Params, Array], towards: Array) -> Any:
    params, x = given
    of_x = _float32(x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else None
    return _called(run.backward, (run.shapes(), of_x), params, x, towards)


_applied.defvjp(_forward, _backward)


def _called(function: Callable[..., Any], shapes: Any, *arguments: Any) -> Any:
    """What a function of arrays gives for these, when the program runs."""
    if jax.default_backend() != "cpu":
        return jax.pure_callback(function, shapes, *arguments, vmap_method="sequential")
    # on the CPU, arguments of a pure_callback are copied by threads that may all be waiting in callbacks
    # themselves, one for each device: there it would stop for good
    return buffer_callback(_InPlace(function), shapes, vmap_method="sequential")(*arguments)


@dataclass(frozen=True)
class _InPlace:
    """A function of arrays that writes its results where it is told."""

    function: Callable[..., Any]

    def __call__(self, context: Any, out: Any, *arguments: Any) -> None:
        results = self.function(*jax.tree.map(np.asarray, arguments))
        jax.tree.map(lambda buffer, result: np.copyto(np.asarray(buffer), result), out, results)


def _found(make: Any) -> Any:
    """The function that a name stands for; anything else is returned as it is."""
    if not isinstance(make, str):
        return make
    place, _, name = make.partition(":")
    try:
        return getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"make={make!r} is not found ({error}): write it as 'mypackage.net:Net', of a module that Python "
            "can import."
        ) from error


def _name(make: Any) -> str:
    return make if isinstance(make, str) else str(getattr(make, "__name__", make))


def _float32(shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.float32)


def _tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array))


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().cpu().numpy()
    return array
