# SPDX-License-Identifier: Apache-2.0
# Draws a terminal with what a command printed:   sh recipes/demo/demo.sh 2>&1 | awk -v sections=5 -f docs/terminal_svg.awk > docs/demo.svg
# sections: the number of the last section to draw ("5. Talking to the result"); not given: all of them.
# A line after an empty line is a heading, unless it ends with a full stop. A line that begins with $ is a command. Of the progress lines of a run only the
# last one is drawn.
function text(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
function put(s, class) { lines[n] = s; classes[n++] = class }
{
    gsub(/\033\[[0-9;]*[mK]/, ""); gsub(/\r/, "")
    if (sections && $0 ~ /^[0-9]+\. / && $0 + 0 > sections) done = 1
    if (done) next
    heading = empty && $0 !~ /[.]$/; empty = $0 == ""
    if ($0 ~ /^step [0-9]+\//) { held = $0; next }
    if (held != "") { put(held, "p"); held = "" }
    if (length($0) > 118) $0 = substr($0, 1, 115) "..."
    put($0, heading ? "h" : $0 ~ /^\$ / ? "c" : "t")
}
END {
    while (n > 0 && lines[n - 1] == "") n--
    height = 20 + 17 * n + 14
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"940\" height=\"%d\" font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"12.5\">\n", height
    print "<style>text{white-space:pre}.t{fill:#d4d7dd}.h{fill:#8fd18f;font-weight:bold}.c{fill:#7fb4ff}.p{fill:#e5c07b}</style>"
    printf "<rect width=\"940\" height=\"%d\" rx=\"8\" fill=\"#1b1e24\"/>\n", height
    for (i = 0; i < n; i++) if (lines[i] != "") printf "<text xml:space=\"preserve\" x=\"16\" y=\"%d\" class=\"%s\">%s</text>\n", 28 + 17 * i, classes[i], text(lines[i])
    print "</svg>"
}
