#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the commands that a page shows, and compares their output with the page:   sh tests/cli/doc_examples.sh TUNE FOLDER PAGE
# A command is a line "    $ ..."; a \ or | at its end continues it on the next line. Its output follows. Three dots match any lines, or a part of a line. Times, rates,
# sizes in KiB or MiB, and numbers with an exponent may differ. <!-- NAME --> before code writes it into a file, up to the first command. Everything runs in FOLDER.
set -eu
tune=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") root=$(pwd)
case $3 in /*) page=$3 ;; *) page=$root/$3 ;; esac
cd "$2"
rm -f tune recipes
ln -s "$tune" tune
ln -s "$root/recipes" recipes
awk '
    function take(text) { if (file != "") print text > file; else if (n && !prose) print text > (n ".expected") }
    /^<!-- [a-z_.]+ -->$/ { file = $2; next }
    /^```/ { fenced = !fenced; if (!fenced) file = ""; next }
    fenced { take($0); next }
    /^    / && more { print substr($0, 5) > (n ".sh"); more = /[|\\]$/; next }
    /^    \$ / { file = ""; prose = 0; n++; print substr($0, 7) > (n ".sh"); printf "" > (n ".expected"); more = /[|\\]$/; next }
    /^    / { take(substr($0, 5)); next }
    /./ { file = ""; prose = 1 }
    END { print n + 0 > "count" }' "$page"
i=1 bad=0
while [ $i -le "$(cat count)" ]; do
    sh ./$i.sh > $i.out 2>&1 || true # some examples show an error
    awk -v page="$3" -v command="$(head -n 1 $i.sh)" '
        function same(line) { gsub(/[0-9.]+e-[0-9]+/, "E", line); gsub(/in [0-9.]+ (s|min [0-9]+ s)/, "in T", line); gsub(/[0-9.]+ (steps|tokens)\/s/, "R", line)
                              gsub(/[0-9.]+ [KM]iB/, "M", line)
                              gsub(/[ \t]+/, " ", line); sub(/ $/, "", line); return line }
        function fits(line, wanted,  part, n, i) {
            n = split(wanted, part, /[.][.][.]/); if (n == 1) return line == wanted
            if (part[1] != substr(line, 1, length(part[1]))) return 0
            for (i = 1; i <= n; i++) { if (!(at_part = index(line, part[i])) && part[i] != "") return 0; line = substr(line, at_part + length(part[i])) }
            return 1 }
        FILENAME ~ /out$/ { out[++lines] = same($0); next }
        $0 == "..." { next }
        { wanted = same($0); while (++at <= lines && !fits(out[at], wanted)) ; if (at > lines) { print page ": " command ": not printed: " $0; exit 1 } }' $i.out $i.expected || bad=1
    i=$((i + 1))
done
[ $bad = 0 ] && echo "$3: $(cat count) commands"
