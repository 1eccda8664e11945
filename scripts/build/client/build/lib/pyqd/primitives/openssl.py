"""pyOpenSSL, imported when the first certificate, connection or error of TLS needs it.

The import takes a tenth of the CPU time of the daemon's start and 10 MB of memory, and most daemons serve no TLS. A
server with TLS loads its certificates before it listens, so the import never holds a loop that serves.
"""

import importlib
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from OpenSSL import SSL as SSL
else:

    class _ImportedLater(types.ModuleType):
        """Module that is imported when its first attribute is read. Raises: ImportError then."""

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                # Looked for by tools that examine modules.
                raise AttributeError(name)
            module = importlib.import_module(self.__name__)
            vars(self).update(vars(module))
            return getattr(module, name)

    SSL = _ImportedLater("OpenSSL.SSL")
