"""Numbers, sizes in bytes and durations as short text for people to read."""


def short(number: float) -> str:
    """A number with three digits: "950", "12.3 k", "4.56 M"."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def size(number: float) -> str:
    """A number of bytes with three digits: "12.3 kB", "4.56 MB"."""
    text = short(number)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def time_unit(seconds: float) -> tuple[float, str]:
    """The divisor and the name of the unit that suit a duration in seconds."""
    for divisor, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 2 * divisor:
            return divisor, unit
    return (1e-3, "ms") if 0 < abs(seconds) < 0.1 else (1.0, "s")


def duration(seconds: float) -> str:
    """A duration with three digits and its unit: "12.3 min"."""
    divisor, unit = time_unit(seconds)
    value = seconds / divisor
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"
