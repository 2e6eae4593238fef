"""Whatever is written appears whole or not at all, and what is there is replaced only if it is of the same kind and the
caller says so: files, folders, and every command that writes."""

import os
from pathlib import Path

import onnx
import pytest
import stock
import zoo

import fusebert
from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.onnx import edit as onnx_write
from fusebert.measure.compare import compare

EAGER = "onnx-bert-14-eager"


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def write_file(path: Path, text: str = "new", replaces: write.Kind | None = None) -> None:
    with write.file(path, replaces) as file:
        file.write(text.encode())


def write_folder(path: Path, text: str = "new", replaces: write.Kind | None = None) -> None:
    with write.folder(path, replaces) as folder:
        (folder / "inside").write_text(text)


WRITERS = [write_file, write_folder]


@pytest.mark.parametrize("make", WRITERS)
def test_something_new_appears_with_the_usual_permissions_and_nothing_beside_it(make, tmp_path):
    make(tmp_path / "deep" / "thing")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["thing"]
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual" / "file").write_text("")
    for made, usual in (("deep", "usual"), ("deep/thing", "usual/file" if make is write_file else "usual")):
        assert (tmp_path / made).stat().st_mode == (tmp_path / usual).stat().st_mode


@pytest.mark.parametrize("make", WRITERS)
@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("bug"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_nothing(make, error, tmp_path):
    opened = write.file if make is write_file else write.folder
    with pytest.raises(FusebertError if isinstance(error, OSError) else type(error)), opened(tmp_path / "thing"):
        raise error
    assert not contents(tmp_path)


@pytest.mark.parametrize("make", WRITERS)
def test_what_is_there_stays_without_leave(make, tmp_path):
    make(tmp_path / "thing", "old")
    before = contents(tmp_path)
    with pytest.raises(FusebertError, match="exists"):
        make(tmp_path / "thing")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("make", WRITERS)
@pytest.mark.parametrize("there", WRITERS)
def test_what_appears_while_we_write_stays(make, there, tmp_path):
    opened = write.file if make is write_file else write.folder
    writing = opened(tmp_path / "thing")
    writing.__enter__()
    there(tmp_path / "thing", "appeared")
    with pytest.raises(FusebertError, match="exists"):
        writing.__exit__(None, None, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing"]
    assert b"appeared" in contents(tmp_path).values()


@pytest.mark.parametrize("make", WRITERS)
def test_what_appears_between_the_last_look_and_the_move_stays(make, tmp_path, monkeypatch):
    move = write._move

    def late(made, path, over):
        make_there(tmp_path / "thing")
        move(made, path, over)

    def make_there(path):
        path.write_text("appeared") if make is write_file else (path.mkdir(), (path / "inside").write_text("appeared"))

    monkeypatch.setattr(write, "_move", late)
    with pytest.raises(FusebertError, match="cannot be written"):
        make(tmp_path / "thing")
    assert b"appeared" in contents(tmp_path).values()
    assert b"new" not in contents(tmp_path).values()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing"]


def test_a_file_system_without_links_is_written_to_as_well(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_file(tmp_path / "thing")
    with pytest.raises(FusebertError, match="exists"):
        write_file(tmp_path / "thing")
    write_file(tmp_path / "thing", "newer", lambda _: True)
    assert contents(tmp_path) == {"thing": b"newer"}


@pytest.mark.parametrize("make", WRITERS)
def test_only_what_is_of_the_kind_is_replaced_and_what_is_empty(make, tmp_path):
    make(tmp_path / "thing", "old")
    seen = []
    with pytest.raises(FusebertError, match="of another kind, which is never replaced"):
        make(tmp_path / "thing", "new", lambda path: bool(seen.append(path)))
    assert seen == [tmp_path / "thing"]
    make(tmp_path / "thing", "new", lambda _: True)
    assert b"new" in contents(tmp_path).values()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing"]
    (tmp_path / "empty").mkdir() if make is write_folder else (tmp_path / "empty").touch()
    make(tmp_path / "empty", "new", lambda _: False)


@pytest.mark.parametrize("make", WRITERS)
@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_a_move_that_fails_leaves_the_old_one(make, error, tmp_path, monkeypatch):
    make(tmp_path / "thing", "old")
    before, rename = contents(tmp_path), Path.rename

    def fail(self, target):
        if self.name == target.name == "thing":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(FusebertError if isinstance(error, OSError) else KeyboardInterrupt):
        make(tmp_path / "thing", "new", lambda _: True)
    assert contents(tmp_path) == before


def test_an_old_folder_that_cannot_be_put_back_is_kept_and_named(tmp_path, monkeypatch):
    write_folder(tmp_path / "thing", "old")
    rename = Path.rename

    def fail(self, target):
        if target == tmp_path / "thing":
            raise OSError(5, "broken", str(self), None, str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(FusebertError, match=r"thing\.replaced"):
        write_folder(tmp_path / "thing", "new", lambda _: True)
    assert b"old" in contents(tmp_path).values()


def test_of_several_places_all_are_taken_back(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    before, rename = contents(tmp_path), Path.rename

    def fail(self, target):
        if self.name == target.name == "b":
            raise OSError("no")
        return rename(self, target)

    with write.beside(tmp_path / "a") as folder:
        for name in ("a", "b"):
            (folder / name).write_text("new")
        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="no"):
            write.put({folder / name: tmp_path / name for name in ("a", "b")}, lambda _: True)
    assert contents(tmp_path) == before


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file(tmp_path / "link", "new", lambda _: True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_link_to_a_folder_is_replaced_and_the_folder_stays(tmp_path):
    write_folder(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_folder(tmp_path / "link", "new", lambda _: True)
    assert not (tmp_path / "link").is_symlink()
    assert contents(tmp_path) == {"real": None, "real/inside": b"old", "link": None, "link/inside": b"new"}


# Commands


def test_optimize_never_replaces_a_folder_or_file_of_something_else(run, tmp_path):
    source = zoo.get(EAGER).make()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "photo.jpg").write_text("mine")
    (tmp_path / "notes.txt").write_text("\nmine")
    before = contents(tmp_path)
    for target in ("onnxruntime", "stock-onnxruntime", "standalone"):
        for name in ("precious", "notes.txt"):
            words = ("optimize", source, "-o", tmp_path / name, "--for", target, "--precision", "fp32")
            assert "exists" in run(*words, code=2)
            assert "never replaced" in run(*words, "--overwrite", code=2)
    frozen = zoo.get("tf1-frozen").make()
    for name in ("precious", "notes.txt"):
        assert "never replaced" in run("optimize", frozen, "-o", tmp_path / name, "--overwrite", code=2)
    assert contents(tmp_path) == before


def test_optimize_replaces_a_model_of_the_same_kind_when_asked(run, tmp_path):
    source, frozen, saved = (zoo.get(name).make() for name in (EAGER, "tf1-frozen", "tf-bert"))
    for path, out in ((source, "m.onnx"), (frozen, "m.pb"), (saved, "m"), (saved, "graph.pb"), (source, "artifact")):
        words = ("optimize", path, "-o", tmp_path / out, "--precision", "fp32", "--no-verify")
        run(*words)
        before = contents(tmp_path)
        assert "exists" in run(*words, code=2)
        run(*words, "--overwrite")
        assert contents(tmp_path).keys() == before.keys()
    assert "never replaced" in run(
        "optimize", source, "-o", tmp_path / "m.pb", "--for", "onnxruntime", "--overwrite", code=2
    )
    assert "never replaced" in run("optimize", frozen, "-o", tmp_path / "m.onnx", "--overwrite", code=2)
    assert "never replaced" in run("optimize", saved, "-o", tmp_path / "artifact", "--overwrite", code=2)


def test_a_failing_rename_keeps_the_old_saved_model(tmp_path, monkeypatch):
    source = zoo.get("tf-bert").make()
    fusebert.optimize(source, tmp_path / "out", "fp32", verify=False)
    before, rename = contents(tmp_path), Path.rename

    def fail(self, target):
        if self.name == "out" and target == tmp_path / "out":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(FusebertError, match="cannot be written"):
        fusebert.optimize(source, tmp_path / "out", "bf16", verify=False, overwrite=True)
    assert contents(tmp_path) == before


def test_weights_beside_an_onnx_file_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_write, "_LARGEST", 1000)
    source = zoo.get(EAGER).make()
    (tmp_path / "m.onnx.data").write_text("mine")
    with pytest.raises(FusebertError, match="exists"):
        fusebert.optimize(source, tmp_path / "m.onnx", "fp32", verify=False)
    assert contents(tmp_path) == {"m.onnx.data": b"mine"}
    with pytest.raises(FusebertError, match="never replaced"):
        fusebert.optimize(source, tmp_path / "m.onnx", "fp32", verify=False, overwrite=True)
    (tmp_path / "m.onnx.data").unlink()
    fusebert.optimize(source, tmp_path / "m.onnx", "fp32", verify=False)
    before, rename = contents(tmp_path), Path.rename
    assert len(before) == 2

    def fail(self, target):
        if self.name == target.name == "m.onnx" and target.parent == tmp_path:
            raise OSError("no")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(FusebertError):
            fusebert.optimize(source, tmp_path / "m.onnx", "bf16", verify=False, overwrite=True)
    assert contents(tmp_path) == before
    fusebert.optimize(source, tmp_path / "m.onnx", "bf16", verify=False, overwrite=True)
    assert contents(tmp_path) != before
    assert compare(source, tmp_path / "m.onnx", samples=2).same


@pytest.mark.parametrize("target", ["onnxruntime", "standalone"])
def test_what_appears_during_optimize_stays(target, tmp_path, monkeypatch):
    out = tmp_path / ("m.onnx" if target == "onnxruntime" else "m")
    check = write.put

    def late(places, replaces=None):
        if out in places.values():
            out.write_text("appeared")
        check(places, replaces)

    monkeypatch.setattr(write, "put", late)
    with pytest.raises(FusebertError, match="exists"):
        fusebert.optimize(zoo.get(EAGER).make(), out, "fp32", target, verify=False)
    assert contents(tmp_path) == {out.name: b"appeared"}


def test_a_dry_run_writes_nothing(run, tmp_path):
    checkpoint = stock.make(tmp_path / "checkpoint", "bert")
    (tmp_path / "old").mkdir()
    for source in (checkpoint, zoo.get(EAGER).make()):
        fusebert.optimize(source, tmp_path / "old" / source.stem, "fp32", "standalone", verify=False)
        before = contents(tmp_path)
        for out, flags in ((tmp_path / "new", ()), (tmp_path / "old" / source.stem, ("--overwrite",))):
            told = run("optimize", source, "-o", out, "--dry-run", *flags)
            told = " ".join(told.split())
            assert "nothing was written" in told
            assert "would be written" in told
        assert contents(tmp_path) == before


def test_recipe_tools_replace_only_their_own_files_and_only_when_asked(run, tmp_path):
    model = zoo.get("tf1-frozen").make()
    words = (
        "extract-pattern", model, "-s", "bert/encoder/layer_2/output/LayerNorm/batchnorm/add_1", "-b",
        "bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1", "-B", "Identity", "Const",
    )  # fmt: skip
    pattern, recipe, out = (tmp_path / name for name in ("p.pb", "r.pb", "m.pb"))
    for path, command in (
        (pattern, (*words, "-o", pattern)),
        (recipe, ("make-recipe", pattern, recipe, "--model", model)),
        (out, ("replace-pattern", model, "-r", recipe, "-o", out)),
        (tmp_path / "c.pb", ("configure-op", out, "-o", tmp_path / "c.pb")),
    ):
        path.write_text("mine")
        assert "exists" in run(*command, code=1)
        assert "never replaced" in run(*command, "--overwrite", code=1)
        assert path.read_text() == "mine"
        path.unlink()
        run(*command)
        run(*command, "--overwrite")
    run("configure-op", out)  # in place, which is what it is for
    onnx.save(onnx.load(zoo.get(EAGER).make()), tmp_path / "m.onnx")
    assert "never replaced" in run("configure-op", out, "-o", tmp_path / "m.onnx", "--overwrite", code=1)
