"""How long the papers' experiments take, from the folders of their results: a table, and what
`coterie reproduce --all` foretells.

    python benchmarks/took.py docs/results/* runs/*
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from coterie.papers.everything import TOOK, called, duration


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, help="those without results are passed over")
    given = options.parse_args()
    took: dict[str, dict[str, float]] = json.loads(TOOK.read_text()) if TOOK.exists() else {}
    for folder in given.folders:
        if not (folder / "results.json").exists():
            continue
        content = json.loads((folder / "results.json").read_text())
        seconds: dict[str, float] = defaultdict(float)
        for how in content["points"].values():
            seconds[called(how["device"], how["devices"])] += how["seconds"]
        if len(seconds) == 1:  # else nobody knows what all of it takes on one of them
            name = f"{content['name']} {content['scale']} {content['preset']}"
            (device,) = seconds
            took.setdefault(name, {})[device] = round(seconds[device], 1)
    TOOK.write_text(json.dumps(took, indent=1, sort_keys=True) + "\n")
    print("| experiment | scale | preset | devices | takes |\n|---|---|---|---|---|")
    for name, devices in sorted(took.items()):
        for device, value in sorted(devices.items()):
            print(f"| {' | '.join(name.split())} | {device} | {duration(value)} |")


if __name__ == "__main__":
    main()
