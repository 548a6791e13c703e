"""A user's images in a CSV file are read as it says, or refused by line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data.sources import load
from tests.data.files import load_refused, pixels, save_image
from tests.data.kinds import pictured


def manifest(root: Path, text: str) -> Path:
    for number in range(12):
        save_image(root / f"images/{number}.png", pixels(6, 6, seed=number))
    (root / "list.csv").write_text(text, encoding="utf-8")
    return root / "list.csv"


def rows(labels: str, more: Callable[[int], str] = lambda number: "") -> str:
    return "".join(f"images/{n}.png,{'' if c == '-' else c}{more(n)}\n" for n, c in enumerate(labels))


def test_a_manifest_is_read(tmp_path: Path) -> None:
    path = manifest(tmp_path, "\ufeffpath,label\n" + rows("babababab---"))
    source = load(str(path))
    assert source.classes == ("a", "b")
    assert source.x.shape == (11, 1, 6, 6)
    assert source.y.tolist().count(-1) == 3
    assert len(source.y_test) == 1
    assert source.groups is None
    assert not pictured(source).flip


def test_whole_number_labels_are_sorted_as_numbers(tmp_path: Path) -> None:
    labels = ["10", "9", "2"] * 4
    lines = "".join(f"images/{n}.png,{label}\n" for n, label in enumerate(labels))
    path = manifest(tmp_path, "path,label\n" + lines)
    assert load(str(path)).classes == ("2", "9", "10")
    path.write_text("path,label\n" + lines.replace(",9", ",nine"))
    assert load(str(path)).classes == ("10", "2", "nine")


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD)
    plain = load(str(path))
    for names in ("patient,site", "age,labels"):  # labels resembles an existing column
        path.write_text(GOOD.replace("\n", ",1,2\n").replace("label,1,2", f"label,{names}"))
        assert torch.equal(load(str(path)).x, plain.x)


def test_split_and_group_are_read(tmp_path: Path) -> None:
    groups = ["x", "z", "y"]
    text = rows("babababab-ba", lambda n: f",{'test' if n > 9 else 'train'},{groups[n % 3]}")
    source = load(str(manifest(tmp_path, "path,label,split,group\n" + text)))
    assert source.y.tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1, -1]
    assert source.y_test.tolist() == [1, 0]
    assert np.array_equal(source.x_test[0, 0].numpy(), pixels(6, 6, seed=10))
    assert source.groups is not None
    assert source.groups.tolist() == [0, 2, 1, 0, 2, 1, 0, 2, 1, 0]


def test_groups_stay_with_their_images_when_a_fifth_is_held_out(tmp_path: Path) -> None:
    text = rows("abababababab", lambda n: f",{n % 3}")
    source = load(str(manifest(tmp_path, "path,label,group\n" + text)))
    number = {pixels(6, 6, seed=n).tobytes(): n for n in range(12)}
    assert source.groups is not None
    assert source.groups.dtype == torch.int64
    whose = [number[bytes(image)] % 3 for image in source.x.numpy()]
    assert source.groups.tolist() == [sorted({*whose}).index(each) for each in whose]
    assert source.whole_groups


def test_a_group_is_not_divided_between_training_and_test_images(tmp_path: Path) -> None:
    text = rows("abababababab", lambda n: f",{n // 2}")
    source = load(str(manifest(tmp_path, "path,label,group\n" + text)))
    number = {pixels(6, 6, seed=n).tobytes(): n // 2 for n in range(12)}
    train, test = ({number[bytes(image)] for image in part.numpy()} for part in (source.x, source.x_test))
    assert test
    assert not train & test


GOOD = "path,label\n" + rows("babababab---")


@pytest.mark.parametrize(
    "text, code, name",
    [
        ("", "data.missing-column", "path"),
        ("path\n1.png\n", "data.missing-column", "label"),
        ("file,label\n", "data.missing-column", "path"),
        (
            GOOD.replace("path,label", "path,label,splt").replace("\n", ",\n"),
            "data.misspelt-column",
            "rename it to split",
        ),
        (GOOD.replace("path,label", "Path,label"), "data.misspelt-column", "rename it to path"),
        (GOOD.replace(",", ";"), "data.wrong-separator", "';'"),
        (GOOD.replace(",", "\t"), "data.wrong-separator", "'\\t'"),
        (GOOD.replace("3.png,a", "3.png,-1"), "data.minus-one-label", "line 5"),
        (GOOD + "images/1.png\n", "data.wrong-field-count", "line 14"),
        (GOOD + "images/1.png,a,b\n", "data.wrong-field-count", "line 14"),
        (GOOD.replace("images/3.png", "images/99.png"), "data.missing-image", "images/99.png"),
        (GOOD.replace("images/3.png", ""), "data.missing-image", "line 5"),
        (GOOD.replace("images/3.png", "images/../images/1.png"), "data.duplicate-image", "line 3"),
        ("path,label\n" + rows("-----"), "data.no-labels", ""),
        ("path,label\n", "data.no-labels", ""),
        ("path,label,split\n" + rows("aabb", lambda n: ",test"), "data.no-labels", ""),
        ("path,label,split\n" + rows("aabb", lambda n: ",valid"), "data.bad-split-value", "line 2"),
        (
            "path,label,split\n" + rows("aab-", lambda n: ",test" if n > 1 else ",train"),
            "data.unlabeled-test-image",
            "line 5",
        ),
        (
            "path,label,split\n" + rows("aab", lambda n: ",test" if n > 1 else ",train"),
            "data.class-only-in-test",
            "line 4",
        ),
        ("path,label,group\n" + rows("aab", lambda n: "," if n > 1 else ",g"), "data.missing-group", "line 4"),
        ("path,label\n" + rows("ab"), "data.too-few-labels", "split is test"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, text: str, code: str, name: str) -> None:
    load_refused(manifest(tmp_path, text), code, name)


def test_an_unreadable_or_missing_manifest_is_refused(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD)
    path.write_bytes(GOOD.replace(",a", ",\u00e4").encode("latin-1"))
    load_refused(path, "data.unreadable-file", "UTF-8")
    path.unlink()
    load_refused(path, "data.no-file", "list.csv")
