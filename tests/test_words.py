"""Numbers and names as a reader wants them."""

from coterie.words import in_order


def test_names_are_in_the_order_in_which_a_reader_counts():
    names = ["m10", "m2", "7b", 11, "m", "a-2-10", "a-2-9"]
    assert in_order(names) == ["7b", "11", "a-2-9", "a-2-10", "m", "m2", "m10"]
