"""Which names a site may have: those that are safe as names of files and in a shell."""

import re

from undrift.utils.errors import require

SITE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,59}")


def require_site_name(site: str) -> None:
    """Refuse a name that a site may not have."""
    require(
        isinstance(site, str) and SITE_NAME.fullmatch(site) is not None,
        f"The site's name is {str(site)[:80]!r}, but must have 1 to 60 of the characters a-z, A-Z, "
        f"0-9, '-', '_' and '.', and not begin with a dot.",
    )
