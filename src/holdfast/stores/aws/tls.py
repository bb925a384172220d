"""How a service of AWS proves that it is one."""

from __future__ import annotations

import os
import ssl


def tls() -> ssl.SSLContext:
    """The certificates of this machine, or those that AWS_CA_BUNDLE names."""
    return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
