"""Compiled modules of the layer `broker`: interfaces (.pxd) and types (.pyi); sources in pyx/broker/."""
