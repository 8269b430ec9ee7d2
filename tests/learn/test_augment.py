"""Augmentation, against crops of NumPy: what is drawn, who draws it, and what sees it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data import Spec
from coterie.errors import LearnerError, SettingError
from coterie.learn import sample_space
from coterie.learn.augment import standardised
from coterie.learn.shard import Shard
from coterie.models import CNN, MLP, Linear

SIDE, PART = 10, 6
PHOTOGRAPHS = Spec((SIDE, SIDE, 3), "uint8", (), "int32", classes=3, scale=1 / 255)


def photographs(count, channels=(3,), seed=0):
    return np.random.default_rng(seed).random((count, SIDE, SIDE, *channels), np.float32)


# -- the slow way --------------------------------------------------------------------------------------------


def crops(image, size, pad=0):
    """Every part of the image with black pixels around it, and its mirror image, by where it begins."""
    height, width = image.shape[0] + 2 * pad, image.shape[1] + 2 * pad
    whole = np.zeros((height, width, *image.shape[2:]), image.dtype)
    whole[pad : height - pad, pad : width - pad] = image
    found = {}
    for top in range(height - size + 1):
        for left in range(width - size + 1):
            part = whole[top : top + size, left : left + size]
            found[top, left, False] = part
            found[top, left, True] = np.array([row[::-1] for row in part])
    return found


def which(part, among, within=0.0):
    """The one key under which an array is to be found."""
    found = [key for key, other in among.items() if np.abs(part - other).max() <= within]
    assert len(found) == 1, found
    return found[0]


def per_image_standardization(image):
    image = image.astype(float)
    least = 1 / np.sqrt(image.size)
    return (image - image.mean()) / max(image.std(), least)


def distorted(part, factor, brightness):
    """Brightness, contrast and standardisation of one image, in the order of the released code."""
    image = part.astype(float) + brightness
    for channel in range(image.shape[-1]):
        mean = image[..., channel].mean()
        image[..., channel] = (image[..., channel] - mean) * factor + mean
    return per_image_standardization(image)


def contrast_of(seen, part):
    """By which factor each pixel of the part went away from its channel's mean, against the means' own."""

    def spreads(image):
        means = image.mean((0, 1))
        return (image - means).std(), means.std()

    (within, between), (within_before, between_before) = spreads(seen), spreads(part.astype(float))
    return (within / within_before) / (between / between_before)


# -- what is drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [(3,), (1,), ()])
@pytest.mark.parametrize("size, pad", [(PART, 0), (PART, 2), (None, 2), (SIDE, 1)])
def test_a_crop_is_one_of_the_crops_there_are(channels, size, pad):
    x, crop = photographs(5, channels), ct.Crop(size, pad=pad)
    seen = np.asarray(jax.jit(crop.train)(x, jax.random.key(3)))
    assert seen.shape[1:] == crop.shape(x.shape[1:])
    places = {which(part, crops(image, size or SIDE, pad)) for part, image in zip(seen, x, strict=True)}
    assert len(places) > 1, "each image is cropped at a place of its own"


def test_all_places_are_as_likely_and_half_of_the_images_are_mirrored():
    image = photographs(1)[0]
    crop, among = ct.Crop(9, pad=1), crops(image, 9, 1)  # 16 places, mirrored or not
    seen = np.asarray(crop.train(np.stack([image] * 3200), jax.random.key(0)))
    names = {other.tobytes(): name for name, other in among.items()}
    counts = dict.fromkeys(among, 0)
    for part in seen:
        counts[names[part.tobytes()]] += 1
    # 100 each; four deviations of such a count
    assert all(60 <= count <= 140 for count in counts.values()), counts
    straight = np.asarray(ct.Crop(9, pad=1, flip=False).train(np.stack([image] * 50), jax.random.key(0)))
    assert not any(which(part, among)[2] for part in straight)


def test_one_square_is_cut_out_of_each_image():
    x = photographs(40) + 1  # not black
    seen = np.asarray(ct.Crop(flip=False, cutout=4).train(x, jax.random.key(1)))
    corners = set()
    for image, before in zip(seen, x, strict=True):
        rows, columns = np.nonzero((image == 0).all(-1))
        top, left = rows.min(), columns.min()
        wanted = before.copy()
        wanted[top : top + 4, left : left + 4] = 0
        np.testing.assert_array_equal(image, wanted)
        corners.add((top, left))
    assert {0, SIDE - 4} <= {top for top, _ in corners} and len(corners) > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_distorted_as_the_released_code_does(seed):
    x = photographs(6, seed=seed)
    seen = np.asarray(ct.Distort(PART).train(x, jax.random.key(seed)))
    brightness = np.random.default_rng(seed).uniform(-63, 63)  # of which nothing is to be seen
    places, factors, flips = set(), [], set()
    for image, before in zip(seen, x, strict=True):
        among = crops(before, PART)
        ways = {name: distorted(part, contrast_of(image, part), brightness) for name, part in among.items()}
        top, left, flip = which(image, ways, within=1e-4)
        places.add((top, left))
        flips.add(flip)
        factors.append(contrast_of(image, among[top, left, flip]))
    assert len(places) == 1, "the images of a batch are cropped at one place"
    assert flips == {False, True}, "and mirrored one by one"
    np.testing.assert_allclose(factors, factors[0], rtol=1e-3)
    assert 0.2 <= factors[0] <= 1.8


def test_the_contrast_is_between_the_least_and_the_largest():
    x = photographs(1)

    @jax.jit
    @jax.vmap
    def seen(key):
        return ct.Distort(SIDE, contrast=(0.5, 2.0)).train(x, key)

    factors = [
        contrast_of(image[0], x[0]) for image in np.asarray(seen(jax.random.split(jax.random.key(0), 200)))
    ]
    assert 0.5 <= min(factors) < 0.55 and 1.95 < max(factors) <= 2.0 + 1e-4
    assert np.mean(factors) == pytest.approx(1.25, abs=0.12)  # four deviations


def test_outside_of_training_the_middle_is_seen():
    x = photographs(4)
    middle = x[:, 2:8, 2:8]
    np.testing.assert_array_equal(ct.Crop(PART, pad=2).look(x), middle)
    np.testing.assert_array_equal(ct.Crop(pad=2, cutout=3).look(x), x)
    wanted = [per_image_standardization(image) for image in middle]
    np.testing.assert_allclose(ct.Distort(PART).look(x), wanted, atol=1e-5)
    np.testing.assert_allclose(ct.Crop(PART, standardise=True).look(x), wanted, atol=1e-5)
    odd = photographs(1)[:, :9, :9, 0]
    np.testing.assert_array_equal(ct.Crop(6).look(odd), odd[:, 1:7, 1:7])


def test_an_image_of_one_colour_is_standardised_to_nothing_and_a_faint_one_stays_faint():
    np.testing.assert_allclose(standardised(jnp.full((1, 4, 4, 3), 0.7)), 0, atol=1e-6)
    faint = np.full((1, 4, 4), 0.5, np.float32)
    faint[0, 0, 0] += 1e-3
    np.testing.assert_allclose(standardised(faint)[0], per_image_standardization(faint[0]), atol=1e-6)
    assert np.abs(standardised(faint)).max() < 0.01


# -- what sees it --------------------------------------------------------------------------------------------


def towards(outputs, y):
    """A loss whose gradient is the features themselves, whatever the model: training adds up what it saw."""
    return outputs


SEES = Spec((2, 2), "float32", (), "float32")
IMAGE = np.array([[1.0, 2.0], [30.0, 40.0]], np.float32)


def seen_in_training(local, key, count=1, capacity=1):
    """How often the only image was seen as it is, and how often as in a mirror."""
    learner = ct.Learner(Linear(), towards, local, ct.Crop()).for_data(SEES)
    x = jnp.asarray(np.stack([IMAGE] * capacity))
    shard = Shard(x, jnp.zeros(capacity), jnp.asarray(count))
    start = jax.tree.map(jnp.zeros_like, learner.init(jax.random.key(0), SEES))
    added = learner.train(start, shard, key, jnp.asarray(0)).layers[0].weight[0]
    either = np.stack([IMAGE.ravel(), IMAGE[:, ::-1].ravel()])
    times, away, *_ = np.linalg.lstsq(either.T, -np.asarray(added), rcond=None)
    np.testing.assert_allclose(away, 0, atol=1e-4)
    return times


@pytest.mark.parametrize(
    "local", [ct.SGD(1.0, steps=12), ct.SGD(1.0, epochs=12, batch_size=5), ct.Optax(optax.sgd(1.0), steps=12)]
)
def test_every_step_and_every_client_draws_anew(local):
    found = [seen_in_training(local, jax.random.key(seed)) for seed in range(8)]
    np.testing.assert_allclose(np.sum(found, axis=1), 12, rtol=1e-4)
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    assert all(0 < times[0] < 12 for times in found)
    assert len({round(float(times[0])) for times in found}) > 2


@pytest.mark.parametrize("local", [ct.SGD(1.0, steps=9), ct.SGD(1.0, epochs=3, batch_size=2)], ids=str)
def test_padding_changes_nothing_that_is_drawn(local):
    alone = seen_in_training(local, jax.random.key(2), count=5, capacity=5)
    padded = seen_in_training(local, jax.random.key(2), count=5, capacity=9)
    np.testing.assert_allclose(alone, padded, atol=1e-4)


def test_a_gradient_that_is_sent_is_of_augmented_images():
    learner = ct.Learner(Linear(), towards, ct.SGD(1.0, steps=1), ct.Crop()).for_data(SEES)
    shard = Shard(jnp.asarray(IMAGE[None]), jnp.zeros(1), jnp.asarray(1))
    start = learner.init(jax.random.key(0), SEES)
    keys = jax.random.split(jax.random.key(0), 20)
    gradients = jax.vmap(lambda key: learner.gradient(start, shard, key).layers[0].weight[0])(keys)
    either = {False: IMAGE.ravel(), True: IMAGE[:, ::-1].ravel()}
    assert {which(gradient, either, within=1e-5) for gradient in np.asarray(gradients)} == {False, True}


def test_an_augmentation_that_changes_nothing_is_as_good_as_none():
    x, y = jnp.asarray(photographs(7)), jnp.arange(7) % 3
    shard, spec = Shard(x, y, jnp.asarray(6)), dataclasses.replace(PHOTOGRAPHS, x_dtype="float32", scale=None)
    trained = []
    for augment in (None, ct.Crop(flip=False)):
        local = ct.SGD(0.1, epochs=2, batch_size=4, momentum=0.5)
        learner = ct.Learner(MLP((5,)), local=local, augment=augment).for_data(spec)
        start = learner.init(jax.random.key(0), spec)
        trained.append(learner.train(start, shard, jax.random.key(1), jnp.asarray(0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), *trained)


def test_losses_and_accuracies_are_those_of_what_is_seen_outside_of_training():
    x, y = photographs(6), np.array([0, 1, 2, 0, 1, 2])
    spec = dataclasses.replace(PHOTOGRAPHS, x_dtype="float32", scale=None)
    learner = ct.Learner(Linear(bias=True), augment=ct.Distort(PART)).for_data(spec)
    params = learner.init(jax.random.key(0), spec)
    layer = params.layers[0]
    assert layer.weight.shape == (3, PART * PART * 3)
    seen = np.stack([per_image_standardization(image[2:8, 2:8]) for image in x[:5]]).reshape(5, -1)
    outputs = seen @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    each = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(5), y[:5]]
    shard = Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(5))
    assert learner.shard_loss(params, shard) == pytest.approx(each.mean(), rel=1e-5)
    right = (outputs.argmax(1) == y[:5]).mean()
    assert learner.shard_accuracy(params, shard) == pytest.approx(right)
    many = jax.tree.map(lambda a: jnp.stack([a] * 30), params)  # more than are compared at once
    np.testing.assert_allclose(learner.shard_losses(many, shard), each.mean(), rtol=1e-5)


# -- who draws it --------------------------------------------------------------------------------------------

SIZES = [3, 9, 4, 5, 8, 3, 7]


def populations(dtype=np.uint8):
    rng = np.random.default_rng(5)
    x = [rng.integers(0, 256, (n, 4, 4)).astype(np.uint8) for n in SIZES]
    y = [rng.integers(0, 3, n) for n in SIZES]
    if dtype is np.uint8:
        return ct.Shards.from_lists(x, y, [f"c{i}" for i in range(len(x))], scale=1 / 255)
    x = [a.astype(np.float32) * np.float32(1 / 255) for a in x]
    return ct.Shards.from_lists(x, y, [f"c{i}" for i in range(len(x))])


SHARDS = populations()
RULES = {
    "whole": ct.SGD(0.5, steps=3),
    "minibatches": ct.SGD(0.5, epochs=2, batch_size=4, momentum=0.5),
}
AUGMENTS = [ct.Crop(3, pad=1, cutout=1), ct.Distort(3)]
FOUND = {}


def personal(shards, rule, augment, **simulation):
    """The model that each client ends with, by its id."""
    learner = ct.Learner(Linear(), local=RULES[rule], augment=augment)
    found = ct.Local(rounds=2).fit(ct.Simulation(shards, **simulation), learner, seed=4)
    weights = np.asarray(found.models.layers[0].weight)
    return {client: weights[cluster] for client, cluster in zip(found.ids, found.assignment, strict=True)}


def assert_each_client_draws_the_same(rule, augment, some, **simulation):
    if (rule, augment) not in FOUND:
        FOUND[rule, augment] = personal(SHARDS, rule, augment)
        several = np.stack(list(FOUND[rule, augment].values()))
        assert np.ptp(several, axis=0).max() > 0.01
    found = personal(some, rule, augment, **simulation)
    assert set(found) == set(some.ids)
    for client, weight in found.items():
        np.testing.assert_allclose(weight, FOUND[rule, augment][client], rtol=1e-4, atol=1e-5)


def test_neither_order_nor_batch_nor_devices_nor_other_clients_change_what_a_client_draws():
    # without the largest two there is less padding
    two = jax.local_devices()[:2]
    assert_each_client_draws_the_same("minibatches", AUGMENTS[0], SHARDS[[5, 2, 0]], batch=1, devices=two)


@pytest.mark.slow
@pytest.mark.parametrize("augment", AUGMENTS, ids=lambda augment: type(augment).__name__)
@pytest.mark.parametrize("rule", ["minibatches"])
@settings(max_examples=4, deadline=None, database=None)
@given(
    order=st.permutations(range(len(SIZES))),
    count=st.integers(1, len(SIZES)),
    batch=st.sampled_from([1, 2, 3, len(SIZES)]),
    devices=st.sampled_from([1, 2]),
)
def test_nor_any_other_order_batch_devices_and_clients(rule, augment, order, count, batch, devices):
    some = SHARDS[order[:count]]
    assert_each_client_draws_the_same(rule, augment, some, batch=batch, devices=jax.local_devices()[:devices])


@pytest.mark.slow
def test_images_of_one_byte_a_pixel_are_augmented_as_they_are_seen():
    for augment in AUGMENTS:
        bytes_, floats = (
            personal(shards, "minibatches", augment) for shards in (SHARDS, populations(np.float32))
        )
        for client in bytes_:
            np.testing.assert_allclose(bytes_[client], floats[client], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_clusters_are_chosen_by_losses_that_are_the_same_each_time():
    learner = ct.Learner(Linear(), local=ct.SGD(0.1, steps=1), augment=ct.Crop(3, pad=2))
    found = ct.IFCA(k=2, rounds=2, n_init=2).fit(SHARDS, learner, seed=0)
    np.testing.assert_array_equal(found.assign(SHARDS), found.assignment)
    assert found.evaluate(SHARDS).loss == found.evaluate(SHARDS).loss
    without = dataclasses.replace(
        learner, augment=ct.Crop(3, flip=False)
    )  # sees the same outside of training
    kept = dataclasses.replace(found, learner=without.for_data(SHARDS.spec))
    assert kept.evaluate(SHARDS).loss == found.evaluate(SHARDS).loss


def test_the_way_through_products_of_examples_is_not_taken():
    shards = ct.Shards.from_lists([photographs(3)] * 2, [[0, 1, 2]] * 2)
    for augment, taken in ((None, True), (ct.Crop(pad=1), False)):
        learner = ct.Learner(MLP((6,)), local=ct.SGD(0.1, steps=10), augment=augment)
        assert sample_space.possible(learner) == sample_space.pays(learner, 3, 300) == taken
        rows = ct.Simulation(shards).with_learner(learner)._rows
        assert all((row.gram is not None) == taken for row in rows)


def test_what_is_found_is_saved_with_its_augmentation(tmp_path):
    learner = ct.Learner(Linear(), local=ct.SGD(0.1, steps=1), augment=ct.Distort(3, contrast=(0.5, 1.5)))
    found = ct.Global(rounds=1).fit(SHARDS, learner, seed=0)
    found.save(tmp_path)
    again = ct.load(tmp_path)
    assert again.learner.augment == learner.augment
    assert again.evaluate(SHARDS).loss == found.evaluate(SHARDS).loss


# -- what is refused -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Own:
    """An augmentation of the user's own that shows something else than it says."""

    said: tuple = (4, 4)

    def shape(self, shape):
        return self.said

    def train(self, x, key):
        return x[:, :4, :4]

    def look(self, x):
        return x[:, :4, :4, 0]


@pytest.mark.parametrize(
    "augment, settings, spec, sentence",
    [
        (
            ct.Crop(pad=2),
            {},
            Spec((64,), "float32", (), "int32", 3),
            r"Crop needs images, of shape \(height, width\) .* not features of shape \(64,\)\.",
        ),
        (ct.Distort(), {}, PHOTOGRAPHS, "Distort cannot take 24 x 24 pixels of images of 10 x 10."),
        (ct.Crop(11, pad=4), {}, PHOTOGRAPHS, "Crop cannot take 11 x 11 pixels of images of 10 x 10."),
        (ct.Crop(cutout=11), {}, PHOTOGRAPHS, "Crop cannot cut 11 x 11 pixels out of 10 x 10."),
        (
            ct.Crop(),
            {},
            dataclasses.replace(PHOTOGRAPHS, scale=None),
            "Crop needs real numbers, not features of type uint8: give the shards scale=1/255",
        ),
        (
            ct.Crop(),
            {"local": ct.Proximal(0.1)},
            PHOTOGRAPHS,
            r"Crop draws anew for every step, and Proximal takes no such steps: give local=SGD\(",
        ),
        (Own(), {}, PHOTOGRAPHS, r"Own.train gives a batch of shape \(1, 4, 4, 3\) for one example, where"),
        (Own((4, 4, 3)), {}, PHOTOGRAPHS, r"Own.look gives a batch of shape \(1, 4, 4\) for one example"),
        (object(), {}, PHOTOGRAPHS, r"the augmentation <object .* cannot be applied to features of shape"),
    ],
)
def test_where_it_cannot_apply_it_is_refused(augment, settings, spec, sentence):
    with pytest.raises(LearnerError, match=sentence) as raised:
        ct.Learner(Linear(), augment=augment, **settings).for_data(spec)
    assert "\n" not in str(raised.value) and str(raised.value).endswith((".", "'shape'"))


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: ct.Crop(0), "size must be a whole number from 1 up, not 0."),
        (lambda: ct.Crop(pad=-1), "pad must be a whole number from 0 up, not -1."),
        (lambda: ct.Crop(cutout=1.5), "cutout must be a whole number, not 1.5."),
        (lambda: ct.Crop(4, cutout=5), "cutout must be at most the size 4, not 5."),
        (lambda: ct.Distort(contrast=(1.8, 0.2)), "contrast must be a least and a largest factor"),
        (lambda: ct.Distort(contrast=(-1, 1)), "contrast must be a least and a largest factor"),
    ],
)
def test_impossible_settings_are_refused(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()


def test_the_model_is_made_for_what_it_sees():
    spec = Spec((32, 32, 3), "uint8", (), "int32", 10, scale=1 / 255)
    learner = ct.Learner(CNN.cifar10("authors"), augment=ct.Distort()).for_data(spec)
    assert learner.shapes(spec).layers[2].weight.shape == (384, 6 * 6 * 64)
    assert ct.Learner(CNN.cifar10("authors")).for_data(spec).shapes(spec).layers[2].weight.shape == (
        384,
        4096,
    )
