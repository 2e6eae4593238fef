"""Whatever is written appears whole or not at all, and what is there is replaced only if it is of the same kind and the
caller says so: files, folders, and every command that writes."""

import errno
import subprocess
import sys
from collections.abc import Callable
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


@pytest.fixture(params=["exchanging", "plain"])
def fail_moving(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, BaseException], None]:
    """On a file system that can exchange two names, and on one that cannot: fail_moving("thing", error) lets the move
    of what was made to that name fail."""
    rename, plain = write._rename, Path.rename
    if request.param == "plain":

        def refuse(*_):
            raise OSError(errno.ENOSYS, "no renameat2")

        monkeypatch.setattr(write, "_rename", refuse)

    def call(name: str, error: BaseException) -> None:
        def fails(source: Path, target: Path) -> bool:
            return source.name == target.name == name and source.parent.parent == target.parent

        def fail(self: Path, target: Path, *flags: int) -> object:
            if fails(self, target):
                raise error
            return rename(self, target, *flags) if flags else plain(self, target)

        monkeypatch.setattr(*((write, "_rename", fail) if request.param == "exchanging" else (Path, "rename", fail)))

    return call


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
@pytest.mark.usefixtures("fail_moving")
def test_what_appears_between_the_last_look_and_the_move_stays(make, tmp_path, monkeypatch):
    move = write._move

    def late(made, path):
        make_there(tmp_path / "thing")
        move(made, path)

    def make_there(path):
        path.write_text("appeared") if make is write_file else (path.mkdir(), (path / "inside").write_text("appeared"))

    monkeypatch.setattr(write, "_move", late)
    with pytest.raises(FusebertError, match="cannot be written"):
        make(tmp_path / "thing")
    assert b"appeared" in contents(tmp_path).values()
    assert b"new" not in contents(tmp_path).values()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing"]


@pytest.mark.parametrize("make", WRITERS)
@pytest.mark.usefixtures("fail_moving")
def test_every_file_system_is_written_to(make, tmp_path):
    make(tmp_path / "thing")
    with pytest.raises(FusebertError, match="exists"):
        make(tmp_path / "thing")
    make(tmp_path / "thing", "newer", lambda _: True)
    assert [value for value in contents(tmp_path).values() if value] == [b"newer"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing"]


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
def test_a_move_that_fails_leaves_the_old_one(make, error, fail_moving, tmp_path):
    make(tmp_path / "thing", "old")
    before = contents(tmp_path)
    fail_moving("thing", error)
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

    def refuse(*_):
        raise OSError(errno.ENOSYS, "no renameat2")

    monkeypatch.setattr(write, "_rename", refuse)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(FusebertError, match=r"thing\.replaced"):
        write_folder(tmp_path / "thing", "new", lambda _: True)
    assert b"old" in contents(tmp_path).values()


def test_of_several_places_all_are_taken_back(fail_moving, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    before = contents(tmp_path)
    with write.beside(tmp_path / "a") as folder:
        for name in ("a", "b"):
            (folder / name).write_text("new")
        fail_moving("b", OSError("no"))
        with pytest.raises(OSError, match="no"):
            write.put({folder / name: tmp_path / name for name in ("a", "b")}, lambda _: True)
    assert contents(tmp_path) == before


# Writes "new" to the file or folder `thing`, again and again, killed a system call later each time; prints what every
# kill left at `thing`, and what it left in the folder once something else was written there.
KILLED = """
import errno, os, signal, sys
from pathlib import Path
from fusebert.formats import write

place, form, way = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if way == "plain":
    def refuse(*_):
        raise OSError(errno.ENOSYS, "no renameat2")
    write._rename = refuse
thing, other = place / "thing", place / "other"

def make(path, text, replaces=None):
    with (write.file if form == "file" else write.folder)(path, replaces) as made:
        made.write(text) if form == "file" else (made / "inside").write_bytes(text)

def read():
    path = thing if form == "file" else thing / "inside"
    return path.read_text() if path.exists() else "missing"

make(thing, b"old")
for last in range(1000):
    child = os.fork()
    if not child:
        count = 0
        def hook(event, _):
            global count
            if event.startswith(("os.", "open", "shutil", "ctypes.dlsym", "tempfile", "fcntl")):
                count += 1
                if count > last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        make(thing, b"new", lambda _: True)
        os._exit(0)
    done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    at_once = read()
    make(other, b"other", lambda _: True)
    print(at_once, read(), *sorted(os.listdir(place)))
    if done:
        break
    make(thing, b"old", lambda _: True)
"""


@pytest.mark.parametrize("form", ["file", "folder"])
@pytest.mark.parametrize("way", ["exchanging", "plain"])
def test_a_kill_at_any_moment_loses_nothing_and_the_next_run_tidies_up(form, way, tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path), form, way]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(told) > 10
    for line in told:
        at_once, later, *left = line.split()
        assert at_once in (("old", "new") if way == "exchanging" else ("old", "new", "missing"))
        assert later in ("old", "new")
        assert left == ["other", "thing"]
    assert told[-1].startswith("new new")


def test_only_what_nobody_holds_is_tidied_up(tmp_path):
    with write.beside(tmp_path / "thing") as held:
        (held / "thing").write_text("half")
        write_file(tmp_path / "other")
        assert (held / "thing").read_text() == "half"
    left = tmp_path / ".fusebert-abandoned"
    left.mkdir()
    (left / "data.replaced").write_text("old")  # of two files one was in place and the other was not
    (left / "model").write_text("new")
    (tmp_path / "data").write_text("new")
    (tmp_path / ".fusebert-mine").write_text("a file")
    write_file(tmp_path / "another")
    assert {path.name for path in left.iterdir()} == {"data.replaced", "model"}
    assert (tmp_path / ".fusebert-mine").read_text() == "a file"


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


def test_a_failing_move_keeps_the_old_saved_model(fail_moving, tmp_path):
    source = zoo.get("tf-bert").make()
    fusebert.optimize(source, tmp_path / "out", "fp32", verify=False)
    before = contents(tmp_path)
    fail_moving("out", OSError("no"))
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
    before, rename = contents(tmp_path), write._rename
    assert len(before) == 2

    def fail(made, path, flags):
        if path == tmp_path / "m.onnx":
            raise OSError("no")
        return rename(made, path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(write, "_rename", fail)
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
        assert "exists" in run(*command, code=2)
        assert "never replaced" in run(*command, "--overwrite", code=2)
        assert path.read_text() == "mine"
        path.unlink()
        run(*command)
        run(*command, "--overwrite")
    run("configure-op", out)  # in place, which is what it is for
    onnx.save(onnx.load(zoo.get(EAGER).make()), tmp_path / "m.onnx")
    assert "never replaced" in run("configure-op", out, "-o", tmp_path / "m.onnx", "--overwrite", code=2)
