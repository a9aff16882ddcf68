"""One Chromium for all tests of a module."""

from contextlib import asynccontextmanager

import pytest

from common.browser import Browser
from common.errors import UsageError


@asynccontextmanager
async def one_browser(**options):
    """A Browser started with these options, closed at the end; skips where there is no Chromium."""
    try:
        browser = await Browser.start(**options)
    except UsageError as error:
        pytest.skip(str(error))
    yield browser
    await browser.close()
