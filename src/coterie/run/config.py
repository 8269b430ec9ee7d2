"""What an experiment is: a TOML file and/or options, validated, with every setting decided."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie import registry
from coterie.data.federated import Federated
from coterie.errors import ConfigError
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.losses import NAMED

Section = dict[str, Any]
DEFAULTS: dict[str, Section] = {
    "data": {"name": "rotated-digits"},
    "algorithm": {"name": "ifca", "k": 4, "rounds": 60, "n_init": 5},
    "local": {"name": "sgd", "lr": 0.1, "steps": 10},
}


class Experiment(BaseModel):
    """Everything that determines a run.

    `data`, `model`, `local` and `algorithm` each hold a `name` and the settings of the part of that name;
    `simulation` holds those of `coterie.Simulation`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    loss: str | None = None
    baselines: tuple[str, ...] = ("global", "local")
    data: Section = DEFAULTS["data"]
    model: Section | None = None
    local: Section = DEFAULTS["local"]
    algorithm: Section = DEFAULTS["algorithm"]
    simulation: Section = {}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Experiment:
        """Validate the content of an experiment file; the first problem is named by its key."""
        try:
            experiment = cls.model_validate(dict(content))
        except ValidationError as error:
            raise ConfigError(registry.explain(error)) from None
        for kind in ("data", "model", "local", "algorithm"):
            section = getattr(experiment, kind)
            if section is not None:
                if not isinstance(section.get("name"), str):
                    raise ConfigError(f"{kind}.name: this setting is required.")
                registry.validate(kind, section["name"], settings_of(section))
        registry.validate_call(
            "simulation", Simulation, experiment.simulation, leave_out=("shards", "devices")
        )
        for name in experiment.baselines:
            registry.part("algorithm", name)
        if experiment.loss is not None and experiment.loss not in NAMED:
            raise ConfigError(f"loss: there is no {experiment.loss!r}; choose one of {', '.join(NAMED)}.")
        return experiment

    @classmethod
    def from_file(cls, path: Path) -> Section:
        """The content of an experiment file, not yet validated."""
        try:
            return tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}.") from error

    def decided(self, data: Federated) -> Experiment:
        """The experiment with what was left open chosen to fit the data."""
        labels = data.train.spec.classes is not None
        return self.model_copy(
            update={
                "loss": self.loss or ("cross_entropy" if labels else "squared"),
                "model": self.model or {"name": "mlp" if labels else "linear"},
            }
        )

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
        model = registry.build("model", self.model["name"], settings_of(self.model))
        return Learner(model, self.loss, registry.build("local", self.local["name"], settings_of(self.local)))

    def make_algorithm(self) -> Any:
        """The algorithm."""
        return registry.build("algorithm", self.algorithm["name"], settings_of(self.algorithm))

    def baseline(self, name: str) -> Experiment:
        """The same experiment with another algorithm, given the same rounds."""
        mine = registry.schema(registry.part("algorithm", name)).model_fields
        shared = {key: value for key, value in self.algorithm.items() if key in mine and key != "name"}
        return self.model_copy(update={"algorithm": {"name": name, **shared}, "baselines": ()})

    def to_toml(self) -> str:
        """As an experiment file."""
        content = self.model_dump(mode="json", exclude_none=True)
        top = [f"{key} = {_toml(value)}" for key, value in content.items() if not isinstance(value, dict)]
        sections = [
            "\n".join([f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())])
            for name, section in content.items()
            if isinstance(section, dict) and section
        ]
        return "\n\n".join(["\n".join(top), *sections]) + "\n"


def settings_of(section: Section) -> Section:
    """A section without its name."""
    return {key: value for key, value in section.items() if key != "name"}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    return repr(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def difference(old: Experiment, new: Experiment) -> str | None:
    """The first setting in which two experiments differ, in words; None if they are the same."""
    a, b = (_flat(e.model_dump(mode="json")) for e in (old, new))
    for key in {**a, **b}:
        if a.get(key) != b.get(key):
            theirs, ours = ("not set" if e.get(key) is None else f"{e[key]!r}" for e in (a, b))
            return f"its {key} is {theirs}, here it is {ours}"
    return None


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
