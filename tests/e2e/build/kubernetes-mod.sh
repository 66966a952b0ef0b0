#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: kubernetes-mod.sh VERSION FOLDER, for example v1.37.2 kubernetes-1.37
#
# Writes FOLDER/go.mod for a version of Kubernetes. Its own go.mod points k8s.io/api and
# the like to folders that only its git repository has; each of them is also a module
# with a version that follows from Kubernetes': v0.37.2 for v1.37.2.
set -euo pipefail

version=$1
folder=$2
cd "$(dirname "${BASH_SOURCE[0]}")/$folder"

theirs=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
ours=v0.${version#v1.}
go=$(sed -n 's/^go //p' "$theirs/go.mod")

{
	printf 'module github.com/gpumeter/gpumeter/tests/e2e/build/%s\n\ngo %s\n\n' "$folder" "$go"
	sed -n '/^godebug /p' "$theirs/go.mod"
	printf '\ntool k8s.io/kubernetes/cmd/kubelet\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n' "$version"
	sed -nE "s#^\s*(k8s\.io/[a-z-]+) => \./staging/.*#\t\1 => \1 $ours#p" "$theirs/go.mod"
	printf ')\n'
} > go.mod

# Theirs has what their go.mod needs, so that tidying changes no version.
cp "$theirs/go.sum" go.sum
chmod u+w go.sum
go mod tidy
