"""`UploadCoder`: compressed uploads as the tensors that a deployment really sends.

Sites encode what their upload transforms gave; the server decodes it before any other check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.compression.compressor import DENSE, Compressor, InvalidEncoding, Layout
from undrift.compression.uploads import CompressUploads, purpose_of
from undrift.core.problem import Work
from undrift.core.uploads import UploadChain
from undrift.utils.errors import require
from undrift.utils.keys import key


@dataclass(frozen=True)
class UploadCoder:
    """Encodes and decodes the compressed vectors of uploads.

    Parameters
    ----------
    compressor
        the compressor of the run
    names
        the vectors that are compressed
    seed
        the run's seed, by which random numbers are keyed
    """

    compressor: Compressor
    names: tuple[str, ...]
    seed: int

    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        """The tensors of an upload of vectors of `size` numbers."""
        parts = self.compressor.layout(size, dtype)
        return {f"{name} {part}": each for name in self.names for part, each in parts.items()}

    def encode(self, vectors: Mapping[str, Tensor], work: Work) -> dict[str, Tensor]:
        """The tensors that travel for a client's vectors."""
        found: dict[str, Tensor] = {}
        for name in self.names:
            vector, number = vectors[name], self._key(name, work)
            parts = self.compressor.encode(vector, number)
            again = self.compressor.decode(parts, len(vector), vector.dtype, number)
            require(
                torch.equal(again, vector),
                f"{self.compressor!r} cannot encode {name!r}, which a later upload transform "
                f"changed by more than a factor.",
            )
            found |= {f"{name} {part}": value for part, value in parts.items()}
        return found

    def decode(
        self, tensors: Mapping[str, Tensor], size: int, dtype: torch.dtype, work: Work
    ) -> dict[str, Tensor]:
        """The vectors of tensors with the right layout; `InvalidEncoding` if they have none."""
        found = {}
        for name in self.names:
            parts = {
                each.removeprefix(f"{name} "): value
                for each, value in tensors.items()
                if each.startswith(f"{name} ")
            }
            try:
                found[name] = self.compressor.decode(parts, size, dtype, self._key(name, work))
            except InvalidEncoding as error:
                raise InvalidEncoding(f"{name!r} is not a valid encoding: {error}") from None
        return found

    def added_values(self, name: str, vector: Tensor, turn: int) -> Tensor:
        """What travels of a vector if the encodings of all clients are added up."""
        return self.compressor.encode(vector, self._shared_key(name, turn))[DENSE]

    def added_vector(self, name: str, values: Tensor, size: int, turn: int) -> Tensor:
        """The vector of `size` numbers from added encodings."""
        number = self._shared_key(name, turn)
        return self.compressor.decode({DENSE: values}, size, values.dtype, number)

    def added_size(self, name: str, size: int, dtype: torch.dtype) -> int:
        """How many of `size` numbers travel of a vector if encodings are added up."""
        return self.compressor.layout(size, dtype)[DENSE].shape[0] if name in self.names else size

    def _key(self, name: str, work: Work) -> int:
        if self.compressor.additive:
            return self._shared_key(name, work.turn)
        return key(self.seed, purpose_of(name), work.turn, work.client)

    def _shared_key(self, name: str, turn: int) -> int:
        return key(self.seed, purpose_of(name), turn)


def coder_of(uploads: UploadChain, seed: int) -> UploadCoder | None:
    """The coder of a run's uploads; None if they are not compressed."""
    for each in uploads.transforms:
        if isinstance(each, CompressUploads):
            return UploadCoder(each.compressor, each.names, seed)
    return None
