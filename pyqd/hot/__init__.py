"""The compiled modules, one package per layer; sources in pyx/, C interfaces (.pxd) and types (.pyi) here."""
