"""Compiled modules of the layer `net`: interfaces (.pxd) and types (.pyi); sources in pyx/net/."""
