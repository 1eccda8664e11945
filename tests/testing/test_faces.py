"""The producers and consumers of pyqd.testing.MemoryBroker have the methods and parameters of the client's."""

from __future__ import annotations

import inspect

import pytest

import pyqd.client
import pyqd.client.aio
from pyqd.testing.memory.broker import MemoryBroker
from pyqd.testing.memory.consumers import AioMemoryConsumer, MemoryConsumer
from pyqd.testing.memory.producers import AioMemoryProducer, MemoryProducer

PAIRS = {
    "producer": (pyqd.client.Producer, MemoryProducer),
    "consumer": (pyqd.client.Consumer, MemoryConsumer),
    "asyncio producer": (pyqd.client.aio.Producer, AioMemoryProducer),
    "asyncio consumer": (pyqd.client.aio.Consumer, AioMemoryConsumer),
}
PROTOCOLS = ("__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__aiter__")
# Addresses, transport and lookup have no meaning in memory.
OF_CONNECTIONS = {"self", "nsqd", "lookupd", "settings", "topic", "channel"}


def public(kind: type) -> set[str]:
    return {
        name for name in dir(kind) if not name.startswith("_") or (name in PROTOCOLS and callable(getattr(kind, name)))
    }


@pytest.mark.parametrize("pair", PAIRS)
def test_no_method_is_missing(pair: str) -> None:
    real, fake = PAIRS[pair]
    assert sorted(public(real) - public(fake)) == []


@pytest.mark.parametrize(
    ("pair", "name"), [(pair, name) for pair, kinds in PAIRS.items() for name in sorted(public(kinds[0]))]
)
def test_a_method_takes_the_same_arguments_in_the_same_way(pair: str, name: str) -> None:
    real, fake = (getattr(kind, name) for kind in PAIRS[pair])
    assert callable(real) is callable(fake)
    if not callable(real):
        assert (real.fset is None) is (fake.fset is None)
        return
    assert shape(real) == shape(fake)
    assert inspect.iscoroutinefunction(real) is inspect.iscoroutinefunction(fake)
    assert inspect.isasyncgenfunction(real) is inspect.isasyncgenfunction(fake)


def shape(function: object) -> list[tuple[str, object]]:
    """Return names and kinds of parameters."""
    assert callable(function)
    return [(each.name, each.kind) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("face", ["consumer", "aio_consumer"])
def test_a_consumer_in_memory_takes_the_options_of_handling(face: str) -> None:
    real = set(inspect.signature(pyqd.client.Consumer).parameters) - OF_CONNECTIONS
    assert real <= set(inspect.signature(getattr(MemoryBroker, face)).parameters)
