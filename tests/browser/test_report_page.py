"""The report in a real browser that cannot reach anything else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

import coterie as ct
from coterie.run.report import style, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = ct.data.mixed_regression(k=2, clients=12, examples=20, dim=2, scale=3, seed=0)
    learner = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=0.1, steps=2))
    folder = tmp_path_factory.mktemp("run")
    ct.IFCA(k=2, rounds=4, init=data.models).fit(data.train, learner, seed=0).save(folder)
    return write_report(folder)


def screenshot(page: Path, folder: Path, width: int, *options: str) -> np.ndarray:
    """The pixels of the page, shape (height, width, 3)."""
    if BROWSER is None:
        pytest.skip("there is no Chromium on this machine")
    file = folder / "page.png"
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},1800",
        f"--screenshot={file}",
        *options,
        page.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return np.asarray(Image.open(file).convert("RGB"))


def share(pixels: np.ndarray, colour: str) -> float:
    return float((pixels == ImageColor.getrgb(colour)).all(axis=2).mean())


@pytest.mark.parametrize("width", [1100, 500])
def test_the_page_is_drawn_without_a_network(page: Path, tmp_path: Path, width: int) -> None:
    pixels = screenshot(page, tmp_path, width)
    assert pixels.shape[1] == width
    assert share(pixels, "#ffffff") > 0.2  # the cards
    for cluster in range(2):
        assert share(pixels, style.colour(cluster)) > 0.01  # the clients of each cluster, by round


def test_the_page_follows_a_dark_screen(page: Path, tmp_path: Path) -> None:
    pixels = screenshot(page, tmp_path, 1100, "--blink-settings=preferredColorScheme=0")
    assert pixels.mean() < 100
    assert share(pixels, "#ffffff") < 0.01
