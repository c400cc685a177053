#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes compile_commands.json from the commands that `make -n` prints.
#   make -Bn all | tests/compile_commands.sh > compile_commands.json
set -u
awk -v folder="$PWD" '
    function quoted(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); return "\"" text "\"" }
    BEGIN { print "[" }
    / -c [^ ]+\.c -o / {
        sub(/^[^ ]*ccache /, "")
        file = $0; sub(/.* -c /, "", file); sub(/ .*/, "", file)
        printf "%s{\"directory\": %s, \"file\": %s, \"command\": %s}", n++ ? ",\n" : "", quoted(folder), quoted(file), quoted($0)
    }
    END { print "\n]"; exit n == 0 }'
