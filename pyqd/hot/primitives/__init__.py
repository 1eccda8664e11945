"""Compiled modules of the layer `primitives`: interfaces (.pxd) and types (.pyi); sources in pyx/primitives/."""
