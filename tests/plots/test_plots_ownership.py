"""The figure of who owns what."""

import pytest
from matplotlib.colors import to_hex

from dskit.plots import plot_ownership
from dskit.plots.style import FROZEN, TRAINABLE

COLORS = [FROZEN, FROZEN, TRAINABLE, TRAINABLE]


def bars(axes):
    return [bar.get_width() for bar in axes.patches]


def colors(axes):
    return [to_hex(bar.get_facecolor()).upper() for bar in axes.patches]


def test_bars_are_the_shards_and_the_gradient_partitions(ownership_rows):
    left, right = plot_ownership(ownership_rows).axes
    assert bars(left) == [8192, 64, 8192, 64]
    assert bars(right) == [0, 0, 8192, 64]
    assert left.get_xlim() == right.get_xlim(), "bars of both sides can be compared"


def test_both_sides_have_one_scale_even_if_the_gradients_are_few(ownership_rows):
    ownership_rows[2] |= {"owned": False, "gradient": 0}
    left, right = plot_ownership(ownership_rows).axes
    assert left.get_xlim() == right.get_xlim()


def test_bars_have_the_colours_of_frozen_and_trainable(ownership_rows):
    figure = plot_ownership(ownership_rows)
    assert [colors(axes) for axes in figure.axes] == [COLORS, COLORS]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["frozen", "trainable"]
    assert [to_hex(p.get_facecolor()).upper() for p in legend.get_patches()] == [FROZEN, TRAINABLE]


def test_every_parameter_has_its_name_at_its_bar_from_the_top_down(ownership_rows):
    left, _ = plot_ownership(ownership_rows).axes
    labels = {
        label.get_text(): place
        for label, place in zip(left.get_yticklabels(), left.get_yticks(), strict=True)
    }
    for bar, row in zip(left.patches, ownership_rows, strict=True):
        assert labels[f"{row['name']}  (ds_id {row['ds_id']})"] == bar.get_y() + bar.get_height() / 2
    bottom, top = left.get_ylim()
    assert bottom > top


def test_labels_say_the_unit(ownership_rows):
    left, right = plot_ownership(ownership_rows).axes
    assert left.get_xlabel() == right.get_xlabel() == "elements on this rank"
    assert left.get_title("left") == "Parameter shard"
    assert right.get_title("left") == "Gradient partition in the map"


def test_what_is_missing_from_the_map_is_written_in_its_colour(ownership_rows):
    ownership_rows[3] |= {"owned": False, "gradient": 0}
    _, right = plot_ownership(ownership_rows).axes
    assert [(text.get_text(), text.xy, text.get_color()) for text in right.texts] == [
        ("not in the map: KeyError", (0, 0), FROZEN),
        ("not in the map: KeyError", (0, 1), FROZEN),
        ("not in the map: KeyError", (0, 3), TRAINABLE),
    ]


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("prefix", ["", "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default."])
def test_it_can_be_read(ownership_rows, assert_readable, count, prefix):
    rows = [
        row | {"name": prefix + row["name"], "ds_id": i} for i, row in enumerate((ownership_rows * 4)[:count])
    ]
    shown = assert_readable(plot_ownership(rows))
    assert {f"{row['name']}  (ds_id {row['ds_id']})" for row in rows} <= set(shown)
    assert {"8,000", "frozen", "trainable"} <= set(shown)
