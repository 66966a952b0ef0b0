#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Assembles the container image, as it is and in the variant for the GPU Operator, for each
# architecture, as OCI archives in bin/image. `make image` says what is in the environment.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A second run must not remove what the first one assembles.
mkdir -p bin/image
exec 9> bin/image/.lock
flock 9

archs=$(tests/tools/archs.sh)
go -C deployment/image build -buildvcs=false -o ../../bin/image/assemble .
common=(-version "$VERSION" -revision "$REVISION" -created "$SOURCE_DATE_EPOCH" -reference "$IMAGE")

rm -f bin/image/*.tar bin/image/*.json
for variant in "" operator; do
	name=bin/image/gpumeter-$VERSION${variant:+-$variant}-linux
	made=()
	for arch in $archs; do
		[ -n "$variant" ] || ${MAKE:-make} --no-print-directory programs ARCH="$arch" VERSION="$VERSION" REVISION="$REVISION"
		bin/image/assemble build -arch "$arch" -variant "$variant" -programs "bin/linux-$arch" "${common[@]}" -out "$name-$arch.tar"
		made+=("$name-$arch.tar")
	done
	if [ ${#made[@]} -gt 1 ]; then
		bin/image/assemble join -variant "$variant" "${common[@]}" -out "$name.tar" "${made[@]}"
	fi
done
bin/image/assemble inspect "bin/image/gpumeter-$VERSION-linux-$(go env GOHOSTARCH).tar"

echo
echo "Once an archive is in your registry, as docs/image.md says, tell the chart:"
echo "  --set image.repository=registry.example.com/gpumeter --set image.tag=$VERSION"
