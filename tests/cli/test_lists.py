"""Comma-separated lists in options."""

import pytest

from tacit.cli import lists
from tests.refusals import refused


def test_each_item_counts_once_in_the_order_given() -> None:
    assert lists.names("b, a,,b ,c", "--methods") == ["b", "a", "c"]
    assert lists.seeds("3,1,03") == [3, 1]


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "²", "9" * 5000])
def test_text_that_is_no_seed_is_refused_in_a_short_sentence(text: str) -> None:
    with refused("cli.not-a-seed") as caught:
        lists.seeds(f"0,{text}")
    assert len(str(caught.error)) < 100


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_an_empty_list_is_refused(text: str) -> None:
    with refused("cli.empty-list"):
        lists.names(text, "--methods")
