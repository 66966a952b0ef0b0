#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that `go generate` would change nothing. It works on a copy, so that a
# tree with uncommitted work is neither in the way nor altered.
set -euo pipefail
cd "$(dirname "$0")/../.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/before"
git ls-files --cached --others --exclude-standard --deduplicate -z |
	while IFS= read -r -d '' file; do
		if [ -f "$file" ]; then printf '%s\0' "$file"; fi
	done |
	tar --null -T - -cf - | tar -xf - -C "$copy/before"
cp -a "$copy/before" "$copy/after"

if ! grep -rqs --include='*.go' '^//go:generate ' "$copy/after"; then
	echo "verify-generated: no //go:generate directive found: nothing was checked" >&2
	exit 1
fi
(cd "$copy/after" && go generate ./...)

if ! (cd "$copy" && diff -ru before after); then
	echo "verify-generated: generated files are stale: run 'make update'" >&2
	exit 1
fi
