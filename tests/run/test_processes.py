"""One run in several processes: how they find each other, and what becomes of it when one dies."""

import json
import signal
import socket

import jax
import numpy as np
import pytest
from support import several

import coterie as ct
from coterie.errors import ConfigError
from coterie.run.processes import Seat, seat

SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://a:1",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    "given, environment, expected",
    [
        ((None, None, None), {}, None),
        (("a:1", 1, 0), {}, None),
        ((None, None, None), SLURM | {"SLURM_NTASKS": "1"}, None),
        (("a:1", 2, 1), {}, Seat(1, 2, "a:1")),
        (("a:1", 2, 1), SLURM, Seat(1, 2, "a:1")),
        ((None, None, None), SLURM, Seat(1, 4, None, "slurm")),
        ((None, None, None), OPEN_MPI, Seat(2, 3, None, "ompi")),
        (("a:1", None, None), OPEN_MPI, Seat(2, 3, "a:1")),
        (("a:1", None, None), HYDRA, Seat(0, 2, "a:1")),
    ],
)
def test_options_and_launchers_say_which_process_this_is(given, environment, expected):
    assert seat(*given, environment) == expected


@pytest.mark.parametrize(
    "given, environment, sentence",
    [
        (("a:1", 2, None), {}, "--processes and --rank go together"),
        (("a:1", None, None), {}, "--address is for several processes"),
        ((None, 2, 1), {}, "--processes needs --address"),
        (("a:1", 2, 2), {}, "--rank must be between 0 and 1, not 2"),
        (("nowhere", 2, 1), {}, "--address must be HOST:PORT, such as node1:12345, not 'nowhere'"),
        ((None, None, None), HYDRA, "process 0 of 2, and nothing says where process 0 is"),
    ],
)
def test_half_a_seat_is_refused(given, environment, sentence):
    with pytest.raises(ConfigError, match=sentence):
        seat(*given, environment)


ROUNDS = 300
SETTINGS = ["--clients", "11", "--k", "2", "--n-init", "1", "--baselines", "none", "--rounds", str(ROUNDS)]
SETTINGS += ["--set", "local.lr=0.02", "--set", "data.rotations=[0, 90]"]
SETTINGS += ["--set", "model.name=mlp", "--set", "model.hidden=[8]"]


def survivors(running, victim, sentence):
    """Kill one of the processes of a run and see that the others end, with one sentence."""
    running[victim].send_signal(signal.SIGKILL)
    done = several.ended(running)
    said = [errors for rank, (_, _, errors) in enumerate(done) if rank != victim]
    assert any(sentence in words for words in said)
    for words in said:
        assert [line for line in words.splitlines() if ": round" not in line] in ([], [f"error: {sentence}"])
    assert [code for code, _, _ in done] == [3 if rank != victim else -9 for rank in range(len(done))]


def slurm(rank, job=[]):  # noqa: B006 (the same for all processes)
    """What Slurm tells the processes of a step; JAX makes a port of the number of the job."""
    while not job:
        number = int(np.random.default_rng().integers(4096))
        with socket.socket() as port:
            if port.connect_ex(("127.0.0.1", 61440 + number)):
                job.append(str(number))
    step = {"SLURM_JOB_ID": job[0], "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    return step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


@pytest.mark.slow
def test_a_run_survives_the_death_of_any_process_and_ends_as_if_nothing_had_happened(tmp_path):
    folder = tmp_path / "run"
    often = [*SETTINGS, "--checkpoint-every", "0", "--out", folder]
    ends = (
        "and took the others down: look there for the reason, then continue from the last checkpoint with "
        f"--resume --out {folder}, also with other processes."
    )
    running = several.coterie(2, *often)
    several.wait_for_rounds(folder, 3)
    survivors(running, 1, f"process 1 of 2 ended before the run did, {ends}")
    done = (folder / "rounds.jsonl").read_text().count("\n")
    running = several.coterie(3, *often, "--resume")
    several.wait_for_rounds(folder, done + 3)
    survivors(running, 0, f"process 0 of 3 ended before the run did, {ends}")

    # as a batch system starts it, which tells JAX the rest
    again = [*SETTINGS, "--out", folder, "--resume", "--json"]
    running = several.coterie(2, *again, environment=slurm, seats=False)
    (code, output, errors), other = several.ended(running)
    assert code == 0, errors
    assert other[:2] == (0, "")
    assert json.loads(output)["rows"][0]["rounds"] == ROUNDS

    alone = several.coterie(1, *SETTINGS, "--out", tmp_path / "one", seats=False)
    ((code, _, errors),) = several.ended(alone)
    assert code == 0, errors
    here, one = ct.load(folder), ct.load(tmp_path / "one")
    assert here.assignment.tolist() == one.assignment.tolist()
    assert len(here.history) == len(one.history)
    for a, b in zip(jax.tree.leaves(here.models), jax.tree.leaves(one.models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)


SLOW_TO_GO = """
import sys, time
from coterie.run.folder import RunFolder
from coterie.run.processes import Seat, together
rank = int(sys.argv[2])
with together(Seat(rank, 2, sys.argv[1]), RunFolder(sys.argv[3])):
    pass
time.sleep(3 * rank)
"""


@pytest.mark.slow
def test_a_process_that_is_slow_to_end_is_not_taken_down(tmp_path):
    address = several.free_address()
    running = several.started(lambda rank: ["-c", SLOW_TO_GO, address, rank, tmp_path], 2)
    done = several.ended(running)
    assert [code for code, _, _ in done] == [0, 0], done


@pytest.mark.slow
def test_a_mistake_is_told_once(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rounds.jsonl").write_text("")
    for settings, sentence in (
        ([], f"error: {folder} holds files of a run but no experiment.toml: choose another --out, or "),
        (["--algorithm", "nothing"], "error: algorithm.name: there is no 'nothing'"),
    ):
        first, second = several.ended(several.coterie(2, *SETTINGS, *settings, "--out", folder))
        assert [first[0], second[0]] == [2, 2]
        assert first[2].startswith(sentence) and first[2].count("\n") == 1
        assert first[1] == second[1] == second[2] == ""
