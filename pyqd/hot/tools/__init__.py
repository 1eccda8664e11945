"""Compiled modules of the layer `tools`: interfaces (.pxd) and types (.pyi); sources in pyx/tools/."""
