"""Many image files as one array: modes, depths, sizes and order."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tacit.data.sources import images
from tests.data.files import pixels, save_image
from tests.refusals import refused


def one(tmp_path: Path, image: Image.Image, form: str = "png", **options: object) -> NDArray[np.uint8]:
    path = tmp_path / f"image.{form}"
    image.save(path, **options)  # type: ignore[arg-type]
    found: NDArray[np.uint8] = images.load([str(path)], images.open_file)[0][0]
    return found


def test_every_mode_becomes_grey_or_rgb(tmp_path: Path) -> None:
    rgb, grey, alpha = pixels(6, 5, 3), pixels(6, 5), pixels(6, 5, seed=1)
    rgba = Image.fromarray(np.dstack([rgb, alpha]))
    assert np.array_equal(one(tmp_path, rgba), rgb.transpose(2, 0, 1))  # alpha is dropped
    grey_alpha = Image.merge("LA", (Image.fromarray(grey), Image.fromarray(alpha)))
    assert np.array_equal(one(tmp_path, grey_alpha), grey[None])
    deep = np.array([[0, 256, 65535], [257, 32896, 400]], dtype=np.uint16)
    assert one(tmp_path, Image.fromarray(deep)).tolist() == [[[0, 1, 255], [1, 128, 2]]]  # 65535 is white
    assert one(tmp_path, Image.fromarray(grey > 100)).tolist() == [np.where(grey > 100, 255, 0).tolist()]
    palette = Image.fromarray(rgb).quantize(20)
    wanted = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(one(tmp_path, palette), wanted)
    assert np.array_equal(one(tmp_path, palette, transparency=bytes([0, 128, 255])), wanted)


@pytest.mark.parametrize(
    "most, bits", [(255, 8), (256, 10), (1023, 10), (1024, 12), (4095, 12), (4096, 14), (16384, 16), (65535, 16)]
)
def test_16_bit_grey_is_scaled_by_the_bits_it_uses(tmp_path: Path, most: int, bits: int) -> None:
    path = save_image(tmp_path / "a.png", np.array([[0, most // 2, most]], dtype=np.uint16))
    found, note, used, _ = images.load([str(path)], images.open_file)
    white = 2**bits - 1
    assert found.reshape(-1).tolist() == [0, round(most // 2 * 255 / white), round(most * 255 / white)]
    assert note == f"16-bit grey values were scaled from {bits} bits."
    assert used == bits


def test_16_bit_images_share_one_scale_and_8_bit_images_stay(tmp_path: Path) -> None:
    arrays = [np.full((4, 4), value, dtype=np.uint16) for value in (200, 4000)]
    paths = [save_image(tmp_path / f"{n}.png", array) for n, array in enumerate(arrays)]
    paths.append(save_image(tmp_path / "plain.png", np.full((4, 4), 200, dtype=np.uint8)))
    found = images.load([str(path) for path in paths], images.open_file)[0]
    assert found[:, 0, 0, 0].tolist() == [12, 249, 200]  # 200 and 4000 of 4095, and 200 of 255


def test_given_bits_override_the_largest_value(tmp_path: Path) -> None:
    dark = [str(save_image(tmp_path / "dark.png", np.full((4, 4), 900, dtype=np.uint16)))]
    found, note, bits, _ = images.load(dark, images.open_file, images.Scale(bits=12))
    assert (found[0, 0, 0, 0], bits) == (56, 12)  # 900 of 4095
    assert note == "16-bit grey values were scaled from 12 bits."
    plain = [str(save_image(tmp_path / "plain.png", np.full((4, 4), 200, dtype=np.uint8)))]
    found, note, bits, _ = images.load(plain, images.open_file, images.Scale(bits=12))
    assert (found[0, 0, 0, 0], note, bits) == (200, "", None)


def test_values_above_the_given_bits_are_refused(tmp_path: Path) -> None:
    paths = [save_image(tmp_path / f"{most}.png", np.full((4, 4), most, dtype=np.uint16)) for most in (1023, 4000)]
    assert images.load([str(paths[0])], images.open_file, images.Scale(bits=10))[0].max() == 255
    with refused("data.too-few-bits") as refusal:
        images.load([str(path) for path in paths], images.open_file, images.Scale(bits=11))
    assert "4000.png has the grey value 4000" in refusal.error.problem
    assert refusal.error.remedy == "set data.bits = 12 in the config"


@pytest.mark.parametrize("value", [-1, 65536, 70_000, 280_000])
def test_grey_values_that_do_not_fit_16_bits_are_refused(tmp_path: Path, value: int) -> None:
    paths = [tmp_path / "fine.tif", tmp_path / "deep.tif"]
    for path, most in zip(paths, (65535, value), strict=True):
        Image.fromarray(np.full((4, 4), most, dtype=np.int32)).save(path)
    assert images.load([str(paths[0])], images.open_file)[0].max() == 255
    with refused("data.grey-out-of-range") as refusal:
        images.load([str(path) for path in paths], images.open_file)
    assert f"deep.tif has the grey value {value}" in refusal.error.problem


@pytest.mark.parametrize(
    "read",
    [images.load, partial(images.stack, size=(4, 4), grey=True)],
    ids=["any size", "one size"],
)
def test_fractional_grey_values_are_refused(tmp_path: Path, read: Callable[..., object]) -> None:
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "scan.tif")
    with refused("data.fractional-grey") as refusal:
        read([str(tmp_path / "scan.tif")], images.open_file)
    assert "scan.tif" in refusal.error.problem


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4), value, dtype=np.uint8)) for value in (10, 200)]
    assert (one(tmp_path, frames[0], "gif", save_all=True, append_images=frames[1:]) == 10).all()


def test_images_are_rotated_as_exif_says(tmp_path: Path) -> None:
    grey = np.zeros((16, 24), dtype=np.uint8)
    grey[:, :12] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the top is at the right
    turned = one(tmp_path, Image.fromarray(grey), "jpg", exif=exif, quality=95)
    assert turned.shape == (1, 24, 16)
    assert turned[0, :10].min() > 200
    assert turned[0, 14:].max() < 50


def test_images_are_scaled_unless_small_and_equal(tmp_path: Path) -> None:
    small, wide, large = (save_image(tmp_path / f"{width}.png", pixels(8, width)) for width in (8, 128, 129))

    def shape(*paths: Path, size: int | None = None) -> tuple[int, ...]:
        return images.load([str(path) for path in paths], images.open_file, images.Scale(size))[0].shape[2:]

    assert shape(small, small) == (8, 8)
    assert shape(wide) == (8, 128)
    assert shape(large) == (64, 64)
    assert shape(small, wide) == (64, 64)
    assert shape(small, size=20) == (20, 20)
    assert shape(small, large, size=20) == (20, 20)


def test_a_note_says_how_images_were_resized(tmp_path: Path) -> None:
    square, wide, large = (save_image(tmp_path / f"{w}.png", pixels(h, w)) for h, w in ((8, 8), (31, 40), (120, 149)))

    def note(*paths: Path, size: int | None = None) -> str:
        return images.load([str(path) for path in paths], images.open_file, images.Scale(size))[1]

    assert note(square, square) == note(square, size=8) == ""
    assert note(square, size=9) == "Images were resized from 8×8; data.size changes that."
    assert note(wide, size=9) == "Images were cropped and resized from 40×31; data.size changes that."
    assert note(large, wide) == "Images were cropped and resized from 40×31 … 149×120; data.size changes that."


def test_images_are_cropped_to_the_middle(tmp_path: Path) -> None:
    array = np.zeros((10, 30), dtype=np.uint8)
    array[:, 10:20] = 200
    found = images.load([str(save_image(tmp_path / "a.png", array))], images.open_file, images.Scale(10))[0]
    assert found.tolist() == [[[[200] * 10] * 10]]


def test_images_are_in_the_order_of_names_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(save_image(tmp_path / f"{n}.png", np.full((n % 7 + 1, 5), n, dtype=np.uint8))) for n in range(60)]
    for threads in (1, 4):
        monkeypatch.setattr(images, "THREADS", threads)
        assert images.load(paths, images.open_file, images.Scale(4))[0][:, 0, 0, 0].tolist() == list(range(60))
