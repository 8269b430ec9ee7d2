"""Run the benchmarks and compare their ratios with those that are kept here for this kind of device.

What is more than a fifth worse is named in the end, and is an error. `--keep` keeps the ratios of this run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

FOLDER = Path(__file__).parent
# of which two are about accuracy, and one is about what is not in the library
NONE_OF_THEM = {"measure.py", "torch_ifca.py", "compare.py", "took.py"} | {
    *("collapse.py", "precision.py", "candidates.py")
}
WORSE = 1.2


def ratios_of(names: list[str]) -> dict[str, dict[str, float | bool]]:
    """What the benchmarks report, by file and what it is about."""
    found: dict[str, dict[str, float | bool]] = {}
    for name in names:
        print(f"== {name}", flush=True)
        with tempfile.NamedTemporaryFile("r+") as kept:
            environment = {**os.environ, "COTERIE_BENCHMARK_RATIOS": kept.name}
            subprocess.run([sys.executable, str(FOLDER / name)], env=environment, check=True)
            for line in kept:
                content = json.loads(line)
                found[f"{name}: {content.pop('what')}"] = content
    return found


def worse(now: dict[str, dict[str, float | bool]], before: dict[str, dict[str, float | bool]]) -> list[str]:
    """What has become worse by more than a fifth."""
    lines = []
    for what in sorted(now.keys() & before.keys()):
        new, old = float(now[what]["ratio"]), float(before[what]["ratio"])
        if (new / old if now[what]["less"] else old / new) > WORSE:
            lines.append(f"{what}: {new:.2f}, was {old:.2f}")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("benchmarks", nargs="*", help="files; all of them when none is named")
    options.add_argument("--keep", action="store_true", help="keep these ratios for later runs")
    given = options.parse_args()
    names = given.benchmarks or sorted({p.name for p in FOLDER.glob("*.py")} - NONE_OF_THEM)
    device = f"{len(os.sched_getaffinity(0))} cores"
    if jax.default_backend() != "cpu":
        device = jax.devices()[0].device_kind
    file = FOLDER / "ratios" / f"{device.replace(' ', '-')}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    now = ratios_of([Path(name).name for name in names])
    if given.keep:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({**before, **now}, indent=1, sort_keys=True) + "\n")
        print(f"kept in {file}")
        return
    if not before:
        print(f"no ratios of {device} are kept to compare with; --keep keeps these.")
    fallen = worse(now, before)
    for line in fallen:
        print(f"worse by more than a fifth: {line}")
    sys.exit(bool(fallen))


if __name__ == "__main__":
    main()
