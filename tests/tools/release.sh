#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes bin/release: all that a release has, with checksums and notes. `make release` says
# what is in the environment. The same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."

refuse() {
	echo "release: $*" >&2
	exit 1
}

# Notes are the changelog's section on the version, without its heading.
notes() {
	[ -f CHANGELOG.md ] || return 0
	awk -v wanted="$1" '
		/^## / { inside = index($2, "[" wanted "]") == 1 || $2 == wanted; next }
		/^\[[^]]*\]: / { next }
		inside' CHANGELOG.md | sed -e '/./,$!d'
}

if [ -z "${SNAPSHOT:-}" ]; then
	[[ $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-rc\.[0-9]+)?$ ]] ||
		refuse "the version $VERSION is not of the form v1.2.3 or v1.2.3-rc.1: tag the commit so, or set SNAPSHOT=1"
	[ -z "$(git status --porcelain)" ] || refuse "the tree has changes that are in no commit: commit them, or set SNAPSHOT=1"
	git tag --points-at HEAD | grep -Fxq -- "$VERSION" || refuse "the commit does not have the tag $VERSION: check it out, or set SNAPSHOT=1"
	section=${VERSION#v}
else
	section=Unreleased
	[ -n "$(notes Unreleased)" ] || section=${VERSION#v}
fi
notes=$(notes "$section")
[ -n "$notes" ] || [ -n "${SNAPSHOT:-}" ] || refuse "CHANGELOG.md has no section ## [$section]: write what has changed"
if [ -n "${CHECK:-}" ]; then
	echo "$notes"
	exit
fi

out=bin/release
rm -rf "$out"
mkdir -p "$out"
archs=$(tests/tools/archs.sh)
version=${VERSION#v}
make=("${MAKE:-make}" --no-print-directory ARCHS="$archs" VERSION="$VERSION" REVISION="$REVISION" SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" IMAGE="$IMAGE")

# pack FOLDER FILE: an archive whose bytes follow from the files' names, modes and contents.
pack() {
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode='u=rwX,go=rX' --format=ustar \
		-C "$(dirname "$1")" -cf - "$(basename "$1")" | gzip -9n > "$2"
}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

"${make[@]}" sbom SYFT="$SYFT"
cp bin/image/gpumeter-*.tar bin/image/gpumeter-*.spdx.json "$out/"

for arch in $archs; do
	folder=$stage/gpumeter_${version}_linux_$arch
	mkdir -p "$folder"
	cp "bin/linux-$arch"/gpumeter* LICENSE README.md "$folder/"
	[ ! -f CHANGELOG.md ] || cp CHANGELOG.md "$folder/"
	bin/image/assemble licences -programs "bin/linux-$arch" -out "$folder/licenses"
	mkdir "$folder/etc"
	cp -r etc/*.csv etc/*.yaml etc/prometheus "$folder/etc/"
	rm -f "$folder"/etc/prometheus/*_test.yaml
	for extra in systemd man; do
		[ ! -d "deployment/$extra" ] || cp -r "deployment/$extra" "$folder/"
	done
	if "bin/linux-$(go env GOHOSTARCH)/gpumeter" completion bash > /dev/null 2>&1; then
		mkdir "$folder/completions"
		for shell in bash zsh fish; do
			"bin/linux-$(go env GOHOSTARCH)/gpumeter" completion "$shell" > "$folder/completions/gpumeter.$shell"
		done
	fi
	pack "$folder" "$out/$(basename "$folder").tar.gz"
done

# The chart with the version of what it installs; its own has to be one of Semantic Versioning.
chart=$version
[[ $chart =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || chart=0.0.0-$version
mkdir "$stage/chart"
cp -r deployment/helm/gpumeter "$stage/chart/"
sed -i -e "s/^version: .*/version: $chart/" -e "s/^appVersion: .*/appVersion: \"$version\"/" "$stage/chart/gpumeter/Chart.yaml"
pack "$stage/chart/gpumeter" "$out/gpumeter-chart-$chart.tgz"

for format in deb rpm; do
	"${make[@]}" "$format"
	cp "bin/$format"/*."$format" "$out/"
done

echo "${notes:-No notes.}" > "$out/RELEASE_NOTES.md"
(cd "$out" && sha256sum -- * > SHA256SUMS)
cat "$out/SHA256SUMS"
