#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the architectures to release for: those of ARCHS, or this machine's and those that
# there is a C compiler for. What is left out is said on the standard error.
set -euo pipefail

if [ -n "${ARCHS:-}" ]; then
	echo "$ARCHS"
	exit
fi
declare -A compilers=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)
declare -A packages=([amd64]=gcc-x86-64-linux-gnu [arm64]=gcc-aarch64-linux-gnu)
native=$(go env GOHOSTARCH)
found=("$native")
for arch in amd64 arm64; do
	if [ "$arch" = "$native" ]; then
		continue
	elif command -v "${compilers[$arch]}" > /dev/null; then
		found+=("$arch")
	else
		echo "nothing is made for $arch: no ${compilers[$arch]}; apt-get install ${packages[$arch]} libc6-dev-$arch-cross" >&2
	fi
done
echo "${found[*]}"
