"""Imports follow the table of layers, without cycles, and greenlets stay above."""

from pathlib import Path

import pytest

from tests.meta import layers
from tests.meta.repository import ROOT, own_files_of, relative

SUFFIXES = (".py", ".pyx", ".pxd")


def package_sources() -> list[Path]:
    return [path for path in own_files_of(*SUFFIXES) if path.relative_to(ROOT).parts[0] in ("pyqd", "pyx", "spark")]


def is_forbidden(importer: str, imported: str) -> bool:
    """Return True if the table of layers forbids a module, by its dotted name, to import another."""
    upper, lower = layers.layer_of(importer), layers.layer_of(imported)
    if upper is None or lower is None:
        return False
    if upper in layers.FOUNDATIONS:
        return lower not in (upper, *layers.FOUNDATIONS[upper])
    return layers.LAYERS.index(lower) > layers.LAYERS.index(upper)


def test_every_module_lies_in_a_layer() -> None:
    names = {layers.module_name(path, ROOT) for path in package_sources()}
    assert sorted(name for name in names - {"pyqd", "pyqd.hot"} if layers.layer_of(name) is None) == []


@pytest.mark.slow
def test_a_module_imports_only_from_layers_that_its_own_may_use() -> None:
    forbidden = [
        f"{relative(path)}:{found.line} imports {found.name}"
        for path in package_sources()
        for found in layers.imports_of(path, ROOT)
        if is_forbidden(layers.module_name(path, ROOT), found.name)
    ]
    assert forbidden == []


def test_the_package_itself_and_the_compiled_ones_import_no_layer() -> None:
    packages = [path for path in package_sources() if layers.module_name(path, ROOT) in ("pyqd", "pyqd.hot")]
    imported = [found.name for path in packages for found in layers.imports_of(path, ROOT)]
    assert [name for name in imported if name.startswith("pyqd.")] == []


def test_no_import_cycles_those_for_types_included() -> None:
    sources = package_sources()
    modules = {layers.module_name(path, ROOT) for path in sources}
    graph: dict[str, set[str]] = {}
    for path in sources:
        name = layers.module_name(path, ROOT)
        targets = {
            layers.resolve(found.name, modules)
            for found in layers.imports_of(path, ROOT)
            if not (found.typing_only and layers.layer_of(name) in layers.LAYERS_WITH_CYCLES_OF_TYPES)
        }
        graph.setdefault(name, set()).update(target for target in targets if target not in (None, "pyqd", name))
    assert layers.find_cycle(graph) == []


def test_greenlets_switch_only_from_the_connections_upwards() -> None:
    lowest = layers.LAYERS.index(layers.LOWEST_LAYER_OF_GEVENT)
    wrong = []
    for path in package_sources():
        layer = layers.layer_of(layers.module_name(path, ROOT))
        if layer is not None and layers.LAYERS.index(layer) >= lowest:
            continue
        wrong += [
            f"{relative(path)}:{found.line} imports {found.name}"
            for found in layers.imports_of(path, ROOT)
            if found.name.split(".")[0] in layers.SWITCHING_PACKAGES
        ]
    assert wrong == []


def test_the_spark_source_imports_only_the_modules_of_the_wire_format() -> None:
    sources = [path for path in own_files_of(".py") if path.relative_to(ROOT).parts[0] == "spark"]
    wrong = [
        f"{relative(path)}:{found.line} imports {found.name}"
        for path in sources
        for found in layers.imports_of(path, ROOT)
        if found.name.startswith("pyqd.") and layers.layer_of(found.name) not in layers.LAYERS_OF_SPARK
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "imported", "forbidden"),
    [
        ("pyqd.hot.primitives.heap", "pyqd.hot.wire.scanner", True),
        ("pyqd.hot.wire.scanner", "pyqd.hot.primitives.heap", False),
        ("pyqd.broker.topic", "pyqd.hot.tcp.output.ClientOutput", True),
        ("pyqd.apps.daemon", "pyqd.http.server.serve", False),
        ("pyqd.wire", "pyqd.__version__", False),
        ("pyqd.net.listener", "pyqd.config.options.Options", True),
        ("pyqd.http.router", "pyqd.hot.broker.topic.TopicCore", True),
        ("pyqd.http.server", "pyqd.net.listener.Listener", False),
        ("pyqd.http.server", "pyqd_spark.source", True),
    ],
)
def test_a_forbidden_import_is_noticed(importer: str, imported: str, forbidden: bool) -> None:
    assert is_forbidden(importer, imported) is forbidden


def test_imports_are_read_from_cython_source() -> None:
    source = (
        "from pyqd.hot.primitives.heap cimport (\n    Entry,\n    Heap,  # both\n)\n"
        "cimport pyqd.hot.diskqueue.log, cython\nimport gevent as g\n"
    )
    names = [found.name for found in layers.cython_imports(source)]
    assert names == [
        "pyqd.hot.primitives.heap.Entry",
        "pyqd.hot.primitives.heap.Heap",
        "pyqd.hot.diskqueue.log",
        "cython",
        "gevent",
    ]


def test_imports_are_read_from_python_source() -> None:
    source = "from . import a\nfrom ..hot.primitives.heap import Heap\ndef f():\n    import gevent.lock\n"
    names = [found.name for found in layers.python_imports(source, "pyqd.broker")]
    assert sorted(names) == ["gevent.lock", "pyqd.broker.a", "pyqd.hot.primitives.heap.Heap"]


def test_a_cycle_is_found() -> None:
    assert layers.find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
