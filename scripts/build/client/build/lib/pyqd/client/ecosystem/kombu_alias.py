"""Entry point that makes kombu know `pyqd://` URLs without an import in the user's program.

kombu has no entry points for transports. It loads those of its group `kombu.serializers` when it is imported, and
registers their values as serializers. This module's import adds the transport to kombu's table of URL schemes; its
value is the serializer that the group asks for, without functions, so that it changes nothing.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT: Final = "pyqd.client.kombu:Transport"
# Arguments of kombu.serialization.register after the name: encoder, decoder, content type, content encoding.
SERIALIZER: Final = (None, None, "application/x-pyqd", "utf-8")

TRANSPORT_ALIASES.setdefault("pyqd", TRANSPORT)
