#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz test of every module in turn, each for FUZZTIME, since the go command fuzzes one function of one package at a time. A
# failure does not end it: what failed is listed at the end, with the input that was found, and the exit status is 1. FUZZ is a regular
# expression for "folder Name", to run only some; "fuzz.sh list" names them and runs none.
#
# The source says which fuzz tests there are, and the go command which of them it would build: one that hides behind a build tag, or in a
# folder that the go command passes over, is an error rather than never run.
set -uo pipefail
cd "$(dirname "$0")/../.."

time=${FUZZTIME:-1m}

# "folder Name" of each fuzz test that the source has.
written() {
	grep -rnE --include='*_test.go' --exclude-dir=.git --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*\(' . |
		sed -E 's#^\./(.*)/[^/]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*)\(.*#\1 \2#' | sort
}

# The same as the go command has it, in every module.
built() {
	local module directory files
	while read -r module; do
		(cd "$module" && go list -f '{{.Dir}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}' ./... 2>/dev/null) |
			while read -r directory files; do
				for file in $files; do
					sed -nE "s#^func (Fuzz[A-Za-z0-9_]*)\(.*#${directory#"$PWD"/} \1#p" "$directory/$file"
				done
			done
	done < <(find . -name go.mod -not -path './.git/*' -not -path '*/testdata/*' -printf '%h\n') | sort
}

span() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

all=$(written)
if [ -z "$all" ]; then
	echo "fuzz: no fuzz test found" >&2
	exit 1
fi
hidden=$(comm -23 <(echo "$all") <(built))
if [ -n "$hidden" ]; then
	printf 'fuzz: the go command does not build these, so nobody runs them; see their build tags and folders:\n%s\n' "$hidden" >&2
	exit 1
fi
if [ -n "${FUZZ:-}" ]; then
	all=$(grep -E "$FUZZ" <<<"$all") || { echo "fuzz: FUZZ=$FUZZ fits none of them" >&2 && exit 1; }
fi
if [ "${1:-}" = list ]; then
	echo "$all"
	exit 0
fi

total=$(wc -l <<<"$all")
output=$(mktemp)
failures=$(mktemp)
trap 'rm -f "$output" "$failures"' EXIT
trap 'exit 130' INT
n=0
while read -r folder name; do
	left=unknown
	if [ "$n" -gt 0 ]; then
		left=$(span $((SECONDS * (total - n) / n)))
	fi
	n=$((n + 1))
	printf '== %d of %d, %s passed, %s left: %s %s\n' "$n" "$total" "$(span "$SECONDS")" "$left" "$folder" "$name"
	if (cd "$folder" && go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 10x .) </dev/null >"$output" 2>&1; then
		tail -n 3 "$output" | grep -E '^fuzz: elapsed' | tail -n 1
		continue
	fi
	# What the go command says of a failure ends with the file in which it has kept the input.
	tail -n 40 "$output"
	input=$(sed -nE 's#^ *Failing input written to (.*)#\1#p' "$output" | tail -n 1)
	if [ -n "$input" ]; then
		echo "$folder $name: the input is in $folder/$input" >>"$failures"
	else
		echo "$folder $name: no input was kept: a seed fails, or it does not build" >>"$failures"
	fi
done <<<"$all"

printf '== %d fuzz tests, %s each, in %s: %d failed\n' "$total" "$time" "$(span "$SECONDS")" "$(wc -l <"$failures")"
cat "$failures"
[ ! -s "$failures" ]
