#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all scenarios at all points, several at a time, then prints the table with its sums. Takes hours of processor time.
#   tests/faults/all.sh TUNE [SCENARIO...]        POINTS, KINDS: as for tests/cli/faults.sh; JOBS=n: how many at once
set -u
tune=$1
shift
export POINTS="${POINTS:-all}" ROWS
ROWS=$(mktemp) || exit 1
trap 'rm -f "$ROWS"' EXIT
trap 'exit 130' INT TERM
[ -n "${TMPDIR:-}" ] || ! [ -w /dev/shm ] || export TMPDIR=/dev/shm
. tests/faults/scenarios.sh
[ $# -gt 0 ] || set -- $(for s in $SCENARIOS; do echo "${s%:*}"; done)
printf '%s\n' "$@" | xargs -P "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" -n 1 sh tests/cli/faults.sh "$tune" | grep --line-buffered -vE '^(scenario|\[)'
echo
LC_ALL=C sort "$ROWS" | awk 'BEGIN { form = "%-10s %-10s %6s %8s %7s %6s %5s %5s %5s %5s %6s\n"
        printf form, "scenario", "kind", "points", "unharmed", "message", "wrong", "code", "half", "lost", "abort", "theirs" }
    { print; for (i = 3; i <= NF; i++) sum[i] += $i }
    END { printf form, "all", "", sum[3], sum[4], sum[5], sum[6], sum[7], sum[8], sum[9], sum[10], sum[11]
          bad = sum[6] + sum[7] + sum[8] + sum[9] + sum[10]; printf "%d points, %d failed\n", sum[3], bad; exit bad > 0 || sum[3] == 0 }'
