"""The store of a run: an LMDB database whose damage is found before it is used.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

from undrift.runs.store.database import KEEP_BYTES, KEEP_ROUNDS, Store
from undrift.runs.store.keys import require_storable

__all__ = ["KEEP_BYTES", "KEEP_ROUNDS", "Store", "require_storable"]
