"""The fixtures of the page's tests, for the blocks that features add."""

from tests.views.page.conftest import browser as browser
from tests.views.page.conftest import opened as opened
from tests.views.page.conftest import tabs as tabs
