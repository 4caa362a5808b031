"""Keep credentials of index addresses out of everything that is shown, logged or stored."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]*)")
_HIDDEN = "***"
_SHORTEST = 4  # characters of a password that is hidden wherever it stands; shorter ones are in every text


class Redactor:
    """Filter that hides user names, passwords and queries of addresses of any scheme, `file` included.

    What stands before the last `@` counts as credentials, although a path may have an `@`: an
    address that is shown less well does no harm.  A query may be a token, so it is hidden too.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        """Take the configured addresses, whose credentials are hidden also where they stand alone."""
        secrets = {secret for address in addresses for secret in _secrets(address)}
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return `text` without credentials."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return _ADDRESS.sub(_without_credentials, text)


def _without_credentials(found: re.Match[str]) -> str:
    address, mark, _ = found["rest"].partition("?")
    _, at, host = address.rpartition("@")
    return f"{found['scheme']}{f'{_HIDDEN}@' if at else ''}{host}{f'?{_HIDDEN}' if mark else ''}"


def _secrets(address: str) -> Iterator[str]:
    user_info, at, _ = address.partition("://")[2].rpartition("@")
    if not at:
        return
    _, _, password = user_info.partition(":")
    for secret in (user_info, password):
        for form in (secret, unquote(secret)):
            if len(form) >= _SHORTEST:
                yield form
