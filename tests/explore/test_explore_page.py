"""The page of explore in a browser: a newcomer's walk from a model to a recipe, what is found and what is missed, and
that everybody can use it."""

import subprocess
import sys
import threading

import pytest
import zoo
from browser import browser, page_of, violations

from fusebert.explore import Shown, make_server

SIZES = [(1280, 800), (390, 844)]


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def serve():
    """Serves the page for models; gives its address."""
    servers = []

    def start(*paths):
        server = make_server([Shown(path) for path in paths], 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def painted(page, mark):
    """How many nodes have a mark."""
    return page.evaluate("mark => [...panes[0].canvas.marks.values()].filter(one => one === mark).length", mark)


def test_a_walk_from_a_tensorflow_model_to_a_recipe_that_replaces_its_encoder(chromium, serve, tmp_path, run):
    model = zoo.get("tf-bert-sequence").make()
    with page_of(chromium, serve(model), accept_downloads=True) as page:
        tree = page.get_by_role("tree")
        tree.get_by_role("treeitem", name="Layer 1").click()
        tree.get_by_role("treeitem", name="Attention", exact=False).and_(page.locator(".attention")).click()
        assert tree.locator(".attention").first.get_attribute("aria-expanded") == "true"

        page.get_by_label("Search nodes").fill("query/BiasAdd")
        page.locator(".find").first.click()
        assert page.locator("#node-title").inner_text() == "ReadVariableOp"
        page.locator(".find").nth(1).click()
        assert page.locator("#node-title").inner_text() == "BiasAdd"
        assert "float32 [batch × length × 24]" in page.locator("#tab-node").inner_text()

        page.get_by_role("tab", name="Pattern").click()
        page.get_by_role("button", name="Suggest").click()
        page.get_by_text("nodes inside").wait_for()
        command = page.get_by_label("Command").inner_text()
        assert page.evaluate("panes[0].picking.picked.seeds.length") == 1
        assert painted(page, "inside") > 100

        page.get_by_role("button", name="Derive the recipe").click()
        assert 'op: "Bert"' in page.locator("#node-def").inner_text()
        for name in ("pattern.pb", "recipe.pb"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Download {name}").click()
            download.value.save_as(tmp_path / name)

    words = command.split()
    words[words.index("-o") + 1] = str(tmp_path / "again.pb")
    run(*words[1:])
    assert (tmp_path / "again.pb").read_bytes() == (tmp_path / "pattern.pb").read_bytes()
    run("replace-pattern", model, "-r", tmp_path / "recipe.pb", "-o", tmp_path / "modified")
    run("compare", model, tmp_path / "modified", "--samples", "2", "--sequence-length", "8")


def test_nodes_are_picked_in_the_drawing_and_what_is_missing_is_told(chromium, serve):
    with page_of(chromium, serve(zoo.get("tf1-frozen").make())) as page:
        page.get_by_role("tab", name="Pattern").click()
        at = page.evaluate("""() => {
            const { scene, canvas } = panes[0];
            const name = 'bert/encoder/layer_0/output/LayerNorm/batchnorm/add_1';
            const node = scene.all.findIndex((one) => one.name === name);
            scene.reveal(node); canvas.refresh(); canvas.centre(node);
            const box = scene.seen(node), place = canvas.canvas.getBoundingClientRect();
            return [place.x + (box.x + box.w / 2) * canvas.scale - canvas.left,
                    place.y + (box.y + box.h / 2) * canvas.scale - canvas.top];
        }""")
        page.mouse.click(*at)
        page.get_by_text("nodes inside").wait_for()
        assert painted(page, "seed") == 1
        page.get_by_label("Const", exact=True).uncheck()
        page.get_by_text("has no inputs and is not a barrier").wait_for()
        assert page.get_by_role("button", name="Derive the recipe").is_disabled()


def test_the_match_is_played_row_by_row_with_the_graph_before_and_after(chromium, serve):
    with page_of(chromium, serve(zoo.get("onnx-bert-14-eager").make())) as page:
        page.get_by_role("tab", name="Match").click()
        page.get_by_role("button", name="To the first row of recognise").click()
        told = page.locator("#tab-match").inner_text()
        assert "layer_norm" in told
        assert "epsilon" in told
        before, after = (page.locator("figure svg").nth(i).get_attribute("aria-label") for i in (0, 1))
        assert "mean" in before
        assert after == "After: layer_norm"
        assert painted(page, "current") > 3
        status = page.locator("#tab-match").get_by_role("status")
        row = int(status.inner_text().split()[1].replace(",", ""))
        page.get_by_role("button", name="Next row").click()
        assert status.inner_text().startswith(f"Row {row + 1} ")
        page.get_by_role("button", name="To the first row of match").click()
        assert "-norm attention" in page.locator("#tab-match").inner_text()
        page.get_by_role("button", name="Play the match").click()
        count = status.inner_text().split()[-1]
        page.get_by_text(f"Row {count} of {count}").wait_for()


def test_the_nearest_miss_is_painted_where_it_stopped_and_why(chromium, serve):
    model = zoo.get("refuse-gpt2").make()
    miss = Shown(model).source.finding.misses[0]
    with page_of(chromium, serve(model)) as page:
        page.get_by_role("tab", name="Match").click()
        page.locator(".miss").first.click()
        assert miss.found in page.locator("#tab-match").inner_text()
        assert painted(page, "miss") > 0


def test_weights_have_a_histogram_and_two_models_stand_side_by_side(chromium, serve):
    models = zoo.get("tf1-frozen").make(), zoo.get("onnx-bert-14-eager").make()
    with page_of(chromium, serve(*models)) as page:
        panes = page.locator(".pane")
        assert panes.count() == 2
        for i in (0, 1):  # both are drawn for the width that they have beside each other
            at = "panes[i].canvas.extent.w * panes[i].canvas.scale"
            assert page.evaluate(f"i => {at} <= panes[i].canvas.canvas.clientWidth", i)
        panes.nth(1).get_by_role("button", name="Fit all in").click()
        page.evaluate("panes[1].activate(panes[1])")
        page.get_by_label("Search nodes").fill("word_embeddings/Gather")
        page.locator(".find").first.click()
        page.get_by_role("img", name="Histogram of").wait_for()


@pytest.mark.parametrize(("width", "height"), SIZES, ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(chromium, serve, width, height, scheme):
    with page_of(chromium, serve(zoo.get("tf-bert-sequence").make()), width, height, scheme) as page:
        page.get_by_role("tree").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for tab in ("Node", "Match", "Pattern"):
            page.get_by_role("tab", name=tab).click()
            if tab == "Match":
                page.get_by_role("button", name="To the first row of match").click()
            if tab == "Pattern":
                page.get_by_role("button", name="Suggest").click()
                page.get_by_text("nodes inside").wait_for()
            assert violations(page) == []
        page.get_by_role("treeitem", name="Encoder").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.get_by_role("treeitem", name="Layer 1").get_attribute("aria-expanded") == "true"


def test_the_command_prints_what_the_page_shows(run):
    model = zoo.get("onnx-bert-14-eager").make()
    assert '"groups"' in run("explore", model, "--json")


def test_the_command_serves_until_it_is_interrupted():
    command = [sys.executable, "-m", "fusebert", "explore", str(zoo.get("onnx-bert-14-eager").make()), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert "explore: http://127.0.0.1:" in process.stderr.readline()
        process.send_signal(2)
        assert process.wait(20) == 130
