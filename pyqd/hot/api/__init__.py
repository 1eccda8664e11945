"""Compiled modules of the layer `api`: interfaces (.pxd) and types (.pyi); sources in pyx/api/."""
