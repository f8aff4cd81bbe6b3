"""Who visits the explorer in a browser, and what a test asks of the page."""

import base64
import time
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WITHOUT_GPU = [*FLAGS, "--disable-gpu"]
WITH_GPU = [*FLAGS, "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]  # which is emulated in software


class Visitor:
    """A page of the explorer in a browser, and what a test asks of it."""

    def __init__(self, context, address: str):
        self.context, self.address = context, address
        self.errors, self.requests = [], []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        context.on("request", lambda request: self.requests.append(request.url))

    def open(self, link: str = "") -> "Visitor":
        self.page.goto(self.address + link)
        self.wait("performance.getEntriesByName('first prediction').length > 0")
        return self

    def ask(self, expression: str, given=None):
        return self.page.evaluate(expression, given)

    def wait(self, condition: str, seconds: float = 120) -> None:
        """Polls, since the page allows no code made of text."""
        end = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < end, f"{condition}: {self.page.inner_text('body')[:1000]} {self.errors}"
            time.sleep(0.03)

    def settle(self) -> None:
        """Until every model has run on what the page shows."""
        self.wait("explorer.idle()")

    def state(self) -> dict:
        return self.ask("({...explorer.state(), mask: [...explorer.state().mask]})")

    def pixels(self, size: int) -> Tensor:
        """What a model of that size is shown now: (1, 3, size, size)."""
        return self.numbers("explorer.pixelsOf(given).data", size).view(1, 3, size, size)

    def numbers(self, expression: str, given=None) -> Tensor:
        """The numbers of a Float32Array that an expression (of `given`) has."""
        text = self.ask(
            f"""async (given) => {{
                const numbers = await ({expression});
                let text = "";
                for (const byte of new Uint8Array(numbers.slice().buffer)) text += String.fromCharCode(byte);
                return btoa(text);
            }}""",
            given,
        )
        return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.float32).copy())

    def cards(self) -> dict[str, str]:
        """What the cards say, by the names of the models."""
        found = self.page.query_selector_all(".card")
        return {card.get_attribute("data-model"): card.inner_text() for card in found}


def encoded(image, kind: str = "PNG", **options) -> str:
    """A PIL image as a file, in base64."""
    file = BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()
