"""The explorer in a headless Chromium: one browser for all tests."""

import os
import shutil
from threading import Thread

import pytest
from visitor import FLAGS, Visitor

from torchvars.explorer import serve
from torchvars.explorer.server import read_page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason='no playwright: pip install -e ".[web]"')
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's chromium, or say where it is by CHROMIUM=/path/to/it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address():
    """Of the page that ships."""
    server = serve(read_page())
    Thread(target=server.serve_forever, daemon=True).start()
    yield "http://{}:{}/".format(*server.server_address)
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(browser):
    """(address, link, options of the browser) -> a visitor whose page has answered; it must have had no error."""
    visitors = []

    def visiting(address: str, link: str = "", **options) -> Visitor:
        visitors.append(Visitor(browser.new_context(**options), address))
        return visitors[-1].open(link)

    yield visiting
    for visitor in visitors:
        visitor.context.close()
        assert visitor.errors == []
        assert all(url.startswith((visitor.address, "blob:", "data:")) for url in visitor.requests), visitor.requests


@pytest.fixture(scope="module")
def shared(browser, address):
    """One page for tests that only compute in it."""
    visitor = Visitor(browser.new_context(), address).open()
    yield visitor
    visitor.context.close()
