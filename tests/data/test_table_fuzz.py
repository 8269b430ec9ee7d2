"""Whatever is in a table: it is used, or refused in a sentence."""

import datetime
import warnings

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.data.federated import Federated
from coterie.data.table import table
from coterie.errors import DataError

CELLS = {
    "whole numbers": st.integers(-(2**63), 2**63 - 1),
    "small numbers": st.integers(0, 3),
    "real numbers": st.floats(),
    "words": st.sampled_from(["a", "b", "", "ü", "a\nb", "nan", "1"]),
    "any words": st.text(max_size=5),
    "yes and no": st.booleans(),
    "dates": st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1)),
    "times": st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    "lists": st.lists(st.integers(0, 3), max_size=2),
    "bytes": st.binary(max_size=3),
    "nothing": st.none(),
}
NAMES = st.sampled_from(["a", "b", "c", "d", "", "ü", "a is missing"])


@st.composite
def columns(draw, rows):
    cells = CELLS[draw(st.sampled_from(sorted(CELLS)))]
    if draw(st.booleans()):
        cells = st.one_of(cells, st.none())
    return draw(st.lists(cells, min_size=rows, max_size=rows))


@st.composite
def tables(draw):
    """Of any columns; every other one has columns that may well be clients and a label."""
    rows = draw(st.integers(0, 12))
    names = draw(st.lists(NAMES, min_size=1, max_size=5))
    content = [draw(columns(rows)) for _ in names]
    if draw(st.booleans()):
        few = st.lists(st.integers(0, 2), min_size=rows, max_size=rows)
        names, content = ["who", "what", *names], [draw(few), draw(few), *content]
    return names, content


def used_or_refused(source, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            data, refusal = table(source, **options), None
        except DataError as error:
            data, refusal = None, str(error)
    if refusal is not None:
        assert "\n" not in refusal and refusal.endswith((".", "?"))
    else:
        assert isinstance(data, Federated)
        assert len(data.preparation.features) == data.train.spec.x_shape[0]


OPTIONS = st.fixed_dictionaries(
    {
        "client": st.one_of(NAMES, st.just("who")),
        "label": st.one_of(NAMES, st.just("what")),
        "task": st.sampled_from(["auto", "classification", "regression"]),
        "test": st.sampled_from([0, 0.2, 0.9]),
        "dates": st.booleans(),
    }
)
MANY = settings(
    max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.slow
@MANY
@given(tables(), OPTIONS)
def test_a_frame_is_used_or_refused_in_a_sentence(content, options):
    names, values = content
    try:
        frame = pa.Table.from_arrays([pa.array(column) for column in values], names=names)
    except (pa.ArrowException, OverflowError):
        return  # no table to begin with
    used_or_refused(frame, options)
    if len(set(names)) == len(names):
        used_or_refused(pd.DataFrame(dict(zip(names, values, strict=True))), options)


@pytest.mark.slow
@MANY
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='abc,."\n 01-', max_size=80).map(lambda text: ("a,b,c\n" + text).encode()),
    ),
    OPTIONS,
)
def test_a_file_is_used_or_refused_in_a_sentence(tmp_path_factory, content, options):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(content)
    used_or_refused(file, options)
