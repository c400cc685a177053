# SPDX-License-Identifier: Apache-2.0
# A picture of a terminal from what a command really printed:   sh recipes/demo/demo.sh 2>&1 | awk -f docs/terminal_svg.awk > docs/demo.svg
# A line behind an empty one is a heading unless it ends as a sentence does, lines that begin with $ are commands; progress lines but the last of a run
# are left out.
function text(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
function put(s, class) { lines[n] = s; classes[n++] = class }
{
    gsub(/\033\[[0-9;]*[mK]/, ""); gsub(/\r/, "")
    heading = empty && $0 !~ /[.]$/; empty = $0 == ""
    if ($0 ~ /^step [0-9]+\//) { held = $0; next }
    if (held != "") { put(held, "p"); held = "" }
    if (length($0) > 118) $0 = substr($0, 1, 115) "..."
    put($0, heading ? "h" : $0 ~ /^\$ / ? "c" : "t")
}
END {
    height = 20 + 17 * n + 14
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"940\" height=\"%d\" font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"12.5\">\n", height
    print "<style>text{white-space:pre}.t{fill:#d4d7dd}.h{fill:#8fd18f;font-weight:bold}.c{fill:#7fb4ff}.p{fill:#e5c07b}</style>"
    printf "<rect width=\"940\" height=\"%d\" rx=\"8\" fill=\"#1b1e24\"/>\n", height
    for (i = 0; i < n; i++) if (lines[i] != "") printf "<text xml:space=\"preserve\" x=\"16\" y=\"%d\" class=\"%s\">%s</text>\n", 28 + 17 * i, classes[i], text(lines[i])
    print "</svg>"
}
