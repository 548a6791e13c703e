import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tacit.report import export, plots
from tacit.report.history import Run, load, load_all
from tacit.report.page import page, refuse_others, write
from tests.refusals import refused
from tests.report.runs import a_run, record, two_seeds, write_counts, write_run

FEW = {"name": "fashion-small", "labels": "server", "n_labels": 50}
EVERY = {"name": "fashion-small", "labels": "all"}
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Parses a page: the tags still open, and all tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def three(folder: Path) -> list[Run]:
    return [
        *two_seeds(folder, "fedavg+fixmatch", 0.74, 0.76, data=FEW),
        *two_seeds(folder, "labels only", 0.65, 0.67, data=FEW),
        *two_seeds(folder, "all labels", 0.85, 0.854, data=EVERY),
    ]


def keys(text: str) -> list[dict[str, str]]:
    """The label of each color in every legend of a page."""
    legends = re.findall(r'id="[^"]*legend_1">(.*?)</svg>', text, re.DOTALL)
    return [dict(re.findall(r"stroke: (#\w+);.*?<text [^>]*>(.*?)</text>", each, re.DOTALL)) for each in legends]


def lines(text: str) -> list[list[str]]:
    """The colors of the lines in every chart of a page."""
    charts = re.findall("<svg.*?</svg>", text, re.DOTALL)
    return [re.findall(r'clip-path="[^"]*" style="fill: none;[^"]*stroke: (#\w+); stroke-width: 2', c) for c in charts]


def without_roles(text: str) -> str:
    """A page without what its tables say twice, for screen readers and for narrow windows."""
    return re.sub(" (?:role|data-head)='[^']*'", "", text)


def summary(text: str) -> str:
    found = re.search("<p class='summary'>(.*?)</p>", text)
    assert found
    return found[1].replace("\u00a0", " ")


@pytest.fixture
def text(tmp_path: Path) -> str:
    return page(three(tmp_path), "tacit compare a.toml --seeds 0,1")


def test_tags_are_balanced(text: str) -> None:
    outline = Outline(text)
    assert (outline.open, outline.wrong) == ([], [])
    assert Outline("<p><b>x</p>").wrong == ["p"]  # the check itself can fail


def test_headings_are_in_order_and_the_language_is_set(text: str) -> None:
    outline = Outline(text)
    assert [tag for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)] == ["h1"] + ["h2"] * 6
    assert outline.named("html") == [{"lang": "en"}]
    assert "<title>fedavg+fixmatch and 2 others on fashion-small</title>" in text


def test_the_summary_has_the_accuracy_of_every_row(text: str) -> None:
    assert summary(text) == (
        "fedavg+fixmatch reached 75.0 ± 1.4 % with 50 labels; labels only 66.0 ± 1.4 %; all labels 85.2 ± 0.3 %."
    )


def test_the_summary_names_labels_that_differ(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / "a", [0.5], "a", data=FEW),
        a_run(tmp_path / "b", [0.6], "b", data=EVERY),
        a_run(tmp_path / "c", [0.7], "c"),
    ]
    assert summary(page(runs)) == "a reached 50.0 % with 50 labels; b 60.0 % with all labels; c 70.0 %."


def test_the_summary_omits_labels_that_differ_between_seeds(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "a", [0.5], data=FEW), a_run(tmp_path / "b", [0.5], data=FEW | {"n_labels": 100})]
    assert summary(page(runs)) == "fedavg+fixmatch reached 50.0 ± 0.0 %."


def test_the_table_is_accessible_to_screen_readers(text: str) -> None:
    outline = Outline(text)
    assert [head["scope"] for head in outline.named("th")] == ["col"] * 9 + ["row"] * 3
    assert len(outline.named("caption")) == 1
    assert "<td>75.0 ± 1.4</td>" in without_roles(text)
    assert {cell["role"] for cell in outline.named("td")} == {"cell"}, "a row that is a block keeps its meaning"
    assert {row["role"] for row in outline.named("tr")} == {"row"}
    assert [cell["data-head"] for cell in outline.named("td")][:3] == ["seeds", "last (%)", "best (%)"]


def test_only_the_leader_is_marked(text: str) -> None:
    assert re.findall("<tr class='leads'><th scope='row'>(.*?)</th>", without_roles(text)) == ["fedavg+fixmatch\u00a0★"]
    assert "runs with all labels do not compete" in text


def test_charts_are_inline_and_described_in_words(text: str) -> None:
    outline = Outline(text)
    images = [attributes["aria-label"] or "" for attributes in outline.named("div") if attributes.get("role") == "img"]
    assert images[0] == (
        "Line chart of accuracy against rounds. "
        "fedavg+fixmatch: 75.0 % after round 1, 75.0 % after round 1. "
        "labels only: 66.0 % after round 1, 66.0 % after round 1. "
        "all labels: 85.2 % after round 1, 85.2 % after round 1."
    )
    for image, position in zip(images[1:], ("1.5 kB", "10 steps", "2.0 s"), strict=True):
        assert f"labels only: 66.0 % after {position}, 66.0 % after {position}." in image
    assert len(outline.named("svg")) == len(images)


def test_ids_on_a_page_are_unique_and_links_resolve(text: str) -> None:
    outline = Outline(text)
    names = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(names) == len(set(names))
    used = set(re.findall(r"url\(#(.*?)\)", text)) | {name[1:] for name in re.findall(r"href=['\"](#.*?)['\"]", text)}
    assert used
    assert used <= set(names)


def test_communication_is_summarized(tmp_path: Path) -> None:
    rounds = [record(n, 0.5, bytes_up=1_500_000, bytes_down=500_000) for n in range(4)]
    text = page([load(write_run(tmp_path / "run", rounds))])
    assert "fedavg+fixmatch: 8.0 MB per run (6.0 MB up, 2.0 MB down), 2.0 MB per round" in text


def test_clients_left_out_are_listed_if_there_are_any(tmp_path: Path, text: str) -> None:
    assert "Clients left out" not in text
    rounds = [record(n, 0.5, skipped={"3": "upload lost", "4": "too late"} if n else {"3": "too late"}) for n in (0, 1)]
    shown = page([load(write_run(tmp_path / "run", rounds))])
    assert "Clients left out</h2>\n<ul>\n<li>fedavg+fixmatch: too late 2×, upload lost 1×</li>" in shown


def test_an_unfinished_run_is_named(tmp_path: Path, text: str) -> None:
    assert "Not finished" not in text
    assert "Not finished: fedavg+fixmatch, seed 3 (1 of 9 rounds)." in page(
        [a_run(tmp_path / "run", [0.5], seed=3, rounds=9)]
    )


def test_runs_without_an_evaluated_round_are_named_and_left_out(tmp_path: Path) -> None:
    """As in a comparison that is still running."""
    a_run(tmp_path / "all/fedavg/seed-0", [0.5], rounds=2)
    write_run(tmp_path / "all/fedprox/seed-0", [], rounds=2)
    runs = load_all(tmp_path / "all")
    text = page(runs)
    assert "<p class='note'>Not finished: fedavg, seed 0 (1 of 2 rounds).</p>" in text
    assert "<p class='note'>Left out, no evaluated round yet: fedprox, seed 0.</p>" in text
    assert text.count("fedprox") == 1
    assert len(export.write(runs, tmp_path / "plots", "svg")) == 4
    with refused("report.no-round"):
        page(runs[1:])
    assert "Left out" not in page(runs[:1])


def test_a_run_without_a_global_model_has_a_note(tmp_path: Path, text: str) -> None:
    assert "no global model" not in text
    run = load(write_run(tmp_path / "run", [record(0, None, local_accuracy=0.5)]), "alone")
    assert "alone: no global model, so the average over the clients&#x27; own models is shown." in page([run])


def test_each_config_is_shown_once_with_its_seeds(text: str) -> None:
    assert re.findall("<summary>(.*?)</summary>", text) == [
        "fedavg+fixmatch, seeds 0, 1",
        "labels only, seeds 0, 1",
        "all labels, seeds 0, 1",
    ]
    assert text.count("n_labels = 50") == 2


def test_configs_that_differ_are_both_shown(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "0", [0.5], cohort=5), a_run(tmp_path / "1", [0.5], seed=1, cohort=10)]
    text = page(runs)
    assert re.findall("<summary>(.*?)</summary>", text) == ["fedavg+fixmatch, seed 0", "fedavg+fixmatch, seed 1"]
    assert "cohort = 5\n" in text
    assert "cohort = 10\n" in text


def test_the_command_is_shown_if_it_is_known(tmp_path: Path, text: str) -> None:
    assert "<code>tacit compare a.toml --seeds 0,1</code></pre>" in text
    assert "Reproduce" not in page([a_run(tmp_path / "run", [0.5])])


def test_a_page_has_no_scripts_and_no_external_resources(text: str) -> None:
    outline = Outline(text)
    assert not [tag for tag, _ in outline.tags if tag in ("script", "link", "iframe", "img", "object")]
    links = [
        value or ""
        for _, attributes in outline.tags
        for name, value in attributes.items()
        if name in ("href", "src", "xlink:href")
    ]
    assert not [link for link in links if not link.startswith("#")]
    assert "@import" not in text
    assert "url(http" not in text


def test_a_page_has_styles_for_light_dark_and_print(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "width=device-width" in text


EVIL = "<script>alert('x')</script> & \"quotes\""


def test_labels_settings_and_commands_are_escaped(tmp_path: Path) -> None:
    rounds = [record(0, None, local_accuracy=0.5, skipped={"1": EVIL})]
    folder = write_run(tmp_path / "run", rounds, rounds=2, method={"name": EVIL}, data={"name": EVIL, EVIL: EVIL})
    outline = Outline(page([load(folder)], EVIL))
    assert not outline.named("script")
    assert (outline.open, outline.wrong) == ([], [])
    alt_text = next(attributes for attributes in outline.named("div") if attributes.get("role") == "img")["aria-label"]
    assert alt_text is not None
    assert EVIL in alt_text
    assert EVIL in outline.texts  # the command, exactly as given


def test_writing_a_page_leaves_no_other_file(tmp_path: Path) -> None:
    runs, path = [a_run(tmp_path / "run", [0.5])], tmp_path / "out" / "report.html"
    write(runs, path, "tacit report")
    assert path.read_text(encoding="utf-8") == page(runs, "tacit report")
    assert [found.name for found in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("place", [".", "..", "pages", "/"])
def test_a_folder_cannot_be_overwritten_by_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "here/pages").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with refused("storage.is-folder"):
        write([a_run(tmp_path / "run", [0.5])], Path(place))
    assert not list((tmp_path / "here/pages").iterdir())


def test_an_open_old_page_can_be_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    with path.open(encoding="utf-8") as reader:
        write([a_run(tmp_path / "run", [0.5])], path)
        assert reader.read() == "old"


def test_an_old_page_stays_if_the_new_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, path = [a_run(tmp_path / "run", [0.5])], tmp_path / "out" / "report.html"
    path.parent.mkdir()
    path.write_text("old", encoding="utf-8")

    def half(self: Path, text: str, encoding: str) -> None:
        self.write_bytes(text[:100].encode(encoding))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with refused("storage.cannot-write"):
        write(runs, path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [found.name for found in path.parent.iterdir()] == ["report.html"]


def test_a_label_has_one_color_on_the_whole_page(tmp_path: Path) -> None:
    runs = [
        replace(a_run(tmp_path / f"{group}-{label}", [0.1, reached], label), group=group)
        for group, label, reached in (("x", "a", 0.2), ("x", "b", 0.3), ("y", "c", 0.4), ("y", "b", 0.5))
    ]
    text = page(runs)
    first, second, third = (color.lower() for color in plots.COLORS[:3])
    assert keys(text) == [{second: "b", first: "a"}, {second: "b", third: "c"}]
    assert lines(text) == [[first, second]] * 4 + [[third, second]] * 4
    written = export.write(runs, tmp_path / "plots", "svg")
    drawn = {path.stem: keys(path.read_text(encoding="utf-8")) for path in written}
    assert drawn["y-accuracy-rounds"] == [{second: "b", third: "c"}]


def test_only_a_report_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    refuse_others(path)
    write([a_run(tmp_path / "run", [0.5])], path)
    refuse_others(path)
    path.write_text("my notes", encoding="utf-8")
    with refused("report.not-a-report"):
        refuse_others(path)


def test_the_page_says_which_model_was_saved_and_why(tmp_path: Path) -> None:
    on = {"accuracy": 0.83, "low": 0.7445, "high": 0.8911, "samples": 100}
    chosen = {"what": "labels only", "why": "on validation the last round is below", "validation": on, "accuracy": 0.8}
    run = load(write_run(tmp_path / "run", [record(0, 0.7, selected=chosen)]))
    text = page([run])
    assert "fedavg+fixmatch, seed 0: labels only, since on validation the last round is below; " in text
    assert "83.0 % of 100 validation samples (95 % interval 74.5 to 89.1 %)" in text
    assert "Saved models" not in page([a_run(tmp_path / "other", [0.7])])


def test_the_headline_of_one_run_has_the_accuracy_of_its_model_and_counts_labels(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", [0.84, 0.86], data={"labels": "server", "label_fraction": 1.0})
    write_counts(run, "split", [[0, 0, 0], [3, 1, 0]], [[5, 5, 20], [0, 0, 9]])
    assert "fedavg+fixmatch reached 86.0\u00a0% with 6 labels." in page([run])
    both = [run, a_run(tmp_path / "other", [0.5, 0.7], "other", data={"labels": "server", "n_labels": 5})]
    assert "fedavg+fixmatch reached 85.0\u00a0% with 6 labels; other 60.0\u00a0% with 5 labels." in page(both)
