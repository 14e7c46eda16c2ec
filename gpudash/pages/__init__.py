"""Pages of HTML and drawings of SVG that need nothing but themselves: frame, style and axes of every report."""
