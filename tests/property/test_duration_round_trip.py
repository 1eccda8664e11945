"""A printed duration or integer is read back as the same value."""

from hypothesis import given
from hypothesis import strategies as st

from pyqd.primitives.durations import INT64_MAX, INT64_MIN, format_duration, parse_duration, parse_int

int64s = st.integers(INT64_MIN, INT64_MAX)
whole_units = st.builds(
    lambda count, unit_ns: count * unit_ns,
    st.integers(-1000, 1000),
    st.sampled_from([1, 1000, 10**6, 10**9, 60 * 10**9]),
)


@given(int64s | whole_units)
def test_a_printed_duration_is_read_back_exactly(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(["ns", "us", "ms", "s", "m", "h"])), min_size=1))
def test_a_duration_is_the_sum_of_its_terms(terms: list[tuple[int, str]]) -> None:
    whole = parse_duration("".join(f"{count}{unit}" for count, unit in terms))
    assert whole == sum(parse_duration(f"{count}{unit}") for count, unit in terms)


@given(st.text(alphabet="0123456789.+-nuµmsh ", max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        duration_ns = parse_duration(text)
    except ValueError:
        return
    assert INT64_MIN <= duration_ns <= INT64_MAX


@given(int64s, st.sampled_from([str, hex, oct, bin]))
def test_an_integer_is_read_back_in_every_base(value: int, form: type[str]) -> None:
    assert parse_int(form(value)) == value
