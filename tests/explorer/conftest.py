"""The explorer in a headless Chromium: one browser for all tests."""

import os
import shutil
from threading import Thread

import pytest
from visitor import WITH_GPU, WITHOUT_GPU, Visitor

from torchvars.explorer import pack, serve
from torchvars.explorer.server import read_page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def launch():
    """(flags) -> a headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason='no playwright: pip install -e ".[web]"')
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's chromium, or say where it is by CHROMIUM=/path/to/it")
    with sync_api.sync_playwright() as playwright:
        browsers = []

        def launching(flags):
            browsers.append(playwright.chromium.launch(executable_path=CHROMIUM, args=flags))
            return browsers[-1]

        yield launching
        for browser in browsers:
            browser.close()


@pytest.fixture(scope="session")
def browser(launch):
    return launch(WITHOUT_GPU)


@pytest.fixture(scope="session")
def browser_with_gpu(launch, address):
    """A browser with WebGPU, emulated in software."""
    browser = launch(WITH_GPU)
    page = browser.new_page()
    page.goto(f"{address}models.json")  # WebGPU needs an address that is secure
    if not page.evaluate("navigator.gpu?.requestAdapter().then((adapter) => adapter !== null)"):
        pytest.skip("this Chromium has no WebGPU")
    page.close()
    return browser


@pytest.fixture(scope="session")
def address():
    """Of the page that ships."""
    yield from serving(read_page())


@pytest.fixture
def address_of():
    """(words for models) -> the address of a page with these models."""
    servers = []

    def addressed(*words):
        files = {name: content for name, content in read_page().items() if not name.startswith("models/")}
        servers.append(serving(files | pack([str(word) for word in words]).files))
        return next(servers[-1])

    yield addressed
    for server in servers:
        next(server, None)


def serving(files):
    """Yields the address of a server of these files, and stops it afterwards."""
    server = serve(files)
    Thread(target=server.serve_forever, daemon=True).start()
    yield "http://{}:{}/".format(*server.server_address)
    server.shutdown()
    server.server_close()


@pytest.fixture
def visit(browser):
    """(address, link, options of the browser) -> a visitor whose page shows predictions; it must have had no error."""
    visitors = []

    def visiting(address: str, link: str = "", within=browser, **options) -> Visitor:
        visitors.append(Visitor(within.new_context(**options), address))
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
