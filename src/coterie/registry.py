"""The names by which experiment files and saved results know our parts.

A part is a dataclass or a function; its signature is the schema of its settings, validated by pydantic, so
that nothing is written down twice. A new algorithm, model or data source of ours is one line here; one of the
user's own is named by its import path, such as `mypackage.MyAlgorithm`, and needs no line.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
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
        "discover": "coterie.algorithms.discover:Discover",
        "cfl": "coterie.algorithms.cfl:CFL",
        "fedsoft": "coterie.algorithms.fedsoft:FedSoft",
        "one-shot-kmeans": "coterie.algorithms.one_shot_kmeans:OneShotKMeans",
        "oracle": "coterie.algorithms.federated_averaging:Oracle",
        "global": "coterie.algorithms.federated_averaging:Global",
        "local": "coterie.algorithms.local:Local",
    },
    "data": {
        "rotated-digits": "coterie.data.digits:rotated_digits",
        "inverted-digits": "coterie.data.digits:inverted_digits",
        "mixed-regression": "coterie.data.synthetic:mixed_regression",
        "rotated-mnist": "coterie.data.mnist:rotated_mnist",
        "inverted-mnist": "coterie.data.mnist:inverted_mnist",
        "rotated-cifar10": "coterie.data.cifar:rotated_cifar10",
        "label-cifar10": "coterie.data.cifar:label_cifar10",
        "femnist": "coterie.data.femnist:femnist",
        "shakespeare": "coterie.data.shakespeare:shakespeare",
        "table": "coterie.data.table:table",
        "folder": "coterie.data.folder:folder",
        "nodes": "coterie.data.nodes:nodes",
    },
    "model": {
        "linear": "coterie.models.linear:Linear",
        "mlp": "coterie.models.mlp:MLP",
        "cnn": "coterie.models.cnn:CNN",
        "resnet9": "coterie.models.resnet:ResNet9",
        "lstm": "coterie.models.lstm:LSTM",
        "torch": "coterie.torch.model:TorchModel",
    },
    "local": {"sgd": "coterie.learn.local:SGD", "proximal": "coterie.learn.proximal:Proximal"},
    "augment": {"crop": "coterie.learn.augment:Crop", "distort": "coterie.learn.augment:Distort"},
    "aggregate": {
        "mean": "coterie.aggregate.mean:Mean",
        "trimmed-mean": "coterie.aggregate.trimmed:TrimmedMean",
        "median": "coterie.aggregate.trimmed:Median",
        "fedavgm": "coterie.aggregate.server:FedAvgM",
        "fedadam": "coterie.aggregate.server:FedAdam",
    },
    "init": {
        "random": "coterie.initialise.random:Random",
        "farthest-loss": "coterie.initialise.farthest:FarthestLoss",
        "one-shot": "coterie.initialise.one_shot:OneShot",
        "components": "coterie.initialise.components:Components",
        "moment-descent": "coterie.initialise.moment_descent:MomentDescent",
    },
}


def part(kind: str, name: str, key: str | None = None) -> Callable[..., Any]:
    """The part of that kind and name, or at that import path; errors name the key, or the kind."""
    known, key = PARTS[kind], key or kind
    if name in known:
        module, _, attribute = known[name].partition(":")
    elif "." in name and all(map(str.isidentifier, name.split("."))):
        module, _, attribute = name.rpartition(".")
    else:
        raise ConfigError(
            f"{key}: there is no {name!r}; choose one of {', '.join(known)}, or give the import path of "
            "your own, such as 'mypackage.MyClass'."
        )
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's own may fail in any way
        if name in known:
            raise
        plain = isinstance(error, ImportError | AttributeError)
        reason = " ".join((str(error) if plain else f"{type(error).__name__}: {error}").split())
        raise ConfigError(f"{key}: {name!r} cannot be imported: {reason}.") from error
    if not callable(found):
        raise ConfigError(f"{key}: {name!r} is neither a class nor a function.")
    return found


def of_the_users_own(kind: str, section: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
    """What a section of an experiment names by its import path: the part itself, or parts that it has."""
    maker = part(kind, section["name"])
    if section["name"] not in PARTS[kind]:
        yield maker
    for key, inner in _parts_of(maker).items():
        if key in section:
            yield from of_the_users_own(inner, section[key])


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
    for key in parts:
        if key not in settings:
            if _default_of(part(kind, name), key) is dataclasses.MISSING:
                raise ConfigError(f"{kind}.{key}: this setting is required.")
            continue
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


def _default_of(maker: Any, key: str) -> Any:
    """The default of a setting of a dataclass, or of one of its instances."""
    field = next(f for f in dataclasses.fields(maker) if f.name == key)
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


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
    """Name and settings of a part made of plain values; None for one that cannot be made again from them."""
    name = _name_of(kind, type(thing))
    if name is None or not dataclasses.is_dataclass(thing):
        return None
    parts = _parts_of(type(thing))
    own = [f.name for f in dataclasses.fields(thing) if f.compare and f.name not in parts]
    fields = {key: getattr(thing, key) for key in own}
    if not all(_plain(value) for value in fields.values()):
        return None
    plain = {key: value for key, value in fields.items() if value is not None}
    return {"name": name, **plain, **_described_parts(thing)}


def _name_of(kind: str, maker: type) -> str | None:
    """The name of a part: ours, or the import path of the user's own; None if it has none."""
    place = f"{maker.__module__}:{maker.__qualname__}"
    for name, known in PARTS[kind].items():
        if known == place:  # by name: to import every part would need every extra
            return name
    if "." in maker.__qualname__ or maker.__module__ == "__main__":
        return None
    return f"{maker.__module__}.{maker.__qualname__}"


def _described_parts(thing: Any) -> dict[str, Any]:
    """The settings of a part that are parts themselves, where they are not the default."""
    found = {}
    for key, kind in _parts_of(type(thing)).items():
        value = getattr(thing, key)
        default = _default_of(thing, key)
        if not isinstance(value, type(default)) or value != default:
            own = "given" if not callable(value) else type(value).__name__
            found[key] = describe(kind, value) or {"name": own}
    return found


def describe_algorithm(algorithm: Any) -> dict[str, Any]:
    """Name and settings of an algorithm."""
    return describe("algorithm", algorithm) or {"name": type(algorithm).__name__}


def describe_learner(learner: Learner) -> dict[str, Any]:
    """A learner as plain values, with None for parts of the user's own making."""
    known = {function: name for name, function in losses.NAMED.items()}
    described = {
        "model": describe("model", learner.model),
        "loss": known.get(losses.named(learner.loss)),
        "local": describe("local", learner.local),
    }
    return (
        described
        if learner.augment is None
        else {**described, "augment": describe("augment", learner.augment)}
    )


def learner_from(content: Mapping[str, Any]) -> Learner:
    """The inverse of `describe_learner`."""
    for key in ("model", "loss", "local", "augment"):
        if content.get(key, "none") is None:
            raise ConfigError(
                f"the {key} of this learner is of your own making: give learner=... to load it."
            )

    def remake(kind: str) -> Any:
        name = content[kind]["name"]
        if not dataclasses.is_dataclass(part(kind, name)):
            # a result may be somebody else's: it names parts, and does not call any function there is
            raise ConfigError(f"{kind}: {name!r} is no dataclass, and only those are made from settings.")
        return build(kind, name, {k: v for k, v in content[kind].items() if k != "name"})

    augment = remake("augment") if "augment" in content else None
    return Learner(remake("model"), content["loss"], remake("local"), augment)


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
