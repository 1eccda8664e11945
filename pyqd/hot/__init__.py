"""The compiled modules; sources in pyx/, C interfaces (.pxd) and types (.pyi) here."""
