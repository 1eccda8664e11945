"""The web admin with gevent's patches and its code loaded, for the process of preloaded.py.

`pyqd.apps.admin` patches and imports in its `main`, so a fork of its module alone would still spend 1.5 s of CPU time.
"""

from gevent import monkey

monkey.patch_all()

# The program's modules must be imported after the patches.
import pyqd.apps.web_admin  # noqa: E402, F401
from pyqd.apps.admin import main as main  # noqa: E402
