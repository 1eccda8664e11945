"""Tests of pyqd.debug.diagnostics."""

import weakref

from pyqd.debug.diagnostics import greenlets_text


class Referent:
    pass


def test_stacks_are_shown_although_a_weak_proxy_has_lost_its_object():
    proxy = weakref.proxy(Referent())
    assert " greenlets\n" in greenlets_text([], lambda: None)
    assert isinstance(proxy, weakref.ProxyType)
