"""Numbers with units, as people type them: "80GB" is 80·10⁹ bytes, "80GiB" is 80·2³⁰, "4e6" is 4e6.

Decimal prefixes are those of the SI, binary ones those of IEC 80000-13: a GiB is 7.4 % more than a
GB. Vendors print GB on memory that has as many GiB, and drivers print what is left of that; here a
unit means what it says. A number stays exact: "0.5B" is Fraction, and then int where it is whole.
"""

import re
from fractions import Fraction

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

COUNTS = {"": 1, "K": 10**3, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
DECIMAL_BYTES = {"KB": KB, "kB": KB, "MB": MB, "GB": GB, "TB": TB}
BINARY_BYTES = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
UNITS = COUNTS | DECIMAL_BYTES | BINARY_BYTES
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_units(text: str) -> int | float:
    """A number with an optional unit: "80GB", "80 GiB", "16M" tokens, "7.5B" parameters, "4e6".

    Returns:
        An int where the number is whole, else the nearest float.

    Raises:
        ValueError: for what is no number, and for a unit that is not in UNITS.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit, such as 80GB, 16M or 4e6")
    number, unit = match.groups()
    if unit not in UNITS:
        known = ", ".join(name for name in UNITS if name)
        raise ValueError(f"unit {unit!r} in {text!r} is not known; known are {known}")
    value = Fraction(re.sub("[_,]", "", number)) * UNITS[unit]
    return value.numerator if value.denominator == 1 else float(value)
