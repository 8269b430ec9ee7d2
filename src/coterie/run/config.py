"""What an experiment is: a TOML file and/or options, validated, with every setting decided."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie import registry
from coterie.algorithms.algorithm import Algorithm
from coterie.data.federated import Federated
from coterie.data.shards import Spec
from coterie.errors import ConfigError
from coterie.federation.flower_settings import FlowerSettings
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.losses import NAMED

Section = dict[str, Any]
KINDS = ("data", "model", "local", "augment", "algorithm")
DEFAULTS: dict[str, Section] = {
    "data": {"name": "rotated-digits"},
    "algorithm": {"name": "discover", "rounds": 60},
    "local": {"name": "sgd", "lr": 0.1, "steps": 10},
}
TOLD = {"name": "ifca", "k": 4, "rounds": 60, "n_init": 5}  # what it is where a setting of its own is given


class Experiment(BaseModel):
    """Everything that determines a run.

    `data`, `model`, `local`, `augment` and `algorithm` each hold a `name` and the settings of the part of
    that name; `simulation` holds those of `coterie.Simulation`, and `flower` those of `FlowerFederation`, for
    a run on machines of their own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    loss: str | None = None
    baselines: tuple[str, ...] = ("global", "local")
    data: Section = DEFAULTS["data"]
    model: Section | None = None
    local: Section = DEFAULTS["local"]
    augment: Section | None = None
    algorithm: Section = DEFAULTS["algorithm"]
    simulation: Section = {}
    flower: Section = {}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Experiment:
        """Validate the content of an experiment file; the first problem is named by its key."""
        for kind in (*KINDS, "simulation", "flower"):
            if kind in content and not isinstance(content[kind], Mapping):
                raise ConfigError(f"{kind}: must be a section, [{kind}] in a file, not {content[kind]!r}.")
        try:
            experiment = cls.model_validate(dict(content))
        except ValidationError as error:
            raise ConfigError(registry.explain(error)) from None
        # settings as their types have them, so that `lr = 1` and `lr = 1.0` are the same experiment
        checked: dict[str, Any] = {
            "simulation": experiment.simulation_settings(),
            "flower": registry.validate_call("flower", FlowerSettings, experiment.flower),
        }
        for kind in KINDS:
            section = getattr(experiment, kind)
            if section is not None:
                name = section.get("name")
                if name is None:
                    raise ConfigError(f"{kind}.name: this setting is required.")
                _part(f"{kind}.name", kind, name)
                checked[kind] = {"name": name, **registry.validate(kind, name, settings_of(section))}
        for name in experiment.baselines:
            _part("baselines", "algorithm", name)
        if experiment.loss is not None:
            _choice("loss", experiment.loss, NAMED)
        for key, seed in (("seed", experiment.seed), ("data.seed", checked["data"].get("seed", 0))):
            if not 0 <= seed < 2**63:
                raise ConfigError(f"{key}: must be a whole number from 0 to 2**63 - 1, not {seed}.")
        FlowerSettings(**checked["flower"])
        experiment = experiment.model_copy(update=checked)
        for name in experiment.baselines:
            experiment.baseline(name)
        return experiment

    @classmethod
    def from_file(cls, path: Path) -> Section:
        """The content of an experiment file, not yet validated."""
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}.") from error

    def decided(self, spec: Spec) -> Experiment:
        """The experiment with what was left open chosen to fit the data."""
        labels = spec.classes is not None
        return self.model_copy(
            update={
                "loss": self.loss or ("cross_entropy" if labels else "squared"),
                "model": self.model or {"name": "mlp" if labels else "linear"},
            }
        )

    @property
    def called(self) -> str:
        """What folders are called after: the data set, or the user's own file."""
        return Path(str(self.data.get("source") or self.data.get("path") or self.data["name"])).stem

    def make_data(self) -> Federated:
        """The data set."""
        settings = settings_of(self.data)
        if "seed" in registry.schema(registry.part("data", self.data["name"])).model_fields:
            settings = {"seed": self.seed, **settings}
        data: Federated = registry.build("data", self.data["name"], settings)
        return data

    def make_learner(self) -> Learner:
        """The learner; only of an experiment that is decided."""
        assert self.model is not None and self.loss is not None

        def made(kind: str, section: Section) -> Any:
            return registry.build(kind, section["name"], settings_of(section))

        augment = None if self.augment is None else made("augment", self.augment)
        return Learner(made("model", self.model), self.loss, made("local", self.local), augment)

    def make_algorithm(self) -> Any:
        """The algorithm."""
        return registry.build("algorithm", self.algorithm["name"], settings_of(self.algorithm))

    def simulation_settings(self) -> Section:
        """The settings of the simulation, checked."""
        return registry.validate_call(
            "simulation", Simulation, self.simulation, leave_out=("shards", "devices")
        )

    def baseline(self, name: str) -> Experiment:
        """The same experiment with another algorithm, given as many rounds in all."""
        mine = registry.schema(registry.part("algorithm", name)).model_fields
        shared = {key: value for key, value in self.algorithm.items() if key in mine and key != "name"}
        if self.algorithm.keys() & {"rounds", "refines"}:
            shared["rounds"] = max(1, self.make_algorithm().expected_rounds // _parts(mine))
        try:
            registry.validate("algorithm", name, shared)
        except ConfigError as error:
            raise ConfigError(
                f"baselines: {name} lacks settings that {self.algorithm['name']} does not have: {error}"
            ) from error
        return self.model_copy(update={"algorithm": {"name": name, **shared}, "baselines": ()})

    def to_toml(self) -> str:
        """As an experiment file."""
        content = self.model_dump(exclude_none=True)
        top = [f"{key} = {_toml(value)}" for key, value in content.items() if not isinstance(value, dict)]
        sections = [
            "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())])
            for name, section in content.items()
            if isinstance(section, dict) and section
        ]
        return "\n\n".join(["\n".join(top), *sections]) + "\n"


def _parts(fields: Mapping[str, Any]) -> int:
    """In how many parts an algorithm with these settings trains, each of `rounds` rounds."""
    return int(fields["refines"].default) if "refines" in fields else 1


def with_options(content: Section, options: Iterable[tuple[str, Any]]) -> Section:
    """The content of an experiment file with other values for some keys, such as ("local.lr", 0.05)."""
    content, options = dict(content), list(options)
    given = {key for key, _ in options}
    if not given.isdisjoint({"algorithm.k", "algorithm.n_init"}) and "algorithm.name" not in given:
        content.setdefault("algorithm", TOLD)
    for key, value in options:
        section, _, name = key.rpartition(".")
        if not section:
            content[key] = value
            continue
        current = content.get(section, DEFAULTS.get(section, {}))
        if not isinstance(current, dict):
            continue  # not a section: refused by its key when the content is read
        if name == "name" and current.get("name") != value:
            # another part: settings of the former one mean nothing to it
            usual = next((d for d in (*DEFAULTS.values(), TOLD) if d["name"] == value), None)
            current = {"rounds": current["rounds"]} if section == "algorithm" and "rounds" in current else {}
            current = dict(usual) if usual else current
        content[section] = {**current, name: value}
    return content


def setting(text: str) -> tuple[str, Any]:
    """A key and its value from text such as `local.lr=0.05`."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise ConfigError(f"a setting is given as KEY=VALUE, such as local.lr=0.05, not {text!r}.")
    return key, value_of(value)


def value_of(text: str) -> Any:
    """A value from text: a number, true or false, a list, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _choice(key: str, name: Any, choices: Collection[str]) -> None:
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(f"{key}: there is no {name!r}; choose one of {', '.join(choices)}.")


def _part(key: str, kind: str, name: Any) -> None:
    """Refuse what names no part: neither one of ours nor an import path."""
    if not isinstance(name, str):
        _choice(key, name, registry.PARTS[kind])
    found = registry.part(kind, name, key)
    if kind == "algorithm" and not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{key}: {name!r} is no subclass of coterie.Algorithm.")


def settings_of(section: Section) -> Section:
    """A section without its name."""
    return {key: value for key, value in section.items() if key != "name"}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    return repr(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def difference(old: Experiment, new: Experiment) -> str | None:
    """The first setting in which two experiments differ, in words; None if they are the same.

    How patient a server is with its clients is no part of an experiment: it may change on resuming.
    """
    a, b = (_flat(e.model_dump(exclude={"flower"})) for e in (old, new))
    for key in {**a, **b}:
        # as they are written: a participation of 1 is one client, of 1.0 all of them
        theirs, ours = ("not set" if e.get(key) is None else _toml(e[key]) for e in (a, b))
        if theirs != ours:
            return f"its {key} is {theirs}, here it is {ours}"
    return None


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
