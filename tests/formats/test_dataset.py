"""Rows of every format, compressed or not, come in order, and each bad one with its reason."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusebert.errors import FusebertError
from fusebert.formats.dataset import count_rows, fingerprint, list_files, read_rows

TEXTS = ["one", "two, with a comma", "drei", "四"]


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def write(path, texts=TEXTS):
    suffix = next(one for one in (".jsonl", ".csv", ".tsv", ".txt", ".parquet") if one in path.name)
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    lines = {
        ".jsonl": [json.dumps(row) for row in rows],
        ".csv": ["id,text", *(f'{row["id"]},"{row["text"]}"' for row in rows)],
        ".tsv": ["id\ttext", *(f"{row['id']}\t{row['text']}" for row in rows)],
        ".txt": texts,
    }[suffix]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes({".gz": gzip.compress, ".zst": zstd}.get(path.suffix, bytes)(data))
    return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.csv", "a.tsv", "a.txt", "a.parquet", "a.jsonl.gz", "a.csv.zst", "a.txt.zst"]
)
def test_every_format_gives_the_same_texts(tmp_path, name):
    path = write(tmp_path / name)
    keep = () if ".txt" in name else ("id",)
    rows = list(read_rows(list_files(path), ("text",), keep))
    assert [row.texts[0] for row in rows] == TEXTS
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert not any(row.reason for row in rows)
    assert not keep or [str(row.kept["id"]) for row in rows] == ["0", "1", "2", "3"]


def test_a_folder_and_a_glob_are_read_in_the_order_of_names(tmp_path):
    for name in ("b.txt", "a.jsonl", "ignored.png", ".hidden.txt", "_rejected.jsonl"):
        write(tmp_path / name, [name]) if "png" not in name else (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in list_files(tmp_path)] == ["a.jsonl", "b.txt"]
    assert [path.name for path in list_files(f"{tmp_path}/*.txt")] == ["b.txt"]
    with pytest.raises(FusebertError, match="does not exist"):
        list_files(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": null}', "text is null"),
        (b'{"other": "x"}', "text is null"),
        (b'{"text": 7}', "text is not a string but a int"),
        (b'{"text": "\xff"}', "text is not valid UTF-8"),
        (b'{"text": "\\ud800"}', "text is not valid UTF-8"),
        (b'{"text": ', "the line is not JSON"),
        (b"[" * 100_000, "the line is not JSON"),
        (b"7", "the line is not a JSON object"),
    ],
)
def test_a_bad_row_has_its_number_and_reason_and_the_next_is_read(tmp_path, line, reason):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n')
    rows = list(read_rows([tmp_path / "a.jsonl"], ("text",)))
    assert [(row.number, row.reason) for row in rows] == [(0, ""), (1, reason), (2, "")]


def test_strings_of_parquet_that_are_not_utf8_are_bad_rows(tmp_path):
    column = pa.array([b"good", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert [row.reason for row in read_rows([tmp_path / "a.parquet"], ("text",))] == ["", "text is not valid UTF-8"]


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(FusebertError, match="no column 'body'; its columns are 'id', 'text'"):
            list(read_rows([write(tmp_path / name)], ("body",)))


def test_damaged_files_are_told_by_name(tmp_path):
    whole = write(tmp_path / "a.jsonl.gz").read_bytes()
    for name, data in {"b.jsonl.gz": whole[:-9], "c.jsonl.zst": b"junk", "d.parquet": b"PAR1junkPAR1"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FusebertError, match=name):
            list(read_rows([tmp_path / name], ("text",)))


def test_the_fingerprint_follows_the_bytes_and_rows_are_counted(tmp_path):
    first, second = write(tmp_path / "a.jsonl"), write(tmp_path / "b.jsonl", [*TEXTS[:3], "other"])
    assert fingerprint(first)["digest"] != fingerprint(second)["digest"]
    assert count_rows([first, write(tmp_path / "c.parquet")]) == 8
    assert count_rows([write(tmp_path / "d.txt.gz")]) is None


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1), max_size=20))
def test_any_text_goes_through_json_lines_unchanged(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    assert [row.texts[0] for row in read_rows([path], ("text",))] == texts
