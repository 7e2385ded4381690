"""The style of plots: colors that stay apart, a frame without a lid, settings that do not leak."""

import matplotlib as mpl
import matplotlib.image
import numpy as np

from rlzoo.display.plots import COLORS, STYLE, figure_file


def test_no_two_colors_are_close():
    rgb = np.array([mpl.colors.to_rgb(color) for color in COLORS])
    apart = np.abs(rgb[:, None] - rgb[None]).sum(-1) + 9 * np.eye(len(COLORS))
    assert apart.min() > 0.3


def test_a_figure_has_the_common_style_and_leaves_the_settings_as_they_were(tmp_path):
    before = {key: mpl.rcParams[key] for key in STYLE}
    path = tmp_path / "x.png"
    with figure_file(path, size=(2, 1), dpi=50, style={"font.size": 31}) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], color=COLORS[0], label="a")
        legend = axes.legend()
        assert mpl.rcParams["font.size"] == 31
    assert {key: mpl.rcParams[key] for key in STYLE} == before
    assert [axes.spines[side].get_visible() for side in ("top", "right", "left", "bottom")] == [
        *(False, False, True, True)
    ]
    assert not legend.get_frame_on()
    assert matplotlib.image.imread(path).shape == (50, 100, 4)
