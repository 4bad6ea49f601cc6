"""Samples that are read when a batch needs them, ahead of time by worker processes.

The number of workers changes no bit: what is read depends on the rows and their keys only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from copy import copy
from threading import Lock
from typing import Any, NamedTuple
from weakref import finalize

from torch import Tensor, multiprocessing  # with torch's, tensors travel in shared memory

from undrift.data.samples.sources import SampleSource
from undrift.data.samples.structure import Tree, split_batch, tensors_of
from undrift.utils.errors import UndriftError, first_line, require_range, require_whole
from undrift.utils.keys import global_generators_kept, key
from undrift.utils.threads import one_thread, prepare_thread

MEGABYTE = 1_000_000
EVALUATION_KEY = key(0, "evaluation")
"""Keys the random numbers of samples that are read for evaluation, the same in every round."""

Pair = tuple[Tree, Tree]
"""The inputs and the targets of a batch."""


class Request(NamedTuple):
    """A batch that is wanted."""

    rows: Sequence[int]
    key: int = EVALUATION_KEY
    """keys its random numbers, together with the rows"""


class LazySamples:
    """Samples that are read batch by batch.

    Parameters
    ----------
    source
        reads the samples
    workers
        processes that read batches ahead; 0 reads them in this process when they are needed
    prefetch
        batches that each worker reads ahead
    memory
        the most megabytes that batches read ahead may take; at least one batch is read ahead
    """

    def __init__(
        self, source: SampleSource, workers: int = 0, prefetch: int = 2, memory: float = 200
    ):
        require_whole("workers", workers, at_least=0)
        require_whole("prefetch", prefetch, at_least=1)
        require_range("memory", memory, above=0)
        self.source = source
        self.workers, self.prefetch, self.memory = workers, prefetch, memory
        self._pools = _Pools(source, workers)
        self._change: Callable[[Tree, Tree], Pair] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return repr(self.source)

    def changed(self, change: Callable[[Tree, Tree], Pair]) -> LazySamples:
        """The same samples, with a change of the inputs and targets of every batch."""
        found = copy(self)
        found._change = change
        return found

    def samples(self, rows: Sequence[int]) -> Pair:
        """Inputs and targets of some samples, read at once."""
        return self._split(self._read_here(Request(rows)))

    def batches(self, requests: Iterable[Request]) -> Iterator[Pair]:
        """Inputs and targets of each request, in order; workers read some of them ahead."""
        if not self.workers:
            for request in requests:
                yield self._split(self._read_here(request))
            return
        wanted, reading = iter(requests), deque[Future[Tree]]()
        wish: Request | None
        ahead = self.workers * self.prefetch
        try:
            while True:
                while len(reading) < ahead and (wish := next(wanted, None)) is not None:
                    reading.append(self._pools.submit(wish))
                if not reading:
                    return
                batch = self._result(reading.popleft())
                size = sum(each.numel() * each.element_size() for each in tensors_of(batch))
                # Some are waiting and some in the making, so one less than fit.
                ahead = max(1, min(ahead, int(self.memory * MEGABYTE / max(size, 1)) - 1))
                yield self._split(batch)
        finally:
            for future in reading:  # a client may end before its last step
                future.cancel()

    def _read_here(self, request: Request) -> Tree:
        with global_generators_kept(), one_thread():
            return self.source.read(request.rows, request.key)

    def _split(self, batch: Tree) -> Pair:
        inputs, targets = split_batch(batch)
        return (inputs, targets) if self._change is None else self._change(inputs, targets)

    def _result(self, future: Future[Tree]) -> Tree:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise UndriftError(
                f"A worker process that reads samples has ended: {first_line(error)}; workers=0 "
                f"reads them in this process."
            ) from error


class _Pools:
    """The worker processes of lazy samples: started when first needed, ended with their owner."""

    def __init__(self, source: SampleSource, workers: int):
        self._source, self._workers = source, workers
        self._pool: ProcessPoolExecutor | None = None
        self._lock = Lock()  # several threads may train clients

    def submit(self, request: Request) -> Future[Tree]:
        """Let a worker read a batch."""
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._workers, _context(), initializer=_start, initargs=(self._source,)
                )
                finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            return self._pool.submit(_read, request)

    def __reduce__(self) -> Any:
        # A copy in another process starts workers of its own.
        return _Pools, (self._source, self._workers)

    def __deepcopy__(self, memo: Any) -> _Pools:
        return self


def _context() -> Any:
    """How processes start: by fork where there is one, so that a source need not be picklable."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if "fork" in methods else "spawn")


_worker_source: SampleSource | None = None
"""In a worker process: what it reads from."""


def _start(source: SampleSource) -> None:
    global _worker_source
    _worker_source = source
    prepare_thread()


def _read(request: Request) -> Tree:
    assert _worker_source is not None
    return _plain(_worker_source.read(request.rows, request.key))


def _plain(tree: Tree) -> Tree:
    """A batch without gradients, which could not travel to another process."""
    return tree.detach() if isinstance(tree, Tensor) else tree
