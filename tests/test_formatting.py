import pytest

from tacit.formatting import Stat, count, duration, duration_of, format_range, percent, size, size_of, wrapped


def test_the_spread_divides_by_one_less_than_the_number_of_seeds() -> None:
    stat = Stat.of([1.0, 2.0, 6.0])
    assert stat.mean == (1 + 2 + 6) / 3
    assert stat.std == pytest.approx((((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 2) ** 0.5)  # sqrt(14 / 2)


def test_one_seed_has_no_spread() -> None:
    assert Stat.of([0.5]) == Stat(0.5, None)


@pytest.mark.parametrize(
    "stat, text",
    [(Stat(0.7512, None), "75.1"), (Stat(0.7512, 0.0044), "75.1 ± 0.4"), (Stat(1.0, 0.0), "100.0 ± 0.0")],
)
def test_percents_are_formatted(stat: Stat, text: str) -> None:
    assert percent(stat) == text


@pytest.mark.parametrize(
    "stat, text",
    [
        (Stat(0, None), "0 B"),
        (Stat(812, None), "812 B"),
        (Stat(999_960, None), "1.0 MB"),  # never 1000.0 kB
        (Stat(12_300, None), "12.3 kB"),
        (Stat(12_300_000, 0.0), "12.3 MB"),
        (Stat(12_300_000, 240_000), "12.3 ± 0.2 MB"),
        (Stat(4.56e12, None), "4560.0 GB"),
    ],
)
def test_sizes_are_formatted(stat: Stat, text: str) -> None:
    assert size(stat) == text


@pytest.mark.parametrize(
    "stat, text",
    [
        (Stat(1.26, None), "1.3 s"),
        (Stat(41.4, 0.3), "41 s"),
        (Stat(41.4, 2.6), "41 ± 3 s"),
        (Stat(738, None), "12.3 min"),
        (Stat(7560, None), "2.1 h"),
    ],
)
def test_durations_are_formatted(stat: Stat, text: str) -> None:
    assert duration(stat) == text


@pytest.mark.parametrize(
    "stat, text",
    [
        (Stat(30, 0.0), "30"),
        (Stat(25, 5.0), "25 ± 5"),
        (Stat(12_000, None), "12,000"),
        (Stat(1_234_567, None), "1.23 M"),
    ],
)
def test_counts_are_formatted(stat: Stat, text: str) -> None:
    assert count(stat) == text


def test_a_single_size_is_formatted() -> None:
    assert [size_of(count) for count in (0, 950, 999_960, 1_234_567)] == ["0 B", "950 B", "1.0 MB", "1.2 MB"]


def test_a_single_duration_is_formatted() -> None:
    assert [duration_of(seconds) for seconds in (0.5, 41, 738, 7560)] == ["0.5 s", "41 s", "12.3 min", "2.1 h"]


def test_a_range_of_equal_numbers_is_one_number() -> None:
    assert format_range([7, 7]) == "7"
    assert format_range([1200, 3, 40]) == "3 to 1,200"


def test_a_line_is_wrapped_in_its_column() -> None:
    assert wrapped("views    one two three four", 20) == "views    one two\n         three four"
    assert wrapped("one two three four", 10) == "one two\nthree four"
    assert wrapped("a/path/that-is-long/and-stays-whole", 10) == "a/path/that-is-long/and-stays-whole"
