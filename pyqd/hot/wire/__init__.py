"""Compiled modules of the layer `wire`: interfaces (.pxd) and types (.pyi); sources in pyx/wire/."""
