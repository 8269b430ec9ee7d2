"""What several methods make of one population, in a table and in plain words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie import storage
from coterie.clustering.result import Clustering
from coterie.errors import SettingError
from coterie.evaluate.differences import Differences
from coterie.evaluate.groups import Gain, Groups
from coterie.words import count

if TYPE_CHECKING:
    import pandas as pd

ONE_FOR_ALL, ONE_EACH = "global", "local"


class Row(NamedTuple):
    """A method: how well clients are served on held-out examples, and what it cost. Means over seeds."""

    method: str
    groups: float
    loss: float
    accuracy: float | None
    spread: float  # standard deviation over seeds, of accuracy, or of the loss of a regression
    over_global: Gain  # of accuracy, or of loss, for a client; what is better is positive
    over_local: Gain
    agreement: float | None  # adjusted Rand index of the groups of two seeds
    validation: float  # loss
    step_size: float | None
    updates: float  # local ones of a client
    bytes_moved: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """What several methods make of one population; `print` says it in words.

    Attributes
    ----------
    rows
        The methods, in the order in which they were given.
    best
        The method with the lowest loss on validation examples.
    grouping
        Of the methods that find groups, and are as good as the best of them to two standard errors of that
        loss, the one with the fewest.
    groups
        Whether there are groups: see `coterie.groups`.
    found
        What `grouping` found, from its first seed.
    model
        The model that all methods train.
    per_client
        One row per client: its group; by how much the model of the second-best group is worse on its held-out
        examples (`margin`); how much of its company is the same for two seeds (`company`, from 0 to 1); and
        its held-out loss under its group's model, under one model for all and under its own.
    differences
        What distinguishes the groups, where examples are rows of numbers: see `Differences`.
    """

    data: str
    rows: tuple[Row, ...]
    best: str
    grouping: str
    groups: Groups
    found: Clustering
    model: str
    per_client: pd.DataFrame
    differences: Differences | None = None

    def __getitem__(self, method: str) -> Row:
        for row in self.rows:
            if row.method == method:
                return row
        raise SettingError(f"{method!r} was not compared; {', '.join(row.method for row in self.rows)} were.")

    @property
    def classifies(self) -> bool:
        return self.rows[0].accuracy is not None

    @property
    def table(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd  # slow to import

        plain = []
        for row in self.rows:
            values = row._asdict()
            for name in ("over_global", "over_local"):
                values[name], values[f"{name}_low"], values[f"{name}_high"] = getattr(row, name)
            plain.append(values)
        return pd.DataFrame(plain).set_index("method")

    def to_csv(self, path: str | Path) -> None:
        """Write the table to a CSV file."""
        storage.write_text(Path(path), self.table.to_csv())

    def to_json(self) -> dict[str, Any]:
        """Plain values: the methods, and whether there are groups."""
        rows = json.loads(self.table.reset_index().to_json(orient="records"))
        assigned = dict(zip(map(str, self.found.ids.tolist()), self.found.assignment.tolist(), strict=True))
        return {
            "says": str(self),
            "best": self.best,
            "grouping": self.grouping,
            "groups": self.groups.to_json(),
            "model": self.model,
            "methods": rows,
            "assignment": assigned,
        }

    def to_latex(self, path: str | Path | None = None) -> str:
        """The table for a paper, with booktabs' rules; into a file as well, if one is named."""
        scale, measure = (100, "accuracy (\\%)") if self.classifies else (1, "loss")
        form = ".1f" if self.classifies else ".4f"
        lines = ["\\begin{tabular}{lrrrr}", "\\toprule"]
        lines += [f"method & {measure} & gain over global & gain over local & groups \\\\", "\\midrule"]
        for row in self.rows:
            value = row.accuracy if row.accuracy is not None else row.loss
            gains = " & ".join(
                "--" if row.method == than else f"{scale * gain.mean:{form}}"
                for than, gain in ((ONE_FOR_ALL, row.over_global), (ONE_EACH, row.over_local))
            )
            mean = f"${scale * value:{form}} \\pm {scale * row.spread:{form}}$"
            lines.append(f"{row.method} & {mean} & {gains} & {row.groups:.3g} \\\\")
        text = "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])
        if path is not None:
            storage.write_text(Path(path), text)
        return text

    def explain(self, client: Any) -> str:
        """Why a client is where it is, in words."""
        mine = self.per_client[self.per_client["client"].astype(str) == str(client)]
        if mine.empty:
            raise SettingError(f"there is no client {client!r} that was judged.")
        row = mine.iloc[0]
        others = int((self.per_client["group"] == row["group"]).sum()) - 1
        said = [f"{client} is in group {row['group']}, with {count(others, 'other')} ({self.grouping})."]
        losses = f"On its held-out examples the loss is {row['loss']:.3g} under the model of its group"
        if np.isfinite(row["margin"]):
            losses += f", {row['loss'] + row['margin']:.3g} under that of the next best"
        said.append(
            f"{losses}, {row['global']:.3g} under one model for all, {row['local']:.3g} under its own."
        )
        if row["margin"] < 0:
            said.append("So another group's model serves it better.")
        if np.isfinite(row["company"]):
            said.append(f"From seed to seed {row['company']:.0%} of its company is the same.")
        return " ".join(said)

    def __str__(self) -> str:
        return " ".join(self._words())

    def _words(self) -> list[str]:
        of, scale, form = ("points", 100, ".1f") if self.classifies else ("of loss", 1, ".3g")
        row, alone = self[self.grouping], self[ONE_EACH]
        gain = row.over_global.words(of, scale, form)
        if not self.groups.any:
            said = [str(self.groups)]
            if alone.over_global.low > 0:
                more = alone.over_global.words(of, scale, form)
                said.append(f"Each is served best by a model of its own: it gains {more} over one for all.")
            else:
                best = "" if row.groups == 1 else f": the best grouping, {row.method}, gains {gain}"
                said.append(f"One model serves everyone{best}.")
            return said
        said = [f"There are groups (p = {self.groups.p:.2g}): {row.method} finds {row.groups:.3g}."]
        said.append(f"A client gains {gain} over one model for all")
        than = row.over_local
        over = than.words(of, scale, form)
        if than.low > 0:
            said[-1] += f", and {over} over training alone."
        elif than.high < 0:
            said[-1] += f", but training alone is better still: {over} over it."
        else:
            said[-1] += f"; over training alone it is {over}, which is within chance."
        if self.differences is not None:
            said.append(str(self.differences))
        return said
