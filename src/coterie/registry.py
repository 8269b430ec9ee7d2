"""The names by which experiment files and saved results know our parts.

A part is a dataclass or a function; its signature is the schema of its settings, validated by pydantic, so
that nothing is written down twice. A new algorithm, model or data source is one line here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from coterie.errors import ConfigError
from coterie.learn import losses
from coterie.learn.learner import Learner

PARTS: dict[str, dict[str, str]] = {
    "algorithm": {
        "ifca": "coterie.algorithms.ifca:IFCA",
        "fedx": "coterie.algorithms.fedx:FedX",
        "srfca": "coterie.algorithms.srfca:SRFCA",
        "cfl": "coterie.algorithms.cfl:CFL",
        "fedsoft": "coterie.algorithms.fedsoft:FedSoft",
        "one-shot-kmeans": "coterie.algorithms.one_shot_kmeans:OneShotKMeans",
        "oracle": "coterie.algorithms.baselines:Oracle",
        "global": "coterie.algorithms.baselines:Global",
        "local": "coterie.algorithms.baselines:Local",
    },
    "data": {
        "rotated-digits": "coterie.data.digits:rotated_digits",
        "inverted-digits": "coterie.data.digits:inverted_digits",
        "mixed-regression": "coterie.data.synthetic:mixed_regression",
        "nodes": "coterie.data.nodes:nodes",
    },
    "model": {
        "linear": "coterie.models.linear:Linear",
        "mlp": "coterie.models.mlp:MLP",
        "torch": "coterie.torch.model:TorchModel",
    },
    "local": {"sgd": "coterie.learn.local:SGD", "proximal": "coterie.learn.proximal:Proximal"},
    "aggregate": {
        "mean": "coterie.aggregate.mean:Mean",
        "trimmed-mean": "coterie.aggregate.trimmed:TrimmedMean",
        "median": "coterie.aggregate.trimmed:Median",
    },
    "init": {
        "random": "coterie.initialise.random:Random",
        "farthest-loss": "coterie.initialise.farthest:FarthestLoss",
        "one-shot": "coterie.initialise.one_shot:OneShot",
        "moment-descent": "coterie.initialise.moment_descent:MomentDescent",
    },
}


def part(kind: str, name: str) -> Callable[..., Any]:
    """The part of that kind and name."""
    known = PARTS[kind]
    if name not in known:
        raise ConfigError(f"{kind}: there is no {name!r}; choose one of {', '.join(known)}.")
    module, _, attribute = known[name].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def build(kind: str, name: str, settings: Mapping[str, Any]) -> Any:
    """Make a part from its settings; errors name the key."""
    values = validate(kind, name, settings)
    for key, inner in _parts_of(part(kind, name)).items():
        if key in values:
            of_part = {k: v for k, v in values[key].items() if k != "name"}
            values[key] = build(inner, values[key]["name"], of_part)
    return part(kind, name)(**values)


def validate(kind: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given for a part, checked and converted; errors name the key.

    A setting that is a part itself is given by its name, or as a table with its name and settings.
    """
    parts = _parts_of(part(kind, name))
    values = validate_call(kind, part(kind, name), {k: v for k, v in settings.items() if k not in parts})
    for key in settings.keys() & parts.keys():
        given = {"name": settings[key]} if isinstance(settings[key], str) else settings[key]
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
            raise ConfigError(
                f"{kind}.{key}: give a name, such as {next(iter(PARTS[parts[key]]))!r}, or a table with a "
                f"name and settings, not {settings[key]!r}."
            )
        try:
            inner = validate(parts[key], given["name"], {k: v for k, v in given.items() if k != "name"})
        except ConfigError as error:
            raise ConfigError(f"{kind}.{error}") from None
        values[key] = {"name": given["name"], **inner}
    return values


def _parts_of(maker: Callable[..., Any]) -> dict[str, str]:
    """The settings of a part that are parts themselves, and of which kind."""
    if not dataclasses.is_dataclass(maker):
        return {}
    return {f.name: f.metadata["part"] for f in dataclasses.fields(maker) if "part" in f.metadata}


def validate_call(
    prefix: str, maker: Callable[..., Any], settings: Mapping[str, Any], leave_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Arguments for a call of `maker`, checked against its signature; errors name the key."""
    try:
        values = schema(maker, leave_out).model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(f"{prefix}.{explain(error)}") from None
    return {key: getattr(values, key) for key in settings}


def schema(maker: Callable[..., Any], leave_out: tuple[str, ...] = ()) -> type[BaseModel]:
    """The settings of a part as a pydantic model, from its signature; keys that it lacks are errors."""
    own_init = inspect.isclass(maker) and not dataclasses.is_dataclass(maker)
    hints = get_type_hints(maker.__init__ if own_init else maker)
    if dataclasses.is_dataclass(maker):
        # parts are validated by themselves; what does not count in a comparison is no setting at all
        leave_out += tuple(f.name for f in dataclasses.fields(maker) if not f.compare or "part" in f.metadata)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.name not in leave_out:
            required = parameter.default is parameter.empty
            fields[parameter.name] = (hints.get(parameter.name, Any), ... if required else parameter.default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(maker.__name__, __config__=config, **fields)


def explain(error: ValidationError) -> str:
    """The first problem of a validation, as `key: what is wrong`."""
    first = error.errors()[0]
    key = ".".join(str(p) for p in first["loc"] if not (isinstance(p, str) and ("[" in p or p in _TYPES)))
    if first["type"] == "extra_forbidden":
        return f"{key}: there is no such setting."
    if first["type"] == "missing":
        return f"{key}: this setting is required."
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}."


_TYPES = {"int", "float", "str", "bool", "none"}


def describe(kind: str, thing: Any) -> dict[str, Any] | None:
    """Name and settings of a part made of plain values; None for a part of the user's own making."""
    for name, place in PARTS[kind].items():
        # by name: to import every part would need every extra
        if f"{type(thing).__module__}:{type(thing).__qualname__}" == place:
            parts = _parts_of(type(thing))
            own = [f.name for f in dataclasses.fields(thing) if f.compare and f.name not in parts]
            fields = {key: getattr(thing, key) for key in own}
            if all(_plain(value) for value in fields.values()):
                plain = {key: value for key, value in fields.items() if value is not None}
                return {"name": name, **plain, **_described_parts(thing)}
    return None


def _described_parts(thing: Any) -> dict[str, Any]:
    """The settings of a part that are parts themselves, where they are not the default."""
    found = {}
    for key, kind in _parts_of(type(thing)).items():
        value = getattr(thing, key)
        default: Any = next(f.default_factory for f in dataclasses.fields(thing) if f.name == key)
        if not isinstance(value, type(default())) or value != default():
            own = "given" if not callable(value) else type(value).__name__
            found[key] = describe(kind, value) or {"name": own}
    return found


def describe_algorithm(algorithm: Any) -> dict[str, Any]:
    """Name and settings of an algorithm."""
    return describe("algorithm", algorithm) or {"name": type(algorithm).__name__}


def describe_learner(learner: Learner) -> dict[str, Any]:
    """A learner as plain values, with None for parts of the user's own making."""
    known = {function: name for name, function in losses.NAMED.items()}
    return {
        "model": describe("model", learner.model),
        "loss": known.get(losses.named(learner.loss)),
        "local": describe("local", learner.local),
    }


def learner_from(content: Mapping[str, Any]) -> Learner:
    """The inverse of `describe_learner`."""
    for key in ("model", "loss", "local"):
        if content[key] is None:
            raise ConfigError(
                f"the {key} of this learner is of your own making: give learner=... to load it."
            )

    def remake(kind: str) -> Any:
        return build(kind, content[kind]["name"], {k: v for k, v in content[kind].items() if k != "name"})

    return Learner(remake("model"), content["loss"], remake("local"))


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
