"""PyTorch clients against JAX clients: the same asks, data and weights give the same replies."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
from support.in_process import InProcessGrid

import coterie as ct
from coterie.data.shards import Spec
from coterie.errors import ClientError, CoterieError, DataError, LearnerError, SettingError
from coterie.flower import FlowerFederation, JaxClient, Own, client_app, wire
from coterie.learn import losses
from coterie.learn.moments import MultiplyMoment
from coterie.learn.soft import CountNearest, TrainBetween
from coterie.learn.tasks import (
    ChooseAndTrain,
    CountExamples,
    Evaluate,
    MeasureLosses,
    TrainAlone,
    WeighAndTrain,
)
from coterie.models import stacked

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from support.torch_nets import MLP, ConvNet, Linear, Tied  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset  # noqa: E402

import coterie.torch.losses  # noqa: E402
import coterie.torch.tasks  # noqa: E402
from coterie.torch import TorchClient, TorchModel  # noqa: E402

WHOLE = ct.data.rotated_digits(clients=8, rotations=(0, 90), unseen=0, seed=1)
REGRESSION = ct.data.mixed_regression(clients=6, k=2, dim=5, examples=20, seed=3)
KEY = np.array([7, 8], np.uint32)
STEPS = ct.SGD(lr=0.1, steps=3)


def tensors(shards, i):
    x, y = shards.client(i)
    return TensorDataset(torch.tensor(x), torch.tensor(y).long() if y.dtype.kind == "i" else torch.tensor(y))


def first(shards, count):
    """The first examples of each client: few, and equally many, so that JAX compiles once."""
    xs, ys = zip(*shards, strict=True)
    return ct.Shards.from_lists([x[:count] for x in xs], [y[:count] for y in ys], shards.ids, classes=10)


SOME = [0, 1, 4, 5]
DIGITS = dataclasses.replace(
    WHOLE,
    train=first(WHOLE.train[SOME], 48),
    test=first(WHOLE.test[SOME], 20),
    truth=WHOLE.truth[SOME],
)
PROBLEMS = {
    "digits": (DIGITS, ct.models.MLP(hidden=(16,)), "cross_entropy", MLP),
    "regression": (REGRESSION, ct.models.Linear(), "squared", Linear),
}


def both(problem, local, i=0):
    """A JAX client and a PyTorch client with the data of client i."""
    data, model, loss, module = PROBLEMS[problem]
    own = Own(str(data.train.ids[i]), data.train[[i]], data.test[[i]])
    ours = JaxClient(ct.Learner(model, loss, local), own)
    theirs = TorchClient(
        own.id,
        module(),
        tensors(data.train, i),
        test=tensors(data.test, i),
        loss=loss,
        local=local,
        classes=data.train.spec.classes,
    )
    return ours, theirs


def shapes(problem):
    data, model, loss, _ = PROBLEMS[problem]
    return ct.Learner(model, loss).for_data(data.train.spec).shapes(data.train.spec)


def drawn(problem, *lead, seed=0):
    """Models with leading axes."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: (0.3 * rng.standard_normal((*lead, *a.shape))).astype(np.float32), shapes(problem)
    )


def letter(task, spec, everybody, key=KEY, **other):
    """An ask of arrays by name."""
    usual = {"settings": {}, "starts": None, "split": "train", "each": {}, "only": None}
    return wire.Request(client="a", task=task, spec=spec, key=key, everybody=everybody, **(usual | other))


def ask_of(problem, task, only=None, starts=None, split="train"):
    """An ask for a task as one client gets it: with its own row of what each has one of."""
    model, spec = shapes(problem), PROBLEMS[problem][0].train.spec
    kind, everybody, each = task.split()
    return letter(
        kind.name,
        spec,
        wire.flatten(everybody, model),
        settings=wire.settings_to_send(kind),
        each=wire.flatten(each, model),
        only=None if only is None else np.asarray(only, np.int32),
        starts=starts,
        split=split,
    )


def same_reply(ours, theirs, ask, tolerance=1e-5):
    expected, got = ours.carry_out(ask), theirs.carry_out(ask)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(got[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
    return got


def round_of(problem, starts=None, k=2, by_examples=True, **more):
    """A round of IFCA."""
    lead = () if starts is None else (starts,)
    number = np.full(lead, 4, np.int32)
    return ChooseAndTrain(drawn(problem, *lead, k), number, by_examples=by_examples, **more)


LOCALS = {
    "plain": ct.SGD(lr=0.1, steps=4),
    "epochs": ct.SGD(lr=0.1, epochs=3, batch_size=500),
    "everything": ct.SGD(
        lr=0.1, steps=5, momentum=0.8, nesterov=True, weight_decay=0.1, clip=0.7, proximal=0.5, decay=0.9
    ),
}


# -- tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOCALS)
def test_choose_and_train_as_a_jax_client_does(name):
    ours, theirs = both("regression", LOCALS[name])
    reply = same_reply(ours, theirs, ask_of("regression", round_of("regression")))
    assert {"report/loss", "cluster", "weight", "value:layers.0.weight"} <= reply.keys()


@pytest.mark.parametrize("problem, starts", [("regression", None), ("regression", 2)])
def test_every_task_with_and_without_starts(problem, starts):
    ours, theirs = both(problem, LOCALS["everything"], i=1)
    lead = () if starts is None else (starts,)
    models, one = drawn(problem, *lead, 2), drawn(problem, *lead, seed=1)
    number, takes_part = np.full(lead, 4, np.int32), np.array([True, False, True])
    tasks = [
        round_of(problem, starts),
        round_of(problem, starts, proximal=np.full(lead, 2.0, np.float32)),
        round_of(problem, starts, send="gradients"),
        WeighAndTrain(models, number, np.full(lead, 0.5, np.float32)),
        TrainAlone(one, 3),
        TrainAlone(one, 3, takes_part=np.broadcast_to(takes_part, (*lead, 3))),
        MeasureLosses(models),
        CountExamples(),
        Evaluate(models),
        CountNearest(models),
        TrainBetween(models, number, one, np.full((*lead, 2), 0.3, np.float32)),
    ]
    for task in tasks:
        only = np.full(lead, 1) if isinstance(task, Evaluate) else None
        same_reply(ours, theirs, ask_of(problem, task, only, starts))
    assert {type(task).__name__ for task in tasks} == coterie.torch.tasks.TASKS.keys()
    same_reply(ours, theirs, ask_of(problem, Evaluate(models), np.full(lead, 1), starts, "test"))


@pytest.mark.parametrize("only", [0, 1, -1])
def test_a_client_that_is_told_a_model_takes_that(only):
    ours, theirs = both("regression", STEPS)
    ask = ask_of("regression", round_of("regression"))
    free = same_reply(ours, theirs, ask)["cluster"]
    reply = same_reply(ours, theirs, dataclasses.replace(ask, only=np.array(only, np.int32)))
    assert reply["cluster"] == (free if only < 0 else only)


def test_only_what_is_not_at_its_default_travels():
    _, client = both("regression", STEPS)
    models = drawn("regression", 2)
    assert client.carry_out(ask_of("regression", MeasureLosses(models))).keys() == {"report/losses"}
    evaluated = client.carry_out(ask_of("regression", Evaluate(models), 1))
    assert evaluated.keys() == {"report/loss", "report/accuracy", "report/examples"}
    assert np.isnan(evaluated["report/accuracy"]) and evaluated["report/examples"] == 20
    trained = client.carry_out(ask_of("regression", TrainAlone(drawn("regression"), 1)))
    assert trained.keys() == {"report/loss", "value:layers.0.weight"}
    once = client.carry_out(ask_of("regression", round_of("regression", by_examples=False)))
    assert once.keys() == {"report/loss", "cluster", "value:layers.0.weight"}


def test_the_first_of_equals_is_chosen_and_never_nan():
    ours, theirs = both("regression", STEPS)
    task = round_of("regression", k=4)
    for leaf in jax.tree.leaves(task.models):
        leaf[0] = np.nan
        leaf[2] = leaf[1]
        leaf[3] = 10 * leaf[3]
    assert same_reply(ours, theirs, ask_of("regression", task))["cluster"] == 1
    counts = same_reply(ours, theirs, ask_of("regression", CountNearest(task.models)))["report/counts"]
    assert counts[0] == counts[2] == 0 and counts[1] > 0


def test_steps_go_round_and_round_the_loader_and_epochs_through_it():
    """Against gradient steps in NumPy on batches 0, 1, 2, 0, 1, ... of 8, 8 and 4 examples."""
    x, y = REGRESSION.train.client(0)
    batches = [slice(0, 8), slice(8, 16), slice(16, 20)]

    def reference(order):
        w = np.zeros(5)
        for b in order:
            residual = x[batches[b]] @ w - y[batches[b]]
            w -= 0.05 * 2 * x[batches[b]].T @ residual / len(residual)
        return w

    loader = DataLoader(tensors(REGRESSION.train, 0), batch_size=8)
    task = round_of("regression", k=1)
    jax.tree.leaves(task.models)[0][:] = 0
    for local, order in (
        (ct.SGD(lr=0.05, steps=5), [0, 1, 2, 0, 1]),
        (ct.SGD(lr=0.05, epochs=2, batch_size=8), [0, 1, 2, 0, 1, 2]),
    ):
        client = TorchClient("a", Linear(), loader, loss="squared", local=local)
        reply = client.carry_out(ask_of("regression", task))
        np.testing.assert_allclose(reply["value:layers.0.weight"][0], reference(order), rtol=1e-5, atol=1e-6)


def test_an_optimiser_of_ones_own():
    seen = []

    def adam(parameters, lr):
        seen.append(lr)
        return torch.optim.Adam(parameters, lr)

    local = ct.SGD(lr=0.1, steps=2, decay=0.5)
    client = TorchClient(
        "a", Linear(), tensors(REGRESSION.train, 0), loss="squared", local=local, optimiser=adam
    )
    task = round_of("regression", k=1)
    reply = client.carry_out(ask_of("regression", task))
    assert seen == [pytest.approx(0.1 * 0.5**4)]
    # Adam's first steps are as long as its step size, whatever the gradient
    moved = np.abs(reply["value:layers.0.weight"] - task.models.layers[0].weight[0])
    np.testing.assert_allclose(moved, 2 * seen[0], rtol=0.05)


def test_named_losses_are_those_of_jax():
    assert coterie.torch.losses.NAMED.keys() == losses.NAMED.keys()
    rng = np.random.default_rng(0)
    outputs, labels, targets = (
        rng.standard_normal((6, 3, 4)),
        rng.integers(0, 4, (6, 3)),
        rng.random((6, 3, 4)),
    )
    for name, ours in losses.NAMED.items():
        y = labels if ours in losses.CLASSIFYING else targets
        theirs = coterie.torch.losses.NAMED[name](torch.tensor(outputs), torch.tensor(y))
        np.testing.assert_allclose(theirs, ours(outputs, y), rtol=1e-5)
    right = coterie.torch.losses.correct(torch.tensor(outputs), torch.tensor(labels))
    np.testing.assert_allclose(right, losses.correct(outputs, labels), rtol=1e-6)


def test_a_loss_of_ones_own():
    own = TorchClient(
        "a", MLP(), tensors(DIGITS.train, 0), loss=nn.CrossEntropyLoss(reduction="none"), local=STEPS
    )
    ask = ask_of("digits", Evaluate(drawn("digits", 2)), 0)
    named = both("digits", STEPS)[1].carry_out(ask)
    reply = own.carry_out(ask)
    assert reply["report/loss"] == pytest.approx(named["report/loss"])
    assert np.isnan(reply["report/accuracy"]) and named["report/accuracy"] >= 0


# -- data ------------------------------------------------------------------------------------------------


def test_the_spec_is_found_in_the_data():
    x, y = torch.rand(10, 2, 3, dtype=torch.float64), torch.arange(10) % 7
    shuffled = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, drop_last=True)
    net = MLP((6, 7))
    assert TorchClient("a", net, shuffled, local=STEPS).spec == Spec((2, 3), "float32", (), "int32", 7)
    assert TorchClient("a", net, shuffled, local=STEPS, classes=9).spec.classes == 9
    ids = TensorDataset(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.float16))
    assert TorchClient("a", net, ids, local=STEPS).spec == Spec((5,), "int32", (2,), "float32")
    bytes_ = TensorDataset(torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8))
    assert TorchClient("a", net, bytes_, local=STEPS).spec == Spec((4,), "uint8", (), "uint8", 1)


def test_losses_are_of_every_example_that_the_sampler_gives():
    data = tensors(DIGITS.train, 0)
    some = list(range(40))
    ask = ask_of("digits", Evaluate(drawn("digits", 1)), 0)
    loader = DataLoader(data, batch_size=32, sampler=SubsetRandomSampler(some), drop_last=True)
    reply = TorchClient("a", MLP(), loader, local=STEPS).carry_out(ask)
    mine = TensorDataset(*(t[some] for t in data.tensors))
    whole = TorchClient("a", MLP(), mine, local=STEPS).carry_out(ask)
    assert reply["report/examples"] == 40
    assert reply["report/loss"] == pytest.approx(whole["report/loss"], rel=1e-5)


def test_a_loader_may_have_a_batch_sampler_of_its_own_and_that_for_testing_another_batch_size():
    data = tensors(REGRESSION.train, 0)
    loader = DataLoader(data, batch_sampler=[[0, 1], [2, 3], [4, 5], [6, 7]])
    other = DataLoader(tensors(REGRESSION.test, 0), batch_size=7)
    local = ct.SGD(lr=0.1, steps=3, batch_size=2)
    client = TorchClient("a", Linear(), loader, test=other, loss="squared", local=local)
    for split, count in (("train", 8), ("test", 20)):
        ask = ask_of("regression", Evaluate(drawn("regression", 1)), 0, split=split)
        assert client.carry_out(ask)["report/examples"] == count


def test_numbers_are_brought_to_the_precision_of_the_module():
    data = TensorDataset(*(t.double() for t in tensors(REGRESSION.train, 0).tensors))
    ask = ask_of("regression", round_of("regression"))
    replies = [
        TorchClient("a", module, data, loss="squared", local=STEPS).carry_out(ask)
        for module in (Linear(), Linear().double())
    ]
    assert all(reply["value:layers.0.weight"].dtype == np.float32 for reply in replies)
    np.testing.assert_allclose(*(reply["value:layers.0.weight"] for reply in replies), rtol=1e-5)


# -- modules ---------------------------------------------------------------------------------------------


def weights(module):
    return {name: t.detach().numpy() for name, t in module.state_dict().items() if t.is_floating_point()}


def asked_of(client, spec, model, key=KEY):
    """The client's reply when it is asked to train one model, given by name."""
    sent = {f"models:{name}": array[None] for name, array in model.items()}
    sent["round"] = np.array(0)
    return client.carry_out(letter("ChooseAndTrain", spec, sent, key=key))


def test_batch_norm_trains_on_batches_and_is_measured_by_its_statistics():
    net = ConvNet()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    client = TorchClient("a", net, tensors(DIGITS.train, 0), local=STEPS)
    reply = asked_of(client, client.spec, weights(net))
    with torch.no_grad():
        x, y = tensors(DIGITS.train, 0).tensors
        loss = nn.functional.cross_entropy(net.eval()(x), y)
    assert reply["report/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert not np.allclose(reply["value:features.1.running_mean"], 0)
    assert "value:features.1.num_batches_tracked" not in reply
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_tied_and_frozen_weights_and_what_stays_at_the_client():
    torch.manual_seed(0)
    net = Tied()
    data = TensorDataset(torch.rand(6, 4), torch.rand(6, 4))
    client = TorchClient("a", net, data, local=STEPS, loss="squared")
    model = {name: array for name, array in weights(net).items() if name != "second.weight"}
    first, second = (asked_of(client, client.spec, model) for _ in range(2))
    names = {"first.weight", "first.bias", "second.bias", "scale"}
    assert {name.removeprefix("value:") for name in first if "value:" in name} == names
    assert first["value:scale"] == 2.0
    assert not np.allclose(first["value:first.weight"], net.first.weight.detach())
    for name, array in first.items():  # the module counts its calls, afresh in every ask
        np.testing.assert_array_equal(array, second[name])


def test_lazy_layers_and_recurrent_ones():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = nn.Embedding(11, 4), nn.LSTM(4, 6, num_layers=2, batch_first=True)
            self.out = nn.LazyLinear(3)

        def forward(self, x):
            return self.out(self.lstm(self.embed(x))[0])

    x, y = torch.arange(40).reshape(8, 5) % 11, torch.arange(40).reshape(8, 5) % 3
    client = TorchClient("a", Recurrent(), TensorDataset(x, y), local=ct.SGD(lr=0.5, steps=20))
    assert client.spec == Spec((5,), "int32", (5,), "int32", 3)
    one = ct.Learner(TorchModel(Recurrent)).for_data(client.spec).init(jax.random.key(1), client.spec)
    reply = asked_of(client, client.spec, jax.tree.map(np.asarray, one))
    # the same by hand
    net = Recurrent()
    net.load_state_dict({name: torch.tensor(np.asarray(array)) for name, array in one.items()})
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        optimiser.step()
    for name, array in weights(net).items():
        np.testing.assert_allclose(reply[f"value:{name}"], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [None, 3])
def test_the_same_ask_has_the_same_answer_and_nothing_else_is_disturbed(given):
    generator = None if given is None else torch.Generator().manual_seed(given)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, 10))
    loader = DataLoader(tensors(DIGITS.train, 0), batch_size=16, shuffle=True, generator=generator)
    client, twin = (TorchClient(name, net, loader, local=STEPS) for name in "ab")
    spec = client.spec
    state, own = torch.get_rng_state(), None if generator is None else generator.get_state()
    first = asked_of(client, spec, weights(net))
    assert client.spec.classes == 10
    assert torch.equal(torch.get_rng_state(), state)
    assert generator is None or torch.equal(generator.get_state(), own)
    torch.rand(5)
    if generator is not None:
        torch.rand(5, generator=generator)
    for name, array in asked_of(client, spec, weights(net)).items():
        np.testing.assert_array_equal(array, first[name])
    for other in (asked_of(client, spec, weights(net), KEY + 1), asked_of(twin, spec, weights(net))):
        assert not np.array_equal(other["value:1.weight"], first["value:1.weight"])
    assert net.training


# -- federations -----------------------------------------------------------------------------------------


def federation(problem, kinds, local):
    """A Flower federation with one client of each kind, with the data of the problem's clients."""

    def app(i, kind):
        client = both(problem, local, i)[kind == "torch"]
        return client_app(lambda context: client)

    grid = InProcessGrid([app(i, kind) for i, kind in enumerate(kinds)])
    return FlowerFederation(grid, min_clients=len(kinds), poll=0.001)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_whole_run_with_torch_clients_is_that_with_jax_clients(problem):
    data, model, loss, _ = PROBLEMS[problem]
    local = LOCALS["everything"]
    n = len(data.train)
    kinds = {"jax": ["jax"] * n, "torch": ["torch"] * n, "mixed": ["jax", "torch"] * (n // 2)}
    learner = ct.Learner(model, loss, local)
    algorithm = ct.IFCA(k=2, rounds=4, n_init=2, weight="examples")
    runs, tests = {}, {}
    for kind, each in kinds.items():
        clients = federation(problem, each, local)
        runs[kind] = algorithm.fit(clients, learner, seed=2)
        tests[kind] = runs[kind].evaluate(clients.test)
    for kind in ("torch", "mixed"):
        np.testing.assert_array_equal(runs[kind].assignment, runs["jax"].assignment)
        for name, array in stacked.named(runs["jax"].models).items():
            np.testing.assert_allclose(
                stacked.named(runs[kind].models)[name], array, rtol=1e-5, atol=1e-5, err_msg=name
            )
        for ours, theirs in zip(runs[kind].history, runs["jax"].history, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
            assert (ours.sizes, ours.bytes_up, ours.bytes_down) == (
                theirs.sizes,
                theirs.bytes_up,
                theirs.bytes_down,
            )
        assert tests[kind].loss == pytest.approx(tests["jax"].loss, rel=1e-5)
        assert tests[kind].accuracy == pytest.approx(tests["jax"].accuracy, nan_ok=True)


def test_an_all_torch_federation_finds_the_groups_with_a_network_of_its_own():
    """A convolutional network with batch norm, which the server knows as a TorchModel."""
    train, test, truth = first(WHOLE.train[SOME], 128), WHOLE.test[SOME], WHOLE.truth[SOME]

    def app(i):
        client = TorchClient(
            train.ids[i],
            ConvNet(),
            DataLoader(tensors(train, i), batch_size=32, shuffle=True),
            test=tensors(test, i),
            local=ct.SGD(lr=0.1, epochs=1, batch_size=32, momentum=0.5),
        )
        return client_app(lambda context: client)

    clients = FlowerFederation(InProcessGrid([app(i) for i in range(4)]), min_clients=4, poll=0.001)
    found = ct.IFCA(k=2, rounds=8, n_init=2).fit(clients, ct.Learner(TorchModel(ConvNet)), seed=0)
    assert ct.metrics.misclustering(found.assignment, truth) == 0
    tested = found.evaluate(clients.test)
    assert tested.accuracy > 0.8
    # a result is used without its clients, too: the server's model applies the weights
    assert found.evaluate(test).loss == pytest.approx(tested.loss, rel=1e-5)


# -- sentences -------------------------------------------------------------------------------------------


def test_what_a_client_does_not_know_or_have():
    _, client = both("regression", STEPS)
    products = MultiplyMoment(drawn("regression", 1, 2), drawn("regression", 1))
    with pytest.raises(ClientError, match="client '0' does not know the task 'MultiplyMoment'"):
        client.carry_out(ask_of("regression", products))
    with pytest.raises(wire.Unreadable, match="the task 'CountExamples' has no setting 'slowly'"):
        client.carry_out(letter("CountExamples", client.spec, {}, settings={"slowly": True}))
    bare = TorchClient("a", Linear(), tensors(REGRESSION.train, 0), loss="squared", local=STEPS)
    with pytest.raises(DataError, match="client 'a' has no test examples"):
        bare.carry_out(ask_of("regression", MeasureLosses(drawn("regression", 2)), split="test"))


def test_a_model_that_does_not_fit():
    _, client = both("digits", STEPS)
    good = ask_of("digits", MeasureLosses(drawn("digits", 2)))

    def sent(change):
        arrays = dict(good.everybody)
        change(arrays)
        return letter("MeasureLosses", good.spec, arrays)

    with pytest.raises(LearnerError, match=r"lacks 'layers.1.bias', which the client's module has"):
        client.carry_out(sent(lambda a: a.pop("models:layers.1.bias")))
    with pytest.raises(LearnerError, match=r"has 'layers.2.bias', which the client's module has not"):
        client.carry_out(sent(lambda a: a.update({"models:layers.2.bias": np.zeros((2, 3))})))
    with pytest.raises(
        LearnerError, match=r"'layers.0.weight' was sent with shape \(8, 64\); .* has \(16, 64\)"
    ):
        client.carry_out(sent(lambda a: a.update({"models:layers.0.weight": np.zeros((2, 8, 64))})))
    with pytest.raises(LearnerError, match="not arrays by name"):
        client.carry_out(letter("MeasureLosses", good.spec, {"models": np.zeros((2, 5))}))


class Dicts(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"image": torch.zeros(64), "label": i}


class Growing(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.zeros(2 + i // 2), 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(64), 0)] * 3)


X, Y = torch.rand(9, 64), torch.arange(9)
SENTENCES = {
    "a class": (
        lambda: TorchClient("a", MLP, TensorDataset(X, Y), local=STEPS),
        "such as Net.., not the class MLP",
    ),
    "nothing to train": (
        lambda: TorchClient("a", nn.Flatten(), TensorDataset(X, Y), local=STEPS),
        "Flatten has no parameters that require a gradient",
    ),
    "Optax": (
        lambda: TorchClient("a", MLP(), TensorDataset(X, Y), local=ct.Optax(None, steps=1)),
        "local must be SGD.* not Optax: another optimiser is given as optimiser=",
    ),
    "momentum twice": (
        lambda: TorchClient(
            "a",
            MLP(),
            TensorDataset(X, Y),
            local=ct.SGD(steps=1, momentum=0.9),
            optimiser=torch.optim.Adam,
        ),
        "give them to the optimiser itself",
    ),
    "decay of some layers": (
        lambda: TorchClient(
            "a",
            MLP(),
            TensorDataset(X, Y),
            local=ct.SGD(steps=1, weight_decay=0.1, decayed=("0.weight",)),
        ),
        "decayed is for models in JAX: give a PyTorch client optimiser=",
    ),
    "a loss of no name": (
        lambda: TorchClient("a", MLP(), TensorDataset(X, Y), local=STEPS, loss="hinge"),
        "unknown loss 'hinge': choose one of cross_entropy",
    ),
    "two batch sizes": (
        lambda: TorchClient(
            "a", MLP(), DataLoader(TensorDataset(X, Y), 4), local=ct.SGD(epochs=1, batch_size=8)
        ),
        "train loader of client 'a' makes batches of 4 but local has batch_size=8: the loader decides",
    ),
    "not shuffled": (
        lambda: TorchClient("a", MLP(), DataLoader(TensorDataset(X, Y), 2), local=STEPS),
        "does not shuffle, so that every round would be on the first 3 of its 5 batches: use shuffle=True",
    ),
    "no loader": (
        lambda: TorchClient("a", MLP(), [(X, Y)], local=STEPS),
        "train examples of client 'a' must be a DataLoader or a Dataset with a length, not list",
    ),
    "a stream": (lambda: TorchClient("a", MLP(), Stream(), local=STEPS), "not Stream"),
    "empty": (
        lambda: TorchClient("a", MLP(), TensorDataset(X[:0], Y[:0]), local=STEPS),
        "client 'a' is empty",
    ),
    "dicts": (
        lambda: TorchClient("a", MLP(), DataLoader(Dicts(), 4), local=STEPS).spec,
        "gives dict: a batch must be .x, y., two tensors, which a collate_fn",
    ),
    "another shape later on": (
        lambda: TorchClient("a", MLP(), DataLoader(Growing(), 2, shuffle=False), local=ct.SGD(steps=9)).spec,
        r"client 'a' has examples of Spec\(x_shape=\(2,\).* and of Spec\(x_shape=\(3,\)",
    ),
    "three": (
        lambda: TorchClient("a", MLP(), TensorDataset(X, Y, Y), local=STEPS).spec,
        "gives list of Tensor, Tensor, Tensor",
    ),
    "single examples": (
        lambda: (
            TorchClient("a", MLP(), DataLoader(TensorDataset(X, Y), None, shuffle=True), local=STEPS).spec
        ),
        r"features of shape \(64,\) with targets of shape \(\): they need one row per example",
    ),
    "NaN": (
        lambda: TorchClient("a", MLP(), TensorDataset(X / 0 * 0, Y), local=STEPS).spec,
        "client a: features of example 0 contain nan",
    ),
    "negative labels": (
        lambda: TorchClient("a", MLP(), TensorDataset(X, Y - 1), local=STEPS).spec,
        "client a: label -1 is outside the classes 0 and up",
    ),
    "classes of real numbers": (
        lambda: TorchClient("a", MLP(), TensorDataset(X, X), local=STEPS, classes=3).spec,
        "classes=3 is given but the targets are float32",
    ),
    "no full batch": (
        lambda: train_on(DataLoader(TensorDataset(X, Y), 10, shuffle=True, drop_last=True)),
        "train loader of client 'a' gives no examples: with drop_last it needs at least one full batch",
    ),
    "another shape": (
        lambda: train_on(TensorDataset(X[:, :32], Y)),
        r"client 'a' has examples of Spec\(x_shape=\(32,\).*, the federation Spec\(x_shape=\(64,\)",
    ),
    "labels out of range": (
        lambda: train_on(TensorDataset(X, Y + 5)),
        "client 'a': label 13 is outside the classes 0 to 9",
    ),
    "a mean": (
        lambda: train_on(TensorDataset(X, Y), loss=nn.CrossEntropyLoss()),
        r"one number per example, but for 9 examples it gives shape \(\): .* reduction='none'",
    ),
    "a loss that fails": (
        lambda: train_on(TensorDataset(X, Y), loss=nn.CosineEmbeddingLoss(reduction="none")),
        r"the loss fails on outputs of shape \(9, 10\) and targets of shape \(9,\): ",
    ),
    "targets of another shape": (
        lambda: train_on(TensorDataset(X, Y), loss="squared"),
        r"outputs of shape \(9, 10\) for targets of shape \(9,\): .*squeeze",
    ),
    "a batch of one": (
        lambda: train_on(
            DataLoader(TensorDataset(X, Y), 4, shuffle=True),
            nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)),
        ),
        r"fails on features of shape \(1, 64\).*Expected more than 1 value per channel.*drop_last=True",
    ),
    "several outputs": (
        lambda: train_on(TensorDataset(X, Y), nn.LSTM(64, 10)),
        "the module LSTM gives a tuple: let it return its outputs alone",
    ),
    "a module that fails": (
        lambda: train_on(TensorDataset(X, Y), nn.Linear(63, 10)),
        r"the module Linear fails on features of shape \(9, 64\) \(torch.float32\): mat1 and mat2",
    ),
    "real labels": (
        lambda: train_on(TensorDataset(X, Y.float()), spec=Spec((64,), "float32", (), "float32")),
        "cross_entropy needs integer class labels but the targets are torch.float32",
    ),
    "too few outputs": (
        lambda: train_on(TensorDataset(X, Y), nn.Linear(64, 5)),
        "the loss fails on outputs .*Target . is out of bounds",
    ),
    "another axis": (
        lambda: train_on(TensorDataset(X, Y[:, None]), spec=Spec((64,), "float32", (1,), "int32", 10)),
        r"outputs of shape \(9, 10\) for labels of shape \(9, 1\): .* in the last axis",
    ),
}


def train_on(data, module=None, spec=None, **settings):
    module = module or MLP()
    client = TorchClient("a", module, data, **{"local": STEPS, **settings})
    return asked_of(client, spec or Spec((64,), "float32", (), "int32", 10), weights(module))


@pytest.mark.parametrize("case", SENTENCES)
def test_one_sentence_for_each_mistake(case):
    make, sentence = SENTENCES[case]
    with pytest.raises(CoterieError, match=sentence) as caught:
        make()
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_mistake_reaches_the_server_as_a_sentence():
    client = TorchClient("a", Linear(5), tensors(REGRESSION.train, 0), loss="squared", local=STEPS)
    grid = InProcessGrid([client_app(lambda context: client)])
    clients = FlowerFederation(grid, min_clients=1, poll=0.001)
    learner = ct.Learner(ct.models.Linear(bias=True), loss="squared")
    with pytest.raises(
        ct.errors.FederationError, match=r"a: the model that was sent has 'layers.0.bias', which the client's"
    ):
        ct.Global(rounds=1).fit(clients, learner)


@pytest.mark.parametrize("missing", ["torch", "flwr"])
def test_what_is_not_installed_is_named(monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("coterie.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SettingError, match=f"{missing} is not installed: install 'coterie.torch.'"):
        __import__("coterie.torch")


# a network, which takes long to compile, where there are layers to share
ALGORITHMS = {
    "gradients": ct.IFCA(k=2, rounds=3, n_init=2, average="gradients"),
    "settled": ct.IFCA(k=2, rounds=6, n_init=1, settle=1, recheck=3),
    "frozen": ct.IFCA(k=2, rounds=3, n_init=2, share="all but last", preset="authors"),
    "soft": ct.FedX(k=2, rounds=3, n_init=2, temperature=0.5),
    "local": ct.Local(rounds=3, participation=0.5),
    "fedsoft": ct.FedSoft(k=2, rounds=3, interval=2, select=3),
    "srfca": ct.SRFCA(rounds=2, refines=1, threshold="40%", final_rounds=1, final_proximal=0.5),
    "cfl": ct.CFL(rounds=3),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_whatever_an_algorithm_asks_torch_clients_do_as_jax_clients(name):
    problem = "digits" if name == "frozen" else "regression"
    data, model, loss, _ = PROBLEMS[problem]
    # a gradient is one step, and no more
    local = ct.SGD(lr=0.1, steps=1) if name == "gradients" else ct.SGD(lr=0.1, steps=2, clip=1.0)
    kinds = [["jax"] * len(data.train), ["torch"] * len(data.train)]
    theirs, ours = (
        ALGORITHMS[name].fit(federation(problem, kind, local), ct.Learner(model, loss, local), seed=1)
        for kind in kinds
    )
    np.testing.assert_array_equal(ours.assignment, theirs.assignment)
    for array in stacked.named(theirs.models):
        np.testing.assert_allclose(
            stacked.named(ours.models)[array], stacked.named(theirs.models)[array], rtol=1e-4, atol=1e-5
        )
    assert [(r.bytes_down, r.bytes_up) for r in ours.history] == [
        (r.bytes_down, r.bytes_up) for r in theirs.history
    ]


@pytest.mark.parametrize(
    "task",
    [
        round_of("regression", find_on=np.array([0, 2], np.int32)),
        round_of("regression", train_on=np.array([0, 2], np.int32)),
        MeasureLosses(drawn("regression", 2), part=np.array([0, 2], np.int32)),
        TrainAlone(drawn("regression"), 1, part=np.array([0, 2], np.int32)),
    ],
)
def test_no_task_is_carried_out_on_a_part_of_a_shard(task):
    _, client = both("regression", STEPS)
    with pytest.raises(LearnerError, match=r"cannot be asked for parts of its examples \(resample=True\)"):
        client.carry_out(ask_of("regression", task))
