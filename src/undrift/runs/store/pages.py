"""Reads the file of an LMDB database page by page, without LMDB, and finds damage.

LMDB trusts its file: a damaged page may end the process with SIGSEGV or SIGBUS, hide keys, or make
the next commit overwrite pages in use. So the whole structure is checked here before LMDB opens the
file: every page that LMDB can reach is in the file, is reached once, and is what it should be.

The layout is that of LMDB 0.9 (data version 1) on 64-bit little-endian machines, from its `mdb.c`.
Bytes that LMDB never reads (free pages, room inside pages) may have any value.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

META_PAGES = 2
MAGIC, DATA_VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08  # flags of a page
BIG_VALUE = 0x01  # flag of a node whose value is on overflow pages
INTEGER_KEYS = 0x08  # flag of the tree of free pages
NO_ROOT = 2**64 - 1
MAX_DEPTH = 32
PAGE_SIZES = tuple(1 << n for n in range(9, 17))
HEADER = struct.Struct("<QHHHH")  # page number, padding, flags, lower and upper end of the room
META_HEAD = struct.Struct("<IIQQ")  # magic, version, address, map size
TREE = struct.Struct("<IHHQQQQQ")
META_TAIL = struct.Struct("<QQ")  # last page, number of the transaction
NODE = struct.Struct("<HHHH")  # low and high half of the value's size, flags, size of the key


class Damage(Exception):
    """A part of the file is not what it should be; the message says which."""


class Tree(NamedTuple):
    """The root of a B+ tree, as a meta page describes it."""

    page_size: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True)
class Snapshot:
    """What a meta page says about the last commit."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int


class StoreFile:
    """The file of an LMDB database.

    Parameters
    ----------
    path
        the file, data.mdb
    found
        called with every `Damage`; if it returns, reading goes on with what is left
    """

    def __init__(self, path: Path, found: Callable[[Damage], None]):
        self._path = path
        self._found = found

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of the last commit, in the order of keys."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError as error:
            self._found(Damage(f"it cannot be opened ({error.strerror})"))
            return
        try:
            self._file = descriptor
            self._size = os.fstat(descriptor).st_size
            snapshot = self._snapshot()
            # One byte per page: 0 for not reached yet.
            self._reached = bytearray(snapshot.last_page + 1)
            self._reached[:META_PAGES] = b"\1" * META_PAGES
            yield from Walk(self, snapshot.main, 0).entries()
            free = Walk(self, snapshot.free, INTEGER_KEYS)
            for key, value in free.entries():
                self._check_free_pages(key, value, snapshot)
        except Damage as damage:
            self._found(damage)
        finally:
            os.close(descriptor)

    def _snapshot(self) -> Snapshot:
        """The newer of the two meta pages; LMDB takes the same one."""
        first = self._meta(0, 0)
        second = self._meta(1, first.free.page_size)
        self._page_size = first.free.page_size
        newer = int(first.transaction < second.transaction)
        snapshot = (first, second)[newer]
        if first.free.page_size != second.free.page_size:
            raise Damage("its two meta pages have different page sizes")
        # Odd transactions are on page 1, even ones on page 0: the next commit overwrites the other.
        if snapshot.transaction % 2 != newer:
            raise Damage(f"the number of the last commit on meta page {newer} is wrong")
        # Pages at the end that were free at once may never have been written. More than that are
        # missing only if the file was cut off, which shows in the pages that are reached.
        if snapshot.last_page >= 2**44:
            raise Damage(f"the number of pages on meta page {newer} is wrong")
        if snapshot.main.flags != 0 or snapshot.free.flags != INTEGER_KEYS:
            raise Damage(f"the flags on meta page {newer} are wrong")
        if snapshot.last_page * self._page_size > max(2 * self._size, 1 << 30):
            raise Damage(
                f"it was cut off: it has {self._size} bytes, and its last page is page "
                f"{snapshot.last_page}"
            )
        return snapshot

    def _meta(self, number: int, offset: int) -> Snapshot:
        length = HEADER.size + META_HEAD.size + 2 * TREE.size + META_TAIL.size
        data = os.pread(self._file, length, offset)
        if len(data) < length:
            raise Damage(f"it was cut off: it has {self._size} bytes, less than its meta pages")
        _, _, flags, _, _ = HEADER.unpack_from(data)
        magic, version, _, _ = META_HEAD.unpack_from(data, HEADER.size)
        if not flags & META or magic != MAGIC or version != DATA_VERSION:
            raise Damage(f"meta page {number} is not one of LMDB")
        place = HEADER.size + META_HEAD.size
        free = Tree(*TREE.unpack_from(data, place))
        main = Tree(*TREE.unpack_from(data, place + TREE.size))
        if free.page_size not in PAGE_SIZES:
            raise Damage(f"the page size on meta page {number} is wrong")
        return Snapshot(free, main, *META_TAIL.unpack_from(data, place + 2 * TREE.size))

    def _check_free_pages(self, key: bytes, value: bytes, snapshot: Snapshot) -> None:
        """Check one list of free pages: the next commits will overwrite them."""
        pages = struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])
        if len(key) != 8 or not pages or pages[0] >= len(pages):
            raise Damage("a list of free pages has a wrong length")
        listed = pages[1 : pages[0] + 1]
        for page in listed:
            if not META_PAGES <= page <= snapshot.last_page or self._reached[page]:
                raise Damage(f"page {page} is listed as free, but is in use")
            self._reached[page] = 1
        if any(a <= b for a, b in pairwise(listed)):
            raise Damage("a list of free pages is not in order")

    def page(self, number: int, count: int = 1) -> bytes:
        """The bytes of one page, or of several that follow each other; each is read once."""
        self._claim(number, count)
        data = os.pread(self._file, count * self._page_size, number * self._page_size)
        if len(data) < count * self._page_size:
            raise Damage(f"it was cut off: page {number} is beyond its {self._size} bytes")
        return data

    def _claim(self, number: int, count: int) -> None:
        """Note that pages are in use; no page may be used twice."""
        reached = self._reached[number : number + count]
        if number < META_PAGES or len(reached) < count:
            raise Damage(f"it refers to page {number}, which does not exist")
        if any(reached):
            raise Damage(f"page {number} is used twice")
        self._reached[number : number + count] = b"\1" * count

    def value(self, number: int, size: int) -> tuple[bytes, int]:
        """A value of `size` bytes on overflow pages, and their number."""
        needed = (HEADER.size - 1 + size) // self._page_size + 1
        data = self.page(number, needed)
        found, _, flags, low, high = HEADER.unpack_from(data)
        count = low + (high << 16)
        if found != number or flags != OVERFLOW or count < needed:
            raise Damage(f"the head of page {number} is wrong")
        # A value that replaced a longer one in the same transaction keeps its pages.
        self._claim(number + needed, count - needed)
        return data[HEADER.size : HEADER.size + size], count

    def report(self, damage: Damage) -> None:
        """Tell of damage that leaves the rest readable."""
        self._found(damage)


class Walk:
    """One pass over a tree of a file, in the order of its keys."""

    def __init__(self, file: StoreFile, tree: Tree, flags: int):
        self._file = file
        self._tree = tree
        self._integers = flags == INTEGER_KEYS
        self._least: bytes | int = -1 if self._integers else b""
        """the next key must not be less"""
        self._last: bytes | int = self._least
        """the last key, than which the next one must be greater"""
        self._counts = {BRANCH: 0, LEAF: 0, OVERFLOW: 0}
        self._entries = 0
        self._whole = True

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of the tree."""
        tree = self._tree
        if tree.root != NO_ROOT:
            yield from self._visit(tree.root, 1)
        counted = (*self._counts.values(), self._entries)
        described = tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries
        empty = tree.root == NO_ROOT
        if self._whole and (counted != described or (empty and tree.depth != 0)):
            self._file.report(Damage("the numbers of pages and entries do not fit its content"))

    def _visit(self, number: int, depth: int) -> Iterator[tuple[bytes, bytes]]:
        """The entries below a page; a damaged page is reported, and the others are still read."""
        try:
            flags, nodes = self._nodes(number, depth)
        except Damage as damage:
            self._whole = False
            self._file.report(damage)
            return
        self._counts[flags] += 1
        for place, (key, node_flags, size, rest) in enumerate(nodes):
            if flags == BRANCH:
                # The first key of a branch stands for everything below the second.
                if place > 0:
                    self._least = self._in_order(number, key)
                yield from self._visit(size + (node_flags << 32), depth + 1)
                continue
            self._last = self._in_order(number, key)
            self._entries += 1
            try:
                value = self._value(number, node_flags, size, rest)
            except Damage as damage:
                self._whole = False
                self._file.report(damage)
            else:
                yield key, value

    def _nodes(self, number: int, depth: int) -> tuple[int, list[tuple[bytes, int, int, bytes]]]:
        """The flags of a page; its nodes: key, flags, size of the value, bytes after the key."""
        if depth > min(self._tree.depth, MAX_DEPTH):
            raise Damage(f"page {number} is deeper than the tree")
        page = self._file.page(number)
        found, _, flags, lower, upper = HEADER.unpack_from(page)
        kind = LEAF if depth == self._tree.depth else BRANCH
        if found != number or flags != kind:
            raise Damage(f"the head of page {number} is wrong")
        count = (lower - HEADER.size) // 2
        # LMDB ends the process if a branch has one child, except in the tree of free pages.
        least = 2 if kind == BRANCH and not self._integers else 1
        if not (lower >= HEADER.size and lower % 2 == 0 and lower <= upper <= len(page)):
            raise Damage(f"the room on page {number} is wrong")
        if count < least:
            raise Damage(f"page {number} has too few entries")
        nodes = []
        for place in struct.unpack_from(f"<{count}H", page, HEADER.size):
            if not upper <= place <= len(page) - NODE.size:
                raise Damage(f"an entry of page {number} lies outside of the page")
            low, high, node_flags, key_size = NODE.unpack_from(page, place)
            begin = place + NODE.size + key_size
            size = low + (high << 16)
            held = 0 if kind == BRANCH else (8 if node_flags & BIG_VALUE else size)
            if begin + held > len(page):
                raise Damage(f"an entry of page {number} is longer than the page")
            nodes.append(
                (page[place + NODE.size : begin], node_flags, size, page[begin : begin + held])
            )
        return flags, nodes

    def _value(self, number: int, flags: int, size: int, rest: bytes) -> bytes:
        if flags & ~BIG_VALUE:
            raise Damage(f"an entry of page {number} has wrong flags")
        if not flags:
            return rest
        value, pages = self._file.value(int.from_bytes(rest, "little"), size)
        self._counts[OVERFLOW] += pages
        return value

    def _in_order(self, number: int, key: bytes) -> bytes | int:
        """The key as a value to compare; reports one out of order, which LMDB would not find."""
        if len(key) != 8 if self._integers else not key:
            self._file.report(Damage(f"a key on page {number} has a wrong length"))
        mine = int.from_bytes(key, "little") if self._integers else key
        if not mine > self._last or mine < self._least:  # type: ignore[operator]
            self._file.report(Damage(f"the keys on page {number} are not in order"))
        return mine
