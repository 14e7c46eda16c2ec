"""Qt's SVG, made of the basics of SVG."""

from __future__ import annotations

from gpudash.drawing.flat_svg import flattened, is_straight

CURVE = '<g fill="none" stroke="#008560" stroke-width="2" transform="matrix(10,0,0,-2,100,50)"\n>\n{}\n</g>'


def test_a_line_in_the_units_of_its_data_gets_the_coordinates_of_the_picture() -> None:
    drawn = CURVE.format('<path vector-effect="non-scaling-stroke" d="M0,0 L1,5 L2.5,1e+1"/>')
    assert flattened(drawn) == (
        '<g fill="none" stroke="#008560" stroke-width="2" transform="matrix(1,0,0,1,0,0)"\n>\n'
        '<path d="M100,50 L110,40 L125,30"/>\n</g>'
    )


def test_a_line_is_cut_where_it_leaves_the_area_and_begins_again_where_it_returns() -> None:
    drawn = CURVE.format('<polyline points="-2,0 2,0 2,20 4,20 4,0 9,0 "/>')
    assert '<path d="M90,50 L120,50 L120,20 M140,20 L140,50 L150,50" />' in flattened(
        drawn.replace('"/>', '" />'), (90, 20, 150, 60)
    )


def test_an_area_is_cut_at_the_edges() -> None:
    drawn = CURVE.replace('fill="none"', 'fill="#3089cc"').format('<polygon points="0,0 0,50 20,50 20,0"/>')
    (path,) = [line for line in flattened(drawn, (90, 20, 150, 60)).splitlines() if "<path" in line]
    assert set(path.removeprefix('<path d="M').removesuffix(' Z"/>').split(" L")) == {
        "100,50",
        "100,20",
        "150,20",
        "150,50",
    }


def test_nothing_is_left_of_a_line_outside() -> None:
    assert "<path" not in flattened(CURVE.format('<path d="M0,0 L1,0"/>'), (200, 0, 300, 60))


def test_text_and_curves_stay_as_they_are() -> None:
    for drawn in (CURVE.format('<text x="1">MiB</text>'), CURVE.format('<path d="M0,0 C1,1 2,2 3,3"/>')):
        assert flattened(drawn, (0, 0, 1, 1)) == drawn
        assert not is_straight(drawn)
