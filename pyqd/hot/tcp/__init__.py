"""Compiled modules of the layer `tcp`: interfaces (.pxd) and types (.pyi); sources in pyx/tcp/."""
