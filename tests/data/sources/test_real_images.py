"""Images as hospitals and factories have them: large, oblong, broken, DICOM, too many for memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tacit
from tacit.data import sources
from tacit.data.sources import images, pixel_cache
from tacit.data.sources.images import Scale
from tests.inference.trained import write_image_folder
from tests.refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "data"))
    return tmp_path / "data" / "images"


def load(folder: Path, **how: Any) -> sources.Source:
    scale = Scale(**{"size": 20} | how)
    return sources.load(str(folder), scale.size, scale.bits, scale.pad, scale.skip_broken)


# Padding.


def test_padding_keeps_the_sides_that_cropping_cuts(tmp_path: Path) -> None:
    wide = np.zeros((10, 40), dtype=np.uint8)
    wide[:, :5] = 250
    Image.fromarray(wide).save(tmp_path / "a.png")
    cropped, padded = (
        images.load([str(tmp_path / "a.png")], images.open_file, Scale(40, pad=pad)) for pad in (False, True)
    )
    assert cropped.x.max() == 0
    assert padded.x[0, 0, 15:25, :4].min() == 250
    assert padded.x[0, 0, :15].max() == 0
    assert "padded and resized" in padded.note


def test_a_model_pads_what_it_predicts_as_its_training_images_were(tmp_path: Path) -> None:
    data = write_image_folder(tmp_path / "scans")
    settings: dict[str, Any] = {"labels": "all", "clients": 2, "rounds": 1, "workers": 0, "net": "linear"}
    settings |= {"data": str(data), "data.size": 16, "data.fit": "pad"}
    result = tacit.run(out=tmp_path / "run", **settings)
    model = tacit.load(tmp_path / "run")
    stored = model.stored(str(data / "test"))
    assert torch.equal(stored, result.job.federation.test.x)
    assert stored[0, 0, 0].max() == 0  # 90×70: borders above and below


# Broken files.


def test_broken_files_are_named_up_to_twenty(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "scans")
    for number in range(23):
        (folder / "labeled" / "left" / f"x{number:02}.png").write_bytes(b"no image")
    with refused("data.unreadable-images") as caught:
        load(folder)
    assert caught.error.problem.count("x") >= 20
    assert "x19.png and 3 more" in caught.error.problem
    assert "data.skip_broken" in caught.error.remedy


def test_broken_files_are_left_out_and_listed_on_request(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "scans")
    whole = load(folder)
    cut = (folder / "labeled" / "left" / "00.png").read_bytes()
    (folder / "labeled" / "left" / "cut.png").write_bytes(cut[: len(cut) // 2])
    (folder / "test" / "right" / "none.png").write_bytes(b"")
    source = load(folder, skip_broken=True)
    assert torch.equal(source.x, whole.x)
    assert torch.equal(source.y_test, whole.y_test)
    assert "cut.png" in source.note
    assert "none.png" in source.note


def test_one_image_in_colour_among_grey_ones_is_named(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "scans")
    assert "colour" not in load(folder).note
    Image.new("RGB", (30, 30), (200, 0, 0)).save(folder / "labeled" / "left" / "pink.png")
    source = load(folder)
    assert source.inputs.shape[0] == 3
    assert "pink.png is in colour among 49 images" in source.note


# Larger than memory.


def mapped(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> sources.Source:
    monkeypatch.setattr(pixel_cache, "LARGE", 1)
    monkeypatch.setattr(pixel_cache, "BLOCK", 5)
    return load(folder, **how)


def test_images_on_disk_have_the_bits_of_those_in_memory(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_image_folder(tmp_path / "scans")
    here = load(folder)
    assert not cache.exists()
    there = mapped(folder, monkeypatch)
    for name in ("x", "y", "x_test", "y_test"):
        assert torch.equal(getattr(here, name), getattr(there, name))
    assert here.inputs == there.inputs
    files = sorted(cache.iterdir())
    assert [file.suffix for file in files] == [".done", ".lock", ".pixels"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in files if file.suffix != ".lock")
    assert files[2].stat().st_size == 48 * 20 * 20
    there.x.fill_(7)  # a copy of its own
    assert torch.equal(mapped(folder, monkeypatch).x, here.x)


def test_decoding_to_disk_happens_once_and_continues_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, decoded = write_image_folder(tmp_path / "scans"), list[str]()
    real = images._pixels

    def counted(image: Image.Image, *args: Any, **how: Any) -> Any:
        decoded.append("")
        if len(decoded) == 18:
            raise KeyboardInterrupt
        return real(image, *args, **how)

    monkeypatch.setattr(images, "THREADS", 1)
    monkeypatch.setattr(images, "_pixels", counted)
    with pytest.raises(KeyboardInterrupt):
        mapped(folder, monkeypatch)
    decoded[:] = [""] * 100
    source = mapped(folder, monkeypatch)
    assert len(decoded) - 100 == 48 - 15  # three whole blocks of five were there
    again = mapped(folder, monkeypatch)
    assert len(decoded) - 100 == 48 - 15
    assert torch.equal(source.x, again.x)


def test_a_changed_file_or_setting_is_decoded_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_image_folder(tmp_path / "scans")
    before = mapped(folder, monkeypatch).x.clone()
    changed = folder / "labeled" / "left" / "00.png"
    Image.new("L", (90, 70), 9).save(changed)
    os.utime(changed, ns=(1, 1))
    assert not torch.equal(mapped(folder, monkeypatch).x, before)
    mapped(folder, monkeypatch, pad=True)
    assert len(list(cache.glob("*.pixels"))) == 3


# DICOM.


def write_dicom(path: Path, values: Any, **tags: Any) -> Path:
    """A file with one grey image of 16 bits and a patient's name."""
    pydicom = pytest.importorskip("pydicom", reason="not installed: pip install tacit[dicom]")
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    found = pydicom.Dataset()
    found.file_meta, found.PatientName = meta, "SECRET^NAME"
    found.SOPClassUID, found.SOPInstanceUID = SecondaryCaptureImageStorage, "1.2.3"
    found.Rows, found.Columns = values.shape
    found.SamplesPerPixel, found.BitsAllocated, found.BitsStored, found.HighBit = 1, 16, 12, 11
    found.PixelRepresentation, found.PhotometricInterpretation = 0, "MONOCHROME2"
    for name, value in tags.items():
        setattr(found, name, value)
    found.PixelData = values.astype(np.uint16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)
    return path


RAMP = np.arange(16).reshape(4, 4) * 100  # 0 … 1500


def pixels(path: Path) -> Any:
    return images.load([str(path)], images.open_file).x[0, 0]


def test_dicom_values_become_grey_from_black_to_white(tmp_path: Path) -> None:
    found = pixels(write_dicom(tmp_path / "a.dcm", RAMP))
    assert np.array_equal(found, np.rint(RAMP / 1500 * 255))


def test_dicom_of_the_other_polarity_is_inverted(tmp_path: Path) -> None:
    found = pixels(write_dicom(tmp_path / "a", RAMP, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(found, 255 - np.rint(RAMP / 1500 * 255))


def test_a_dicom_window_applies_after_slope_and_intercept(tmp_path: Path) -> None:
    """Values 2v - 100; the window of width 401 around 500.5 goes from 300 to 700."""
    tags = {"RescaleSlope": 2, "RescaleIntercept": -100, "WindowCenter": [500.5, 9], "WindowWidth": [401, 9]}
    found = pixels(write_dicom(tmp_path / "a.dcm", RAMP, **tags))
    wanted = np.rint(np.clip((2 * RAMP - 100 - 300) / 400, 0, 1) * 255)
    assert np.array_equal(found, wanted)


def test_a_dicom_file_with_several_frames_is_refused(tmp_path: Path) -> None:
    with refused("data.several-frames"):
        pixels(write_dicom(tmp_path / "a.dcm", RAMP, NumberOfFrames=3))


def test_without_pydicom_the_line_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP)

    def missing(name: str) -> Any:
        raise ImportError

    monkeypatch.setattr("tacit.data.sources.dicom.import_module", missing)
    with refused("data.no-pydicom") as caught:
        pixels(path)
    assert "pip install 'tacit[dicom]'" in caught.error.remedy


def test_nothing_of_a_dicom_header_is_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("labeled/a", "labeled/b", "test/a", "test/b"):
        for number in range(3):
            write_dicom(tmp_path / "scans" / place / f"{number}.dcm", RAMP)
    source = mapped(tmp_path / "scans", monkeypatch, size=8)
    assert len(source.x) == 6
    assert all(b"SECRET" not in file.read_bytes() for file in cache.iterdir())
