"""The explorer in a real browser: it computes what the package computes, and does what a visitor asks."""

import base64
import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from visitor import Visitor, encoded

import torchvars
from torchvars.evaluation.corruptions import STRENGTHS, corrupt
from torchvars.evaluation.generators import generators_of
from torchvars.explorer.server import PAGE
from torchvars.maps import find_maps, observe
from torchvars.models.pixels import centre_pixels, to_rgb

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

LISTED = json.loads((PAGE / "models.json").read_text())
SOFTMAX, VARS = LISTED["shown"]
OTHERS = [model["name"] for model in LISTED["models"] if model["name"] not in LISTED["shown"]]
CORRUPTIONS = list(json.loads((Path(__file__).parents[2] / "web/src/strengths.json").read_text())["imagenet"])
SAMPLE = PAGE / "samples" / "church.jpg"


def photograph(width, height):
    """A part of a sample, of that size; colours vary in it."""
    return Image.open(SAMPLE).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)


# What is computed


@pytest.mark.parametrize("name", [model["name"] for model in LISTED["models"]])
@pytest.mark.parametrize("query", [None, (17, 98)])
def test_logits_and_maps_are_those_of_pytorch(shared, name, query):
    classifier = torchvars.Classifier.from_pretrained(name)
    pixels = shared.pixels(112)
    ask = f"explorer.backends.run(explorer.modelOf('{name}'), explorer.pixelsOf(112), {json.dumps(query)})"
    logits = shared.numbers(f"(await {ask}).logits")
    seen = observe(classifier, pixels)
    torch.testing.assert_close(logits, seen.output[0], rtol=0, atol=1e-3)
    layers = next(model for model in LISTED["models"] if model["name"] == name)["maps"]["layers"]
    steps = max(count or 0 for count in layers.values())
    maps = shared.numbers(f"(await {ask}).maps").view(len(layers), steps + 1, 14, 14)
    for index, layer in enumerate(layers):
        for step in range(steps + 1):
            at = None if layers[layer] is None else step
            expected = find_maps(seen, layer=layer, step=at, query=query or "mean")[0]
            # Where an entry of the code is just at the threshold, rounding decides.
            torch.testing.assert_close(maps[index, step], expected, rtol=0, atol=0.02 * expected.max().item())
    if steps:
        found = shared.numbers(f"(await {ask}).sparsity").view(len(layers), -1)[:, -1]
        with torchvars.inspect(classifier) as inspected, torch.no_grad():
            classifier(pixels)
        expected = torch.tensor([layer.sparsity for layer in inspected.values()])
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


SIZES = [
    (320, 320),
    (112, 112),
    (500, 131),
    (97, 240),
    (100, 333),
    (333, 100),
    (60, 45),
    (128, 128),
    (112, 300),
    (1, 1),
]


@pytest.mark.parametrize(("size", "mode"), [*((size, "RGB") for size in SIZES), ((99, 77), "L"), ((99, 77), "P")])
def test_pixels_are_those_of_the_classifier(shared, size, mode):
    image = photograph(*size).convert(mode)
    for side in (112, 32):
        expected = centre_pixels(to_rgb(image), side)  # what `Classifier.transform` does
        found = shared.numbers(
            """explorer.readImage(new Blob([Uint8Array.from(atob(given[0]), (letter) => letter.charCodeAt(0))]), "x")
            .then((image) => explorer.centrePixels(image, given[1]).data)""",
            [encoded(image), side],
        )
        torch.testing.assert_close(found.view(3, side, side), expected, rtol=0, atol=1e-5)


def test_a_jpeg_is_read_as_in_python(shared):
    expected = torchvars.Classifier.from_pretrained(VARS).transform(Image.open(SAMPLE))
    text = base64.b64encode(SAMPLE.read_bytes()).decode()
    found = shared.numbers(
        """explorer.readImage(new Blob([Uint8Array.from(atob(given), (letter) => letter.charCodeAt(0))]), "x")
        .then((image) => explorer.centrePixels(image, 112).data)""",
        text,
    )
    torch.testing.assert_close(found.view(3, 112, 112), expected, rtol=0, atol=1.5 / 255)


def drawn(pixels, name, severity, table):
    """The numbers that PyTorch draws for a corruption of a picture called "a", in the order in which it draws them."""
    (generator,) = generators_of(["a"], name, severity, 0)
    shape = pixels.shape[1:]
    if name in ("gaussian_noise", "speckle_noise"):
        return [torch.randn(shape, generator=generator)]
    if name == "impulse_noise":
        return [torch.rand(shape, generator=generator)]
    if name == "shot_noise":
        return [torch.poisson(pixels[0] * STRENGTHS[table][name][severity - 1], generator=generator)]
    if name == "motion_blur":
        return [torch.rand((), generator=generator)]
    if name == "snow":
        return [torch.randn((1, *shape[1:]), generator=generator), torch.rand((), generator=generator)]
    if name == "fog":
        side = max(2, 1 << (max(shape[1:]) - 1).bit_length())
        return [torch.rand((side, side), generator=generator)]
    return []


@pytest.mark.parametrize("table", STRENGTHS)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_are_those_of_the_package_on_the_same_noise(shared, name, table):
    size = {"imagenet": (112, 112), "cifar": (32, 32)}[table]
    pixels = torch.from_numpy(np.array(photograph(*size))).movedim(-1, 0)[None].float() / 255
    pixels[..., :4, :4], pixels[..., 4:8, :4] = 0, 0.5  # black and grey have cases of their own
    for severity in range(1, 6):
        expected = corrupt(pixels, name, severity, ["a"], strengths=table)[0]
        given = {
            "pixels": pixels.flatten().tolist(),
            "size": size,
            "draws": [each.flatten().tolist() for each in drawn(pixels, name, severity, table)],
            "name": name,
            "severity": severity,
            "table": table,
        }
        found = shared.numbers(
            """(() => {
                const [height, width] = given.size;
                const next = () => Float32Array.from(given.draws.shift());
                const draws = { normal: next, uniform: next, poisson: next };
                const pixels = { data: Float32Array.from(given.pixels), height, width };
                return explorer.corrupt(pixels, given.name, given.severity, draws, given.table).data;
            })()""",
            given,
        ).view_as(expected)
        steps = ((found - expected).abs() * 255).round()
        assert steps.max() <= 1, (
            severity,
            steps.max(),
        )  # where a sum is between two of the 256 values, rounding decides
        assert (steps > 0).float().mean() < 0.005, (severity, (steps > 0).float().mean())
        assert (expected - pixels[0]).abs().mean() > 1e-3


def test_noise_of_the_page_has_the_distribution_it_should(shared):
    """Of its own generator: mean and variance, against those of the distribution."""
    grey = """explorer.corrupt({ data: new Float32Array(3 * 128 * 128).fill(0.5), height: 128, width: 128 }, given, 1,
        new explorer.Seeded(7)).data"""
    for name, deviation in (("gaussian_noise", 0.08), ("speckle_noise", 0.5 * 0.15), ("shot_noise", (0.5 / 60) ** 0.5)):
        found = shared.numbers(grey, name)
        assert found.mean().item() == pytest.approx(0.5, abs=4 * deviation / found.numel() ** 0.5 + 0.002)
        assert found.std().item() == pytest.approx(deviation, rel=0.03)
    found = shared.numbers(grey, "impulse_noise")
    assert (found == 0).float().mean().item() == pytest.approx(0.015, rel=0.15)
    assert (found == 1).float().mean().item() == pytest.approx(0.015, rel=0.15)


# What a visitor does


def test_the_page_loads_and_the_cards_say_what_the_models_say(visit, address):
    visitor = visit(address)
    assert list(visitor.cards()) == [SOFTMAX, VARS]
    for name, text in visitor.cards().items():
        classifier = torchvars.Classifier.from_pretrained(name)
        shares = classifier(visitor.pixels(112)).softmax(-1)[0]
        model = next(model for model in LISTED["models"] if model["name"] == name)
        best = model["classes"][shares.argmax()]
        assert re.search(rf"{best}\s+{100 * shares.max():.0f} %", text)
    assert "Sparse code:" in visitor.cards()[VARS]
    assert "No sparse code" in visitor.cards()[SOFTMAX]
    assert visitor.page.inner_text("#status").startswith("Softmax: parachute")


def test_a_slider_corrupts_and_zero_undoes_it(visit, address):
    visitor = visit(address)
    clean = visitor.pixels(112)
    before = visitor.cards()
    visitor.page.select_option("#corruption", "contrast")  # which turns it on
    visitor.settle()
    assert visitor.state()["severity"] == 3
    visitor.page.fill("#severity", "5")
    visitor.settle()
    expected = corrupt(clean, "contrast", 5, ["x"])
    torch.testing.assert_close(visitor.pixels(112), expected, rtol=0, atol=1.01 / 255)
    logits = torchvars.Classifier.from_pretrained(VARS)(visitor.pixels(112))[0]
    torch.testing.assert_close(visitor.numbers(f"explorer.outputOf('{VARS}').logits"), logits, rtol=0, atol=1e-3)
    visitor.page.fill("#severity", "0")
    visitor.settle()
    assert torch.equal(visitor.pixels(112), clean)
    assert [text.split("WebAssembly: ")[0] for text in visitor.cards().values()] == [
        text.split("WebAssembly: ")[0] for text in before.values()
    ]


def test_other_noise_is_other_noise_and_a_link_has_the_same(visit, address):
    visitor = visit(address, "#corruption=gaussian_noise&severity=2")
    first = visitor.pixels(112)
    visitor.page.click("#again")
    visitor.settle()
    second = visitor.pixels(112)
    assert not torch.equal(first, second)
    assert torch.equal(visit(address, "#" + visitor.page.url.partition("#")[2]).pixels(112), second)


def test_a_click_asks_a_position_and_escape_asks_all(visit, address):
    visitor = visit(address)
    everywhere = visitor.numbers(f"explorer.mapOf('{VARS}')")
    box = visitor.page.locator("#view").bounding_box()
    visitor.page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + 0.3 * box["height"])
    visitor.settle()
    down, right = visitor.state()["query"]
    assert (down, right) == (pytest.approx(0.3, abs=0.01), pytest.approx(0.8, abs=0.01))
    seen = observe(torchvars.Classifier.from_pretrained(VARS), visitor.pixels(112))
    expected = find_maps(seen, query=(int(down * 112), int(right * 112)))[0].flatten()
    found = visitor.numbers(f"explorer.mapOf('{VARS}')")
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.max().item())
    assert "from the selected position" in visitor.page.get_attribute(".card canvas", "aria-label")
    visitor.page.locator(".card canvas").first.click(position={"x": 3, "y": 3})
    visitor.settle()
    assert max(visitor.state()["query"]) < 0.1
    visitor.page.focus("#view")
    visitor.page.keyboard.press("ArrowDown")
    visitor.settle()
    assert visitor.state()["query"] == [pytest.approx(1.5 / 14, abs=1e-3), pytest.approx(0.5 / 14, abs=1e-3)]
    visitor.page.keyboard.press("Escape")
    visitor.settle()
    assert visitor.state()["query"] is None
    torch.testing.assert_close(visitor.numbers(f"explorer.mapOf('{VARS}')"), everywhere)


def test_the_brush_covers_and_uncovers_by_mouse_and_keyboard(visit, address):
    visitor = visit(address)
    clean = visitor.pixels(112)
    visitor.page.check("input[value=brush]", force=True)
    box = visitor.page.locator("#view").bounding_box()
    visitor.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.5 * box["height"])
    visitor.page.mouse.down()
    visitor.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=20)
    visitor.page.mouse.up()
    visitor.settle()
    covered = (visitor.pixels(112) == 0.5).all(1)[0]
    assert covered[56, 24:78].all()
    assert not covered[:40].any()
    assert torch.equal(visitor.pixels(112)[..., :40, :], clean[..., :40, :])
    logits = torchvars.Classifier.from_pretrained(VARS)(visitor.pixels(112))[0]
    torch.testing.assert_close(visitor.numbers(f"explorer.outputOf('{VARS}').logits"), logits, rtol=0, atol=1e-3)
    again = visit(address, "#" + visitor.page.url.partition("#")[2])
    assert torch.equal(again.pixels(112), visitor.pixels(112))
    visitor.page.check("input[value=erase]", force=True)
    visitor.page.focus("#view")
    before = sum(visitor.state()["mask"])
    visitor.page.keyboard.press(" ")
    visitor.settle()
    assert 0 < sum(visitor.state()["mask"]) < before
    visitor.page.click("#clear")
    visitor.settle()
    assert torch.equal(visitor.pixels(112), clean)


def test_layers_and_steps_are_those_of_the_sliders_and_play_goes_on(visit, address):
    visitor = visit(address, "#layer=2&step=1")
    assert visitor.page.inner_text("#layer-value") == "2 of 6"
    assert visitor.page.inner_text("#step-value") == "1 of 3"
    seen = observe(torchvars.Classifier.from_pretrained(VARS), visitor.pixels(112))
    expected = find_maps(seen, layer=1, step=1)[0].flatten()
    found = visitor.numbers(f"explorer.mapOf('{VARS}')")
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * expected.max().item())
    visitor.page.click("#play")
    visitor.wait("explorer.state().step === 2")
    visitor.wait("explorer.state().step === -1")
    visitor.wait("explorer.state().step === 0")
    visitor.page.click("#play")
    assert visitor.page.get_attribute("#play", "aria-pressed") == "false"


def test_models_come_and_go_and_one_stays(visit, address):
    visitor = visit(address)
    (other,) = OTHERS
    visitor.page.check(f"input[value='{other}']")
    visitor.settle()
    assert list(visitor.cards()) == [SOFTMAX, VARS, other]
    assert "%" in visitor.cards()[other]
    visitor.page.uncheck(f"input[value='{SOFTMAX}']")
    visitor.page.uncheck(f"input[value='{VARS}']")
    visitor.page.locator(f"input[value='{other}']").click()
    visitor.settle()
    assert list(visitor.cards()) == [other]


def test_a_link_that_is_wrong_or_cut_off_shows_what_it_can(visit, address):
    link = f"#models={VARS},nothing&image=moon&severity=9&corruption=__proto__&layer=x&query=2,3&mask=!!&step=1.5"
    visitor = visit(address, link)
    state = visitor.state()
    assert list(visitor.cards()) == [VARS]
    assert (state["severity"], state["layer"], state["query"], sum(state["mask"])) == (0, 0, None, 0)


def test_the_colour_scale_can_be_one_for_all(visit, address):
    visitor = visit(address)
    visitor.page.check("#shared")
    times = [float(re.search(r"([\d.]+) times the mean", text)[1]) for text in visitor.cards().values()]
    assert visitor.page.inner_text("#most") == f"{max(times):.1f} times the mean"


# Files


def chosen(name, content, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": content}


def test_a_picture_of_ones_own_by_the_dialog_and_by_dropping_it(visit, address):
    visitor = visit(address)
    image = photograph(150, 300).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    expected = torchvars.Classifier.from_pretrained(VARS).transform(image)[None]
    visitor.page.set_input_files("#file", chosen("mine.png", base64.b64decode(encoded(image))))
    visitor.wait("explorer.state().image === ''")
    visitor.settle()
    torch.testing.assert_close(visitor.pixels(112), expected, rtol=0, atol=1e-5)
    attack = Image.fromarray(np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8))
    visitor.ask(
        """(text) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "attack.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""",
        encoded(attack),
    )
    unchanged = torch.from_numpy(np.array(attack)).movedim(-1, 0)[None].float() / 255
    visitor.wait(f"explorer.pixelsOf(112).data[5] === Math.fround({unchanged[0, 0, 0, 5].item()})")
    visitor.settle()
    assert torch.equal(visitor.pixels(112), unchanged)
    visitor.page.click("#link")
    visitor.wait("document.getElementById('copied').textContent !== ''")
    assert "An image of your own is not part of the link" in visitor.page.inner_text("#copied")


def claimed(width, height):
    """A small PNG file that claims a size."""
    content = bytearray(base64.b64decode(encoded(photograph(2, 2))))
    content[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.png", b"", "empty.png is empty: choose an image"),
        ("text.png", b"hello " * 100, "text.png is not an image that this browser can read"),
        ("cut.png", base64.b64decode(encoded(photograph(64, 64)))[:200], "cut.png is not an image"),
        ("bomb.png", claimed(60000, 60000), "bomb.png is of 60000 x 60000 pixels: up to 64 million are read"),
    ],
    ids=["empty", "text", "cut off", "many pixels"],
)
def test_a_bad_file_is_an_error_that_says_what_to_do_and_changes_nothing(visit, address, name, content, told):
    visitor = visit(address)
    before, cards = visitor.pixels(112), visitor.cards()
    visitor.page.set_input_files("#file", chosen(name, content))
    visitor.wait("!document.getElementById('problem').hidden")
    assert told in visitor.page.inner_text("#problem")
    assert torch.equal(visitor.pixels(112), before)
    assert visitor.cards() == cards
    assert visitor.state()["image"] == "parachute"
    visitor.page.set_input_files("#file", chosen("good.png", base64.b64decode(encoded(photograph(64, 64)))))
    visitor.wait("document.getElementById('problem').hidden && explorer.state().image === ''")


def test_a_huge_file_is_not_read(visit, address):
    visitor = visit(address)
    visitor.ask(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(70 * 2 ** 20)], "huge.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    visitor.wait("!document.getElementById('problem').hidden")
    assert "huge.png has 70 MB: images up to 64 MB are read, make it smaller" in visitor.page.inner_text("#problem")


# Where it runs


def test_it_goes_on_without_a_network(visit, address):
    visitor = visit(address)
    visitor.wait("document.body.dataset.complete === 'true'")
    visitor.context.set_offline(True)
    count = len(visitor.requests)
    visitor.page.click("[data-sample=flower]")
    visitor.settle()
    visitor.page.fill("#severity", "4")
    visitor.page.check(f"input[value='{OTHERS[0]}']")
    visitor.settle()
    assert visitor.state()["image"] == "flower"
    assert all("%" in text for text in visitor.cards().values())
    assert len(visitor.cards()) == 3
    assert visitor.page.is_hidden("#problem")
    assert [url for url in visitor.requests[count:] if not url.startswith("blob:")] == []


def test_a_model_that_cannot_be_loaded_is_named(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/models/*", lambda route: route.fulfill(status=404))
    page.goto(address)
    page.wait_for_selector("#problem:not([hidden])", timeout=60_000)
    assert re.search(r"models/\S+ could not be loaded \(status 404\)", page.inner_text("#problem"))
    context.close()


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_and_is_read_in_light_and_dark(visit, address, width, scheme):
    visitor = visit(address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert visitor.ask("document.documentElement.scrollWidth") <= width
    contrasts = visitor.ask(
        """() => {
            const canvas = new OffscreenCanvas(1, 1), context = canvas.getContext("2d", { willReadFrequently: true });
            const colour = (text) => {
                context.clearRect(0, 0, 1, 1);
                context.fillStyle = text;
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data];
            };
            const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
                .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
            const behind = (node) => { for (; node; node = node.parentElement) {
                const found = colour(getComputedStyle(node).backgroundColor); if (found[3] === 255) return found; }
                return [255, 255, 255]; };
            const found = [];
            for (const node of document.querySelectorAll("h1, h2, h3, p, label, button, a, output, li span")) {
                if (!node.innerText?.trim() || node.disabled || !node.checkVisibility()) continue;
                const [a, b] = [light(colour(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
                found.push([(a + 0.05) / (b + 0.05), node.innerText.slice(0, 40)]);
            }
            return found;
        }"""
    )
    assert len(contrasts) > 40
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(visit, address):
    visitor = visit(address, "#severity=1&query=0.5,0.5")
    unnamed = visitor.ask(
        """() => [...document.querySelectorAll("input, select, button, canvas:not([aria-hidden] canvas), img")]
            .filter((node) => !node.labels?.length && !node.getAttribute("aria-label") && !node.alt)
            .filter((node) => !node.innerText?.trim() && !node.querySelector("img[alt]") && node.id !== "scale")
            .map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    reached = set()
    for _ in range(60):
        visitor.page.keyboard.press("Tab")
        reached.add(visitor.ask("document.activeElement.id || document.activeElement.dataset.sample || ''"))
    assert {
        "view",
        "mean",
        "church",
        "file",
        "corruption",
        "severity",
        "again",
        "layer",
        "step",
        "play",
        "backend",
        "link",
    } <= reached
    assert visitor.page.get_attribute("#status", "role") == "status"
    assert visitor.page.get_attribute("#problem", "role") == "alert"


# Models of one's own

SMALL = {"img_size": 32, "patch_size": 8, "num_classes": 3, "widths": (8,), "heads": (2,), "depths": (1,)}


def assert_output_is_that_of(visitor, name, classifier, size, choice="auto"):
    """Logits and maps, of all positions and of one."""
    pixels = visitor.pixels(size)
    for query in (None, (size // 3, size // 2)):
        given = f"explorer.modelOf('{name}'), explorer.pixelsOf({size}), {json.dumps(query)}, '{choice}'"
        run = f"explorer.backends.run({given})"
        seen = observe(classifier, pixels)
        torch.testing.assert_close(visitor.numbers(f"(await {run}).logits"), seen.output[0], rtol=0, atol=1e-3)
        expected = find_maps(seen, query=query or "mean")[0]
        maps = visitor.numbers(f"(await {run}).maps").view(-1, *expected.shape)
        torch.testing.assert_close(maps[-1], expected, rtol=0, atol=0.02 * expected.max().item())


def test_models_without_a_common_derivative_are_compared_by_energy(visit, address_of, tmp_path):
    model = torchvars.create("rvt_micro_vars_d", **SMALL)
    model.blocks[0].attn.solver = torchvars.sparse.SpaRSA(2)
    torchvars.Classifier(model).save_pretrained(tmp_path / "mine")
    visitor = visit(address_of(tmp_path / "mine"))
    assert list(visitor.cards()) == ["mine"]
    assert 'kind "energy"' in visitor.page.inner_text("#kind")
    classifier = torchvars.Classifier.from_pretrained(tmp_path / "mine")
    expected = find_maps(observe(classifier, visitor.pixels(32)), "energy")[0].flatten()
    torch.testing.assert_close(visitor.numbers("explorer.mapOf('mine')"), expected, rtol=1e-3, atol=1e-5)
    visitor.page.locator("#view").click()
    assert visitor.state()["query"] is None


def test_a_converted_model_beside_its_original(visit, address_of, tmp_path):
    """The folders that `torchvars convert` writes."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=1000).eval()
    torchvars.Classifier(model).save_pretrained(tmp_path / "run" / "original")
    torchvars.Classifier(torchvars.convert(model, "vars_p")).save_pretrained(tmp_path / "run" / "weights")
    visitor = visit(address_of(tmp_path / "run" / "original", tmp_path / "run" / "weights"))
    assert list(visitor.cards()) == ["original", "run"]
    assert 'kind "implicit"' in visitor.page.inner_text("#kind")
    assert visitor.page.inner_text("#step-value") == "3 of 3"
    for name, folder in (("original", "original"), ("run", "weights")):
        classifier = torchvars.Classifier.from_pretrained(tmp_path / "run" / folder)
        assert_output_is_that_of(visitor, name, classifier, 160)


def test_the_command_exports_serves_and_stops(visit):
    command = [sys.executable, "-u", "-m", "torchvars", "explore", VARS, "--no-browser"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:
        try:
            address = None
            for line in process.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                    address = found[0]
                    break
            visitor = visit(address)
            assert list(visitor.cards()) == [VARS]
            logits = torchvars.Classifier.from_pretrained(VARS)(visitor.pixels(112))[0]
            found = visitor.numbers(f"explorer.outputOf('{VARS}').logits")
            torch.testing.assert_close(found, logits, rtol=0, atol=1e-3)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


# WebGPU


@pytest.fixture
def two_small(tmp_path):
    """Folders of two small models, of softmax and of VARS-SD."""
    for name in ("softmax", "vars_sd"):
        torch.manual_seed(0)
        torchvars.Classifier(torchvars.create(f"rvt_micro_{name}", **SMALL)).save_pretrained(tmp_path / name)
    return tmp_path / "softmax", tmp_path / "vars_sd"


def test_webgpu_computes_what_pytorch_computes(visit, browser_with_gpu, address_of, two_small):
    visitor = visit(address_of(*two_small), "#backend=webgpu", within=browser_with_gpu)
    assert visitor.page.input_value("#backend") == "webgpu"
    assert visitor.page.inner_text("#backend-note").startswith("GPU: ")
    for folder in two_small:
        assert re.search(r"WebGPU: \d+ ms", visitor.cards()[folder.name])
        assert_output_is_that_of(visitor, folder.name, torchvars.Classifier.from_pretrained(folder), 32, "webgpu")
    visitor.page.select_option("#backend", "wasm")
    visitor.settle()
    assert all(re.search(r"WebAssembly: \d+ ms", text) for text in visitor.cards().values())
    assert "backend=wasm" in visitor.page.url


def test_a_model_of_the_page_on_webgpu(visit, browser_with_gpu, address):
    visitor = visit(address, f"#backend=webgpu&models={SOFTMAX}", within=browser_with_gpu)
    assert "WebGPU: " in visitor.cards()[SOFTMAX]
    logits = torchvars.Classifier.from_pretrained(SOFTMAX)(visitor.pixels(112))[0]
    torch.testing.assert_close(visitor.numbers(f"explorer.outputOf('{SOFTMAX}').logits"), logits, rtol=0, atol=1e-3)


def test_a_gpu_in_software_is_not_chosen_by_itself(visit, browser_with_gpu, address):
    visitor = visit(address, within=browser_with_gpu)
    visitor.wait("document.body.dataset.measured === 'true'")
    assert all("WebAssembly: " in text for text in visitor.cards().values())
    assert not any("webgpu" in url for url in visitor.requests)


PRETENDS = "Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false })"


@pytest.mark.parametrize(("seconds", "chosen"), [(1, "WebAssembly"), (1e6, "WebGPU")])
def test_a_gpu_is_chosen_for_the_models_that_it_runs_faster(browser_with_gpu, address_of, two_small, seconds, chosen):
    """The one here is slower, but WebAssembly is told that its seconds are longer."""
    visitor = Visitor(browser_with_gpu.new_context(), address_of(*two_small))
    visitor.page.add_init_script(PRETENDS)
    clock = f"performance.now = ((now) => () => {seconds} * now())(performance.now.bind(performance));"
    worker = (PAGE / "assets" / "worker_wasm.js").read_text()
    visitor.page.route(
        "**/worker_wasm.js", lambda route: route.fulfill(body=clock + worker, content_type="text/javascript")
    )
    visitor.open()
    visitor.wait("document.body.dataset.measured === 'true'")
    visitor.page.fill("#severity", "2")
    visitor.settle()
    assert all(f"{chosen}: " in text for text in visitor.cards().values())
    visitor.context.close()


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("delete Navigator.prototype.gpu", "No WebGPU: this browser offers none."),
        ("delete WebAssembly.Suspending", "No WebGPU: this browser's WebAssembly cannot wait for it"),
        (None, "could not be loaded (status 404)"),
    ],
    ids=["no GPU", "no JSPI", "no runtime"],
)
def test_where_webgpu_fails_webassembly_runs(browser_with_gpu, address, script, note):
    visitor = Visitor(browser_with_gpu.new_context(), address)
    if script is None:
        visitor.page.route("**/*.br", lambda route: route.fulfill(status=404))
    else:
        visitor.page.add_init_script(script)
    visitor.open("#backend=webgpu")
    assert note in visitor.page.inner_text("#backend-note")
    assert all("WebAssembly: " in text for text in visitor.cards().values())
    assert visitor.page.is_hidden("#problem")
    visitor.context.close()
