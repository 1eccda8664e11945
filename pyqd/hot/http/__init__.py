"""Compiled modules of the layer `http`: interfaces (.pxd) and types (.pyi); sources in pyx/http/."""
