"""The result of an algorithm: asked, evaluated, saved and loaded."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coterie as ct
from coterie import storage
from coterie.clustering import History
from coterie.clustering.history import RoundLog
from coterie.errors import ConfigError, DataError, LearnerError, RunFolderError, SettingError, StorageError
from coterie.models import stacked

D, K = 3, 4
SIZES = [3, 4, 7, 1, 8, 6]
IDS = [f"c{i}" for i in range(len(SIZES))]
ASSIGNMENT = np.array([2, 0, 2, 0, 0, 2], np.int32)  # clusters 1 and 3 are empty
THETAS = np.random.default_rng(9).standard_normal((K, D)).astype(np.float32)
LOG = RoundLog(
    0, [1.5], [6], [[3, 0, 3]], [[[i, int(c)] for i, c in enumerate(ASSIGNMENT)]], 6, 6, 60, 6, 0.5
)


def shards(ids=IDS, seed=0, dim=D):
    rng = np.random.default_rng(seed)
    sizes = SIZES[: len(ids)]
    return ct.Shards.from_lists(
        [rng.standard_normal((n, dim)) for n in sizes], [rng.standard_normal(n) for n in sizes], ids
    )


SPEC = shards().spec
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(0.1, steps=2)).for_data(SPEC)


class Theta:
    """A linear model of the user's own making."""

    def init(self, key, x):
        return {"theta": jnp.zeros(x.shape[1])}

    def apply(self, params, x):
        return x @ params["theta"]


def clustering(learner=LEARNER, assignment=ASSIGNMENT, ids=IDS, **rest):
    models = stacked.from_matrix(THETAS, learner.shapes(SPEC))
    history = History([LOG], len(IDS))
    return ct.Clustering(np.array(ids), assignment, models, learner, SPEC, history, **rest)


def loss_table(data):
    """Mean squared error of every client under every model, example by example."""
    return np.array(
        [
            [np.mean([(b - a @ theta) ** 2 for a, b in zip(x, y, strict=True)]) for theta in THETAS]
            for x, y in data
        ]
    )


def test_k_counts_the_clusters_that_have_clients():
    found = clustering()
    assert found.k == 2
    assert found.sizes.tolist() == [3, 0, 3, 0]
    assert repr(found) == "Clustering(clustering: 2 clusters of 3, 0, 3, 0 clients)"
    # clients without a cluster count in none
    found = clustering(assignment=np.array([-1, 1, -1, 3, 3, 0]), algorithm={"name": "ifca"})
    assert found.k == 3 and found.sizes.tolist() == [1, 1, 0, 2]
    assert repr(found).startswith("Clustering(ifca: 3 clusters")
    assert clustering(assignment=np.full(6, -1)).k == 0


def test_clients_never_seen_take_the_model_of_lowest_loss():
    strangers = shards([f"s{i}" for i in range(6)], seed=3)
    found, table = clustering(), loss_table(strangers)
    assigned = found.assign(strangers)
    assert assigned.tolist() == table.argmin(1).tolist()
    assert len(set(assigned.tolist())) > 1
    np.testing.assert_array_equal(found.assign(ct.Simulation(strangers)), assigned)
    evaluation = found.evaluate(strangers)
    assert evaluation.chosen_by == "shard"
    assert_evaluated(evaluation, strangers, assigned.tolist())


def assert_evaluated(evaluation, data, clusters):
    table = loss_table(data)
    each = table[np.arange(len(data)), clusters]
    rows = evaluation.per_client
    assert list(rows.columns) == ["id", "cluster", "examples", "loss", "accuracy"]
    assert rows["id"].tolist() == data.ids.tolist()
    assert rows["cluster"].tolist() == list(clusters)
    assert rows["examples"].tolist() == data.sizes.tolist()
    np.testing.assert_allclose(rows["loss"], each, rtol=1e-4)
    assert evaluation.loss == pytest.approx(each.mean(), rel=1e-4)  # a mean over clients, not examples
    assert np.isnan(evaluation.accuracy)
    groups = evaluation.per_cluster
    assert groups.index.tolist() == sorted(set(clusters))
    assert list(groups.columns) == ["clients", "examples", "loss", "accuracy"]
    for j in groups.index:
        mine = np.asarray(clusters) == j
        assert groups.loc[j, "clients"] == mine.sum()
        assert groups.loc[j, "examples"] == data.sizes[mine].sum()
        assert groups.loc[j, "loss"] == pytest.approx(each[mine].mean(), rel=1e-4)


def test_known_clients_keep_the_cluster_of_training_known_by_id_and_not_by_position():
    for chosen_by, order in ((None, 1), ("train", 1), (None, -1)):
        data = shards(IDS[::order], seed=1)
        evaluation = clustering().evaluate(data, chosen_by)
        assert evaluation.chosen_by == "train"
        assert_evaluated(evaluation, data, ASSIGNMENT[::order].tolist())


def test_known_clients_can_choose_again_on_the_examples_given():
    data = shards(seed=1)
    evaluation = clustering().evaluate(data, chosen_by="shard")
    assert evaluation.chosen_by == "shard"
    best = loss_table(data).argmin(1).tolist()
    assert best != ASSIGNMENT.tolist()
    assert_evaluated(evaluation, data, best)


def test_a_mixture_of_known_and_unknown_clients_needs_a_decision():
    data = shards([*IDS[:5], "stranger"], seed=1)
    with pytest.raises(DataError, match="5 of these 6 clients have ids of training clients"):
        clustering().evaluate(data)
    with pytest.raises(DataError, match=r"client stranger took no part in training: .*chosen_by='shard'"):
        clustering().evaluate(data, "train")
    with pytest.raises(SettingError, match="chosen_by must be 'train' or 'shard', not 'truth'"):
        clustering().evaluate(data, "truth")
    evaluation = clustering().evaluate(data, "shard")
    assert_evaluated(evaluation, data, loss_table(data).argmin(1).tolist())


def test_a_client_that_never_answered_is_left_out():
    found = clustering(assignment=np.array([0, 0, -1, 0, 0, 0]))
    for evaluation in (found.evaluate(shards(), "train"), found.evaluate(shards())):
        assert evaluation.chosen_by == "train"
        assert evaluation.per_client["id"].tolist() == [name for name in IDS if name != "c2"]
        assert evaluation.per_cluster["clients"].tolist() == [5]
    with pytest.raises(DataError, match="no client has a cluster from training"):
        clustering(assignment=np.full(6, -1)).evaluate(shards())


def test_equal_numbers_in_another_population_are_no_identity():
    found = clustering(ids=np.arange(6))
    others = shards(range(6), seed=1)[:3]
    with pytest.raises(DataError, match="3 of these 3 clients have ids of training clients"):
        found.evaluate(others)
    assert found.evaluate(others, "train").per_client["cluster"].tolist() == found.assignment[:3].tolist()


def test_clients_of_another_shape_are_refused():
    other = shards(dim=D + 1)
    for call in (clustering().assign, clustering().evaluate):
        with pytest.raises(DataError, match=r"features have shape \(4,\); the models were trained on \(3,\)"):
            call(other)


def test_only_clients_that_answer_are_counted():
    half = ct.Simulation(shards(seed=1), drop=0.5)
    evaluation = clustering().evaluate(half)
    answered = evaluation.per_client.index.to_numpy()
    assert 0 < len(answered) < 6
    each = loss_table(shards(seed=1))[answered, ASSIGNMENT[answered]]
    assert evaluation.loss == pytest.approx(each.mean(), rel=1e-4)
    assert evaluation.per_cluster["clients"].sum() == len(answered)
    assert 0 < (clustering().assign(half) == -1).sum() < 6  # the others are assigned to no cluster


def test_accuracy_is_a_mean_over_clients():
    rng = np.random.default_rng(0)
    xs, ys = [rng.standard_normal((n, D)) for n in SIZES], [rng.integers(0, 2, n) for n in SIZES]
    data = ct.Shards.from_lists(xs, ys, IDS, classes=2)
    learner = ct.Learner(ct.models.Linear()).for_data(data.spec)
    weights = rng.standard_normal((2, 2, D)).astype(np.float32)
    models = stacked.from_matrix(weights.reshape(2, -1), learner.shapes(data.spec))
    assignment = np.array([0, 1, 1, 0, 0, 1])
    found = ct.Clustering(data.ids, assignment, models, learner, data.spec, History([LOG], 6))
    evaluation = found.evaluate(data)
    right = [np.mean((x @ weights[z].T).argmax(1) == y) for x, y, z in zip(xs, ys, assignment, strict=True)]
    np.testing.assert_allclose(evaluation.per_client["accuracy"], right, rtol=1e-6)
    assert evaluation.accuracy == pytest.approx(np.mean(right))
    assert evaluation.per_cluster.loc[1, "accuracy"] == pytest.approx(np.array(right)[assignment == 1].mean())
    assert (
        repr(evaluation)
        == f"Evaluation(accuracy={np.mean(right):.4f}, loss={evaluation.loss:.4f}, chosen_by='train')"
    )


# -- disk ----------------------------------------------------------------------------------------------------


def assert_same(a, b):
    assert a.ids.tolist() == b.ids.tolist()
    assert a.assignment.tolist() == b.assignment.tolist() and a.assignment.dtype == b.assignment.dtype
    assert jax.tree.structure(a.models) == jax.tree.structure(b.models)
    np.testing.assert_array_equal(stacked.to_matrix(a.models), stacked.to_matrix(b.models))
    assert a.spec == b.spec and a.learner == b.learner
    assert a.history.logs == b.history.logs and a.history.restart == b.history.restart
    assert a.history.clients == b.history.clients
    assert (a.algorithm, a.seed, a.provenance) == (b.algorithm, b.seed, b.provenance)
    if b.losses is None:
        assert a.losses is None
    else:
        np.testing.assert_array_equal(a.losses, b.losses)


def test_a_clustering_is_saved_and_loaded(tmp_path):
    losses = np.arange(24, dtype=np.float32).reshape(6, 4)
    found = clustering(
        losses=losses, algorithm={"name": "ifca", "k": 4}, seed=7, provenance={"device": "cpu"}
    )
    found.save(tmp_path / "runs" / "a")
    assert sorted(os.listdir(tmp_path / "runs" / "a")) == [
        "clustering.json",
        "models.safetensors",
        "rounds.jsonl",
    ]
    loaded = ct.load(str(tmp_path / "runs" / "a"))
    assert_same(loaded, found)
    assert_evaluated(loaded.evaluate(shards(seed=1)), shards(seed=1), ASSIGNMENT.tolist())


def test_losses_and_the_kept_restart_are_optional_and_kept(tmp_path):
    twice = RoundLog(0, [2.0, 1.0], [0, 0], [[6], [6]], [[], []], 6, 6, 0, 0, 0.0)
    learner = ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(0.1, epochs=1, batch_size=2)).for_data(
        SPEC
    )
    models = stacked.from_matrix(THETAS, learner.shapes(SPEC))
    found = ct.Clustering(np.arange(6), ASSIGNMENT, models, learner, SPEC, History([twice], 6, 1))
    found.save(tmp_path)
    loaded = ct.load(tmp_path)
    assert_same(loaded, found)
    assert loaded.history[0].loss == 1.0 and loaded.ids.dtype.kind == "i"


def own_loss(outputs, y):
    return jnp.abs(outputs - y)


@pytest.mark.parametrize(
    "part, learner",
    [
        ("model", ct.Learner(Theta(), "squared", ct.SGD(0.1, steps=1))),
        ("loss", ct.Learner(ct.models.Linear(), own_loss, ct.SGD(0.1, steps=1))),
        ("local", ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=1))),
    ],
)
def test_a_learner_of_the_users_own_must_be_given_to_load(tmp_path, part, learner):
    learner = learner.for_data(SPEC)
    found = clustering(learner)
    found.save(tmp_path)
    with pytest.raises(ConfigError, match=f"the {part} of this learner is of your own making: give learner="):
        ct.load(tmp_path)
    assert_same(ct.load(tmp_path, learner=learner), found)


@pytest.mark.parametrize(
    "learner, error, sentence",
    [
        (
            ct.Learner(ct.models.MLP(hidden=(2,)), "squared"),
            SettingError,
            "'layers.0.bias' is on one side only",
        ),
        (ct.Learner(Theta(), "squared"), SettingError, "stored arrays do not match this learner"),
        (ct.Learner(ct.models.Linear(outputs=2), "squared"), LearnerError, "but the targets have shape"),
        (
            ct.Learner(ct.models.Linear(outputs=2), lambda f, y: f[:, 0] - y),
            SettingError,
            r"has shape \(4, 1, 3\), not \(4, 2, 3\)",
        ),
    ],
)
def test_a_learner_that_does_not_fit_what_was_saved_is_refused(tmp_path, learner, error, sentence):
    clustering().save(tmp_path)
    with pytest.raises(error, match=sentence):
        ct.load(tmp_path, learner=learner)


def test_a_folder_without_a_clustering_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunFolderError, match=f"{folder} holds no finished clustering"):
            ct.load(folder)


DAMAGES = {
    "clustering.json": ["cut short", "[]", "3", '{"spec": []}', '{"spec": {"x": 1}}', "another seed"],
    "models.safetensors": ["cut short", "missing"],
    "rounds.jsonl": ["cut short", "missing", ""],
}


@pytest.mark.parametrize("name, damage", [(name, damage) for name in DAMAGES for damage in DAMAGES[name]])
def test_a_file_that_is_missing_cut_short_or_of_something_else_is_damage(tmp_path, name, damage):
    clustering().save(tmp_path)
    path = tmp_path / name
    sentence = "is damaged"
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-20])
        sentence = r"cannot be read|is damaged"
    elif damage == "missing":
        path.unlink()
        sentence = name
    elif damage == "another seed":
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "seed": content["seed"] + 1}))
    else:
        path.write_text(damage)
    with pytest.raises(RunFolderError, match=sentence):
        ct.load(tmp_path)


@pytest.mark.parametrize(
    "key", ["ids", "assignment", "restart", "algorithm", "seed", "learner", "spec", "provenance"]
)
def test_a_missing_entry_is_damage_that_names_it(tmp_path, key):
    clustering().save(tmp_path)
    content = json.loads((tmp_path / "clustering.json").read_text())
    del content[key]
    (tmp_path / "clustering.json").write_text(json.dumps(content))
    with pytest.raises(RunFolderError, match=f"is damaged: .*{key}"):
        ct.load(tmp_path)


@pytest.mark.parametrize("arrays", [{}, {"models.layers.0.weight": np.float32(1)}])
def test_arrays_that_are_no_models_are_damage(tmp_path, arrays):
    clustering().save(tmp_path)
    storage.write_arrays(tmp_path / "models.safetensors", arrays)
    with pytest.raises(RunFolderError, match="is damaged"):
        ct.load(tmp_path)


def test_a_full_disk_leaves_the_earlier_clustering(tmp_path, monkeypatch):
    clustering(seed=1, losses=np.ones((6, 4))).save(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left on device"):
            clustering(seed=2).save(tmp_path)
    assert_same(ct.load(tmp_path), clustering(seed=1, losses=np.ones((6, 4))))
    clustering(seed=2).save(tmp_path)  # and then it is replaced
    assert_same(ct.load(tmp_path), clustering(seed=2))


def test_personal_models_and_shares_are_kept_and_evaluated(tmp_path):
    rng = np.random.default_rng(3)
    own, shares = rng.standard_normal((6, D)).astype(np.float32), rng.random((6, K)).astype(np.float32)
    found = clustering(personal=stacked.from_matrix(own, LEARNER.shapes(SPEC)), shares=shares)
    found.save(tmp_path)
    loaded = ct.load(tmp_path)
    np.testing.assert_array_equal(loaded.shares, shares)
    np.testing.assert_array_equal(stacked.to_matrix(loaded.personal), own)
    # whatever the order of the clients, each is served by its own
    some = shards(seed=1)[[4, 1]]
    served = loaded.evaluate(some, "train", personal=True)
    assert served.per_client["loss"].tolist() == pytest.approx(
        [np.mean((y - x @ own[i]) ** 2) for i, (x, y) in zip((4, 1), some, strict=True)], rel=1e-4
    )
    with pytest.raises(SettingError, match="global trains no personal models"):
        clustering(algorithm={"name": "global"}).evaluate(some, "train", personal=True)
