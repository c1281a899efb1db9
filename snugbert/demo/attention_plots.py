"""Draws attention weights: a head as a table, and an overview of all heads.

Shapes: T tokens.
"""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from snugbert.reports.plots import GREY, TITLE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = "cividis"  # looks the same to colorblind people (Nuñez et al., 2018)
WIDTH, LARGEST_CELL = 832, 26  # of the table and its cells, in pixels


def draw_heat_map(tokens: Sequence[str], weights: torch.Tensor, layer: int, head: int) -> str:
    """Draws a head as an HTML table. The browser has glyphs for tokens of any language.

    Args:
        tokens: labels of the rows (queries) and the columns (keys).
        weights: weights of all heads. *Shape:* (layers, heads, T, T)
        layer, head: the head to draw, counted from 1.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    head_weights = weights[layer - 1, head - 1]
    shades = colormaps[SHADES]((head_weights / head_weights.max()).numpy())
    names = [html.escape(token) for token in tokens]
    rows = ""
    for query, colors, values in zip(names, shades, head_weights.tolist(), strict=True):
        cells = "".join(
            f'<td style="background-color: {to_hex(color)}" title="{query} to {key}: {value:.0%}"></td>'
            for key, color, value in zip(names, colors, values, strict=True)
        )
        rows += f'<tr><th scope="row">{query}</th>{cells}</tr>'
    columns = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f"<p>Layer {layer}, head {head}: attention from each token (row) to each token (column), from 0 (dark) to "
        f'{head_weights.max():.0%} (light).</p><table class="attention" style="--cell: '
        f'{min(LARGEST_CELL, WIDTH / len(names)):.1f}px"><thead><tr><td></td>{columns}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def draw_overview(weights: torch.Tensor) -> "Figure":
    """Draws all heads: one row per layer, one column per head. Colors range from 0 to each head's largest weight.

    Args:
        weights: attention weights. *Shape:* (layers, heads, T, T)
    """
    layers, heads, length, _ = weights.shape
    tiles = weights / weights.amax(dim=(2, 3), keepdim=True)
    # Adds an empty line to the right of each head and below it.
    tiles = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=torch.nan).transpose(1, 2).flatten(2).flatten(0, 1)
    figure = new_figure(7, 7 * layers / heads + 0.6)
    panel = figure.add_subplot()
    panel.imshow(tiles.numpy(), cmap=SHADES, vmin=0, vmax=1, interpolation="nearest")
    centers = [index * (length + 1) + (length - 1) / 2 for index in range(max(layers, heads))]
    panel.set_xticks(centers[:heads], [str(index) for index in range(1, heads + 1)])
    panel.set_yticks(centers[:layers], [str(index) for index in range(1, layers + 1)])
    panel.set_xlabel("head")
    panel.set_ylabel("layer")
    panel.set_title("All heads", **TITLE)
    panel.tick_params(length=0, colors=GREY)
    panel.spines[:].set_visible(False)
    return figure
