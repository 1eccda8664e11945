"""Load generator and side-by-side benchmark: speaks only the wire, takes nothing from the pyqd package."""
