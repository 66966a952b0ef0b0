#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes packages for nodes without Kubernetes, one for each architecture: `packages.sh deb` in bin/deb, or rpm in bin/rpm.
# `make deb` says what is in the environment.
set -euo pipefail
cd "$(dirname "$0")/../.."

format=$1
out=bin/$format
host=$(go env GOHOSTARCH)
archs=$(tests/tools/archs.sh)
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

go -C deployment/debian build -buildvcs=false -o "$tools/package" .
go -C deployment/image build -buildvcs=false -o "$tools/assemble" .
rm -rf "$out"
for arch in $host $archs; do
	if [ "$arch" = "$host" ] && [ -e "$tools/$host" ]; then
		continue
	fi
	${MAKE:-make} --no-print-directory programs ARCH="$arch" VERSION="$VERSION" REVISION="$REVISION"
	touch "$tools/$arch"
done
for arch in $archs; do
	"$tools/assemble" licences -programs "bin/linux-$arch" -out "$tools/licences-$arch"
	"$tools/package" -format "$format" -arch "$arch" -programs "bin/linux-$arch" -host "bin/linux-$host" \
		-licences "$tools/licences-$arch" -version "$VERSION" -created "$SOURCE_DATE_EPOCH" -out "$out"
done
