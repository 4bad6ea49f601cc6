"""Measure what secure aggregation costs: CPU seconds and bytes of one site and of the server.

    python -m benchmarks.secure                        # 1 million parameters, 10 sites
    python -m benchmarks.secure --parameters 10000000 --sites 50
    python -m benchmarks.secure --word-bits 16

All sites run in this process, one after another. Signatures are ECDSA on P-384, as in a deployment.
Two sites drop out after they have shared their secrets, the costliest case for the server.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from undrift.privacy.secure.attempt import Attempt, default_threshold
from undrift.privacy.secure.fixed_point import WORD_TYPES, FixedPoint
from undrift.privacy.secure.server import SecureServer
from undrift.privacy.secure.site import SecureSite

ALGORITHM = ec.ECDSA(hashes.SHA384())
RANGE = 10.0
DROPOUTS = 2


def main() -> None:
    """Run one round, print its cost, and check the decoded sum."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--word-bits", type=int, default=64, choices=WORD_TYPES)
    options = parser.parse_args()
    names = tuple(f"site {number}" for number in range(options.sites))
    attempt = Attempt("run", 0, 1, names, default_threshold(options.sites))
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}

    def verify(site: str, content: bytes, signature: bytes) -> str | None:
        try:
            keys[site].public_key().verify(signature, content, ALGORITHM)
        except InvalidSignature:
            return "the signature is wrong"
        return None

    sites = {
        name: SecureSite(
            name, attempt, lambda c, key=keys[name]: key.sign(c, ALGORITHM), verify, lambda _: True
        )
        for name in names
    }
    spent = dict.fromkeys((*names, "server"), 0.0)

    def timed(who: str, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = call()
        spent[who] += time.process_time() - began
        return found

    rng = np.random.default_rng(0)
    uploads = {name: rng.normal(size=options.parameters) for name in names}
    coding = FixedPoint.finest(len(names), RANGE, options.word_bits)
    server = SecureServer(attempt)
    server.advertised({name: timed(name, site.advertise) for name, site in sites.items()})
    server.shared(
        {name: timed(name, lambda s=site: s.share(server.adverts)) for name, site in sites.items()}
    )
    masked = {}
    for name, site in sites.items():
        sealed = server.sealed_for(name)

        def mask(site: SecureSite = site, name: str = name, sealed: Any = sealed) -> Any:
            return site.mask(sealed, {"x": coding.encode(uploads[name])})

        masked[name] = timed(name, mask)
    arrived = {name: masked[name] for name in names[: len(names) - DROPOUTS]}
    timed("server", lambda: server.masked(arrived))
    survivors = server.survivors
    server.agreed({s: timed(s, lambda s=s: sites[s].agree(survivors)) for s in survivors})
    revealed = {s: timed(s, lambda s=s: sites[s].unmask(server.signatures)) for s in survivors}
    total = timed("server", lambda: server.unmasked(revealed))
    error = np.abs(coding.decode(total["x"]) - sum(uploads[s] for s in survivors)).max()
    print(f"{options.parameters:,} parameters, {len(names)} sites, threshold {attempt.threshold}")
    print(f"CPU of one site: {max(spent[name] for name in names):.3f} s at most")
    print(f"CPU of the server, {DROPOUTS} sites gone: {spent['server']:.3f} s")
    size = coding.word_bytes * options.parameters
    print(f"a masked upload: {size / 1e6:.1f} MB, {coding.word_bytes / 4:g} times that of float32")
    print(
        f"largest error of the sum: {error:.2g}, of which the words have at most {coding.error:.2g}"
    )


if __name__ == "__main__":
    main()
