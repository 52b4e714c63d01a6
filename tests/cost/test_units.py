"""Numbers with units. Oracles: the SI's and the IEC's prefixes, by hand."""

import pytest

from labkit.cost.hardware import parse_units as same
from labkit.cost.units import parse_units


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 85_899_345_920),
        (" 80 GiB ", 85_899_345_920),
        ("4e6", 4_000_000),
        ("16M", 16_000_000),
        ("7.5B", 7_500_000_000),
        ("0.1T", 100_000_000_000),
        ("1_000,000", 1_000_000),
        ("1.5KiB", 1536),
        ("2E+3", 2000),
        ("0.3", 0.3),
    ],
)
def test_a_number_with_its_unit(text, number):
    parsed = parse_units(text)
    assert parsed == number
    assert type(parsed) is type(number)


@pytest.mark.parametrize("text", ["80GBs", "80gb", "80 parsecs", "3m"])
def test_an_unknown_unit_is_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"is not known; known are .*GB.*GiB"):
        parse_units(text)


@pytest.mark.parametrize("text", ["", "GB", "-3", "1e", "80 80", "nan", "1..2"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match=r"80GB, 16M or 4e6|unit 'e'"):
        parse_units(text)


def test_hardware_offers_the_same_function():
    assert same is parse_units
