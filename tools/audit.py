"""Looks the pinned packages of the deployment up in a database of known vulnerabilities.

    python -m tools.audit requirements-flower.txt

Runs pip-audit, which asks a service on the internet. An audit that could not be made is a failure
with a sentence of its own: without `--strict`, pip-audit counts packages it cannot look up as safe.
"""

from __future__ import annotations

import subprocess
import sys

NOT_LOOKED_UP = ("could not be audited", "ConnectionError", "ServiceError", "Timeout")
"""What pip-audit says if it did not get an answer about a package."""


def main(requirements: str) -> int:
    """Print what pip-audit finds; the exit code is 0 only if every package was looked up."""
    found = subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--strict", "--progress-spinner", "off"),
            *("--disable-pip", "--require-hashes", "-r", requirements),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    output = (found.stdout + found.stderr).strip()
    if found.returncode == 0:
        print(output)
        return 0
    if any(words in output for words in NOT_LOOKED_UP):
        print(
            f"No audit was made: the vulnerability service cannot be reached or did not answer for "
            f"every package of {requirements} ({output.splitlines()[-1][:200]}). Run it again on a "
            f"machine with access to the internet.",
            file=sys.stderr,
        )
        return 2
    print(output, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
