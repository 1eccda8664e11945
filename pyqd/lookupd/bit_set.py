"""Set of small whole numbers, a bit for each.

A lookup daemon has up to nodes x topics x channels registrations: 3 million with 1,000 nodes, 1,000 topics and 2
channels. A set of Python takes 32 to 70 bytes for an entry, this one an eighth of a byte for each number up to the
highest.
"""

from collections.abc import Iterator

# BitSet that are set, by the value of a byte.
_BITS_OF = [tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256)]


class BitSet:
    """Set of whole numbers from 0. Numbers are given out from the lowest free one, so that the highest stays low."""

    __slots__ = ("_bytes", "count")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bytes) and self._bytes[place] >> (number & 7) & 1 == 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for place, byte in enumerate(self._bytes):
            if byte:
                for bit in _BITS_OF[byte]:
                    yield 8 * place + bit

    def add(self, number: int) -> bool:
        """Add a number. Returns: whether it is new."""
        place, mask = number >> 3, 1 << (number & 7)
        missing = place + 1 - len(self._bytes)
        if missing > 0:
            self._bytes.extend(bytes(missing))
        elif self._bytes[place] & mask:
            return False
        self._bytes[place] |= mask
        self.count += 1
        return True

    def discard(self, number: int) -> bool:
        """Remove a number. Returns: whether it was there."""
        if number not in self:
            return False
        self._bytes[number >> 3] &= ~(1 << (number & 7))
        self.count -= 1
        assert self.count >= 0
        return True
