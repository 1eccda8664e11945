"""Go's text forms of durations, integers and booleans in flags, files and logs.

Durations are int nanoseconds in the range of int64. Errors are ValueError with Go's text. Source: the documentation of
Go's time.ParseDuration, Duration.String, strconv.ParseInt (base 0) and strconv.ParseBool.
"""

import re

from pyqd.primitives.goquote import go_quote_str

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

PARSE_ERROR = "parse error"
RANGE_ERROR = "value out of range"

_UNITS_NS = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "\u00b5s": MICROSECOND_NS,  # micro sign
    "\u03bcs": MICROSECOND_NS,  # Greek small letter mu
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": MINUTE_NS,
    "h": HOUR_NS,
}
_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^.0-9]*)")
_INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)"
    r"|0[bB](?P<bin>(?:_?[01])+)"
    r"|0[oO]?(?P<oct>(?:_?[0-7])+)"
    r"|(?P<dec>0|[1-9](?:_?[0-9])*))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
# More digits than any int64 has. Python limits the length of the numbers it converts, Go does not.
_DECIMAL_DIGITS_MAX = 20
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a Go duration such as 250ms, 1h30m, -1.5s or a bare 0.

    Raises: ValueError with Go's text for another syntax, an unknown or missing unit, or a value beyond int64.
    """
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0
    total_ns = 0
    position = 0
    while position < len(unsigned):
        term = _TERM.match(unsigned, position)
        assert term is not None, "the pattern matches the empty string too"
        total_ns += _term_ns(text, *term.groups(default=""))
        position = term.end()
        if total_ns > -INT64_MIN:
            raise _invalid(text)
    if not unsigned or (total_ns > INT64_MAX and text[0] != "-"):
        raise _invalid(text)
    return -total_ns if text[0] == "-" else total_ns


def _term_ns(text: str, whole: str, fraction: str, unit: str) -> int:
    if not whole and not fraction:
        raise _invalid(text)
    if not unit:
        raise ValueError(f"time: missing unit in duration {go_quote_str(text)}")
    unit_ns = _UNITS_NS.get(unit)
    if unit_ns is None:
        raise ValueError(f"time: unknown unit {go_quote_str(unit)} in duration {go_quote_str(text)}")
    # More digits than an int64 has do not matter: before the point they are out of range, after it below a nanosecond.
    whole = whole.lstrip("0")
    if len(whole) > _DECIMAL_DIGITS_MAX:
        raise _invalid(text)
    fraction = fraction[:18]
    fraction_ns = int(int(fraction) * (unit_ns / 10 ** len(fraction))) if fraction else 0
    return int(whole or "0") * unit_ns + fraction_ns


def _invalid(text: str) -> ValueError:
    return ValueError(f"time: invalid duration {go_quote_str(text)}")


def format_duration(duration_ns: int) -> str:
    """Return a duration as Go prints it: 1m0s, 2s, 250ms, 1.5s, 302.307488ms, 0s.

    Below a second the unit is the largest of ms, µs and ns that leaves a whole part. From a second on the form is
    1h0m0s.
    """
    if duration_ns == 0:
        return "0s"
    sign = "-" if duration_ns < 0 else ""
    size_ns = abs(duration_ns)
    if size_ns < SECOND_NS:
        for unit, unit_ns in (("ms", MILLISECOND_NS), ("\u00b5s", MICROSECOND_NS), ("ns", 1)):
            if size_ns >= unit_ns:
                return sign + _decimal(size_ns, unit_ns) + unit
    minutes, rest_ns = divmod(size_ns, MINUTE_NS)
    text = _decimal(rest_ns, SECOND_NS) + "s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = (f"{hours}h" if hours else "") + f"{minutes}m" + text
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    fraction = str(unit + rest)[1:].rstrip("0")
    return f"{whole}.{fraction}"


def parse_int(text: str) -> int:
    """Return the int64 of a Go integer literal: optional sign, base by prefix (0x, 0o or 0, 0b), underscores inside.

    Raises: ValueError "parse error" or "value out of range", the words of Go's flags.
    """
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(PARSE_ERROR)
    assert match.lastgroup is not None
    digits = match[match.lastgroup].replace("_", "")
    if match.lastgroup == "dec" and len(digits) > _DECIMAL_DIGITS_MAX:
        raise ValueError(RANGE_ERROR)
    value = int(match["sign"] + digits, _BASES[match.lastgroup])
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(RANGE_ERROR)
    return value


def parse_decimal(text: str) -> int:
    """Return the int64 of decimal digits with an optional sign, the form of numbers in a configuration file's strings.

    Raises: ValueError "parse error" or "value out of range".
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(PARSE_ERROR)
    digits = digits.lstrip("0") or "0"
    value = int(digits) if len(digits) <= _DECIMAL_DIGITS_MAX else INT64_MAX + 2
    value = -value if text[0] == "-" else value
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(RANGE_ERROR)
    return value


def parse_bool(text: str) -> bool:
    """Return the boolean of 1 t T true TRUE True or 0 f F false FALSE False. Raises: ValueError "parse error"."""
    try:
        return _BOOLS[text]
    except KeyError:
        raise ValueError(PARSE_ERROR) from None
