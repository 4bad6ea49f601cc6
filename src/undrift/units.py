"""Large numbers for people."""


def short(number: float) -> str:
    """A number in three digits: "950", "12.3 k", "4.56 M"."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def size(number: float) -> str:
    """Bytes in three digits: "12.3 kB", "4.56 MB"."""
    text = short(number)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"
