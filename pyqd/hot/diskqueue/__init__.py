"""Compiled modules of the layer `diskqueue`: interfaces (.pxd) and types (.pyi); sources in pyx/diskqueue/."""
